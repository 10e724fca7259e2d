"""LangServe's routes: ``/invoke``, ``/batch``, ``/stream`` and the schemas of the object."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, nullcontext
from dataclasses import dataclass
from typing import Annotated, Any
from uuid import UUID, uuid4

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, create_model, model_validator

from fineflow.errors import shown
from fineflow.serving.calls import Calling, EventStream, PerRequest, encoded, event
from fineflow.serving.gate import CallGate
from fineflow.serving.refusals import Refused, body
from fineflow.serving.served import ServedObject
from fineflow.serving.settings import ServerSettings


class ClientConfig(BaseModel):
    """What clients may say of a call. configurable: only keys that the object declares."""

    model_config = ConfigDict(extra="forbid")

    configurable: dict[str, Any] = {}
    tags: list[Annotated[str, Field(max_length=256)]] = Field(default=[], max_length=32)
    metadata: dict[str, str | int | float | bool | None] = Field(default={}, max_length=32)
    recursion_limit: int | None = Field(default=None, ge=1)

    @model_validator(mode="before")
    @classmethod
    def _without_local(cls, given: Any) -> Any:
        """Leaves out what LangChain's own clients send along, and what only counts where they are."""
        local = ("callbacks", "run_name", "run_id", "max_concurrency")
        return {key: each for key, each in given.items() if key not in local} if isinstance(given, dict) else given


class Metadata(BaseModel):
    """Ids of calls, as in logs and traces."""

    run_id: UUID
    feedback_tokens: list[Any] = []


class BatchMetadata(BaseModel):
    """Ids of the calls of a batch."""

    responses: list[Metadata]
    run_ids: list[UUID]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")

    config: ClientConfig | None = None
    kwargs: dict[str, Any] = {}
    fineflow: PerRequest = PerRequest()


@dataclass(frozen=True)
class Serving:
    """What routes share."""

    served: ServedObject
    settings: ServerSettings
    gate: CallGate

    def config(self, given: ClientConfig | None, run: UUID) -> dict[str, Any]:
        """Returns the config of a call. Raises Refused: 422 for what clients may not set."""
        found = given or ClientConfig()
        served, most = self.served, self.settings.recursion_limit
        if found.model_fields_set and not served.configured:
            raise Refused(422, f"config: {served.name} takes none; leave it out", code="not_allowed")
        if unknown := sorted(found.configurable.keys() - served.configurable):
            text = (
                f"it declares {', '.join(sorted(served.configurable))}" if served.configurable else "it declares none"
            )
            raise Refused(
                422, f"config.configurable: {served.name} has no key {shown(unknown[0])}; {text}", code="not_allowed"
            )
        if own := [key for key in found.metadata if key.startswith(("fineflow_", "langgraph_", "ls_"))]:
            text = 'priorities and tenants come in the field "fineflow"'
            raise Refused(422, f"config.metadata: {shown(own[0])} is reserved; {text}", code="not_allowed")
        if found.recursion_limit is not None and found.recursion_limit > most:
            raise Refused(422, f"config.recursion_limit: expected at most {most}, got {found.recursion_limit}")
        return {"run_id": run, **found.model_dump(exclude_unset=True, exclude_none=True)}

    def kwargs(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the keyword arguments of a call. Raises Refused: 422 for those that clients may not set."""
        if unwanted := sorted(given.keys() - set(self.settings.allow_kwargs)):
            allowed = ", ".join(self.settings.allow_kwargs) or "none"
            text = f"kwargs: this server does not let clients set {shown(unwanted[0])} (it allows {allowed})"
            raise Refused(422, text, code="not_allowed")
        return given

    def calling(self, given: PerRequest, run: str, count: int = 1) -> Calling:
        """Takes places for calls. Raises Refused: 422 for what is not allowed, 429, and 503 at the end."""
        given.check(self.settings)
        return Calling(self.settings, given, self.gate.enter(count), run)


def router(serving: Serving) -> APIRouter:
    """Returns LangServe's routes of an object."""
    served, made = serving.served, APIRouter()
    takes, gives = served.input, served.output
    one: Any = create_model("InvokeRequest", __base__=_Body, input=(takes, ...))
    asked: Any = create_model("StreamRequest", __base__=one, record=(bool, False))
    many: Any = create_model(
        "BatchRequest",
        __base__=_Body,
        inputs=(_list(takes), ...),
        config=(ClientConfig | list[ClientConfig | None] | None, None),
    )
    answered: Any = create_model("InvokeResponse", output=(gives, ...), metadata=(Metadata, ...))
    batched: Any = create_model("BatchResponse", output=(_list(gives), ...), metadata=(BatchMetadata, ...))

    async def invoke(request: Request, body: Any) -> Response:
        """Calls the object, and answers with its output."""
        run = uuid4()
        given = served.restored(body.input, (await request.json())["input"])
        config, kwargs = serving.config(body.config, run), serving.kwargs(body.kwargs)
        calling = serving.calling(body.fineflow, str(run))
        output = await calling.answer(request, lambda: served.answer(given, config, kwargs))
        return _json({"output": output, "metadata": Metadata(run_id=run)})

    async def batch(request: Request, body: Any) -> Response:
        """Calls the object with each input."""
        configs = body.config if isinstance(body.config, list) else [body.config] * len(body.inputs)
        if len(configs) != len(body.inputs):
            raise Refused(
                422, f"config: expected one, or one for each of {len(body.inputs)} inputs; got {len(configs)}"
            )
        given = list(map(served.restored, body.inputs, (await request.json())["inputs"]))
        runs = [uuid4() for _ in given]
        ready, kwargs = list(map(serving.config, configs, runs)), serving.kwargs(body.kwargs)
        calling = serving.calling(body.fineflow, str(runs[0]) if runs else "", len(given))
        output = await calling.answer(request, lambda: served.answers(given, ready, kwargs))
        told = BatchMetadata(responses=[Metadata(run_id=run) for run in runs], run_ids=runs)
        return _json({"output": output, "metadata": told})

    async def stream(request: Request, body: Any) -> Response:
        """Calls the object, and sends its output as it is made: events metadata, data, error, end."""
        run = uuid4()
        given = served.restored(body.input, (await request.json())["input"])
        config, kwargs = serving.config(body.config, run), serving.kwargs(body.kwargs)
        if body.record and not serving.settings.page:
            raise Refused(422, "record: this server shows no timelines; leave it out", code="not_allowed")
        calling = serving.calling(body.fineflow, str(run))
        return EventStream(_events(calling, served, given, config, kwargs, record=body.record), calling.place)

    add_route(made, "/invoke", invoke, one, responses={200: {"model": answered}})
    add_route(made, "/batch", batch, many, responses={200: {"model": batched}})
    add_route(made, "/stream", stream, asked, response_class=EventStream, status_code=200)
    for side in ("input", "output"):
        made.add_api_route(f"/{side}_schema", _schema(getattr(served, side)), methods=["GET"])
    return made


def add_route(made: APIRouter, path: str, endpoint: Any, body: Any, **about: Any) -> None:
    """Adds a POST route whose body is of a model that is only known now."""
    endpoint.__annotations__["body"] = body
    made.add_api_route(path, endpoint, methods=["POST"], response_model=None, **about)


async def _events(
    calling: Calling,
    served: ServedObject,
    given: Any,
    config: dict[str, Any],
    kwargs: Mapping[str, Any],
    *,
    record: bool,
) -> AsyncGenerator[bytes, None]:
    from fineflow.recording.recorder import record as recorded

    yield event("metadata", encoded(Metadata(run_id=config["run_id"])))
    try:
        with recorded(calls=1, own=True) if record else nullcontext() as recorder:
            async with aclosing(calling.pieces(lambda: served.stream(given, config, kwargs))) as pieces:
                async for piece in pieces:
                    yield event("data", encoded(piece))
        if recorder is not None:
            yield event("timeline", encoded({"html": recorder.timeline(title=served.name).html()}))
    except Refused as error:
        told = {"status_code": error.status_code, "message": error.detail, **body(error.status_code, error.detail)}
        yield event("error", encoded(told))
    else:
        yield event("end")


def _json(value: Any) -> Response:
    return Response(encoded(value), media_type="application/json")


def _list(kind: Any) -> Any:
    return list[kind]


def _schema(kind: Any) -> Any:
    found = TypeAdapter(kind).json_schema()

    async def schema() -> dict[str, Any]:
        return found

    return schema
