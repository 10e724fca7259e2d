"""Settings and decoding that the chat model and the completion model on an engine share."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from math import inf
from typing import Any, ClassVar

from langchain_core.language_models import LangSmithParams
from langchain_core.utils.function_calling import convert_to_json_schema
from pydantic import BaseModel, ConfigDict, Field, SkipValidation, field_validator

from fineflow.adapters.core import decoding
from fineflow.protocols import Constrains, Delta, LLMEngine, Sampling, TokenLogprob
from fineflow.runtime.call.trace import Warmed

# LangChain's own arguments, not for the model.
_IGNORED = frozenset({"stream", "ls_structured_output_format", "structured_output_format"})
_DIRECT = (
    *("max_tokens", "temperature", "top_p", "top_k", "seed", "min_p", "presence_penalty", "frequency_penalty"),
    *("repetition_penalty", "min_tokens", "regex"),
)
_SETTINGS = (*_DIRECT, "logprobs", "top_logprobs", "response_format", "choices", "extra")


class EngineBacked(BaseModel):
    """Fields and decoding of a LangChain model on an ``LLMEngine``.

    temperature 0 is greedy; top_k 0 means all tokens; min_p: least probability of a token relative to the likeliest.
    The penalties are those of OpenAI's interface, ``repetition_penalty`` that of transformers. stop: strings before
    which the output ends; ignored in the first min_tokens tokens. logprobs: True, or the number of alternatives to
    report per token (like top_logprobs); they are in the message's ``response_metadata``, in OpenAI's form.
    response_format: OpenAI's (``{"type": "json_schema", ...}``, ``{"type": "json_object"}``) or a pydantic class;
    regex, choices: other constraints on the whole output. extra: further engine settings, by name.

    All but ``engine`` may also be given per call or by ``bind``; a ``stop`` of the call replaces the model's. The
    engine raises RequestError for settings that it does not support.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    on_engine: ClassVar[bool] = True  # its calls wait in a queue

    engine: SkipValidation[LLMEngine] = Field(exclude=True, repr=False)
    max_tokens: int = 256
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_tokens: int = 0
    stop: list[str] | None = None
    logprobs: bool | int | None = None
    top_logprobs: int | None = None
    response_format: Any = None
    regex: str | None = None
    choices: list[str] | None = None
    extra: dict[str, Any] | None = None

    @field_validator("engine", mode="before")
    @classmethod
    def _is_llm(cls, engine: Any) -> Any:
        return decoding.checked(engine)

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return self._known()

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        # Calls the model class that follows this one in the method resolution order.
        params: LangSmithParams = super()._get_ls_params(stop=stop or self.stop, **kwargs)  # type: ignore[misc]
        params["ls_provider"] = "fineflow"
        params.setdefault("ls_model_name", self.engine.name)
        return params

    def _settings(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _SETTINGS}

    def _known(self) -> dict[str, Any]:
        """Returns what identifies the model: settings other than the defaults, and always the five oldest ones."""
        fields = type(self).model_fields
        found = {k: v for k, v in self._settings().items() if v != fields[k].default or k in _DIRECT[:5]}
        return {"model_name": self.engine.name, **found, "default_stop": self.stop}

    def _sampling(self, stop: list[str] | None, given: Mapping[str, Any], form: str | None = None) -> Sampling:
        """Returns the settings of one call. Raises ValueError for invalid arguments, TypeError for wrong types.

        form: the JSON schema of the output, if the call has it from elsewhere.
        """
        unknown = given.keys() - set(_SETTINGS) - _IGNORED
        if unknown:
            raise ValueError(
                f"{type(self).__name__} takes no argument {', '.join(sorted(unknown))}; "
                f"it takes {', '.join(_SETTINGS)} and stop"
            )
        settings = self._settings()
        settings.update((k, v) for k, v in given.items() if k in settings and v is not None)
        schema, choices = json_schema(settings["response_format"]), _texts("choices", settings["choices"])
        forms = [name for name, value in (("response_format", schema), ("regex", settings["regex"])) if value]
        forms += ["choices"] * bool(choices) + ["a tool_choice that forces a call"] * bool(form)
        if len(forms) > 1:
            raise ValueError(f"an output has one form; got {' and '.join(forms)}; leave out all but one of them")
        given_stop: Any = self.stop if stop is None else stop
        return Sampling(
            stop=_texts("stop", [given_stop] if isinstance(given_stop, str) else given_stop),
            logprobs=_alternatives(settings["logprobs"], settings["top_logprobs"]),
            schema=form or schema,
            choices=choices,
            extra=tuple(sorted((settings["extra"] or {}).items())),
            **{name: settings[name] for name in _DIRECT},
        )

    def get_token_ids(self, text: str) -> list[int]:
        """Returns the tokens of a text, by the engine's tokenizer unless ``custom_get_token_ids`` is set."""
        own: Callable[[str], list[int]] | None = getattr(self, "custom_get_token_ids", None)
        return (own or self.engine.encode)(text)

    @property
    def holds_schemas(self) -> bool:
        """True if the engine can constrain its output to a JSON schema."""
        return isinstance(self.engine, Constrains) and "schema" in self.engine.constraints

    def _decode(self, prompt: Callable[[], str], sampling: Sampling) -> Iterator[Delta]:
        return decoding.decode(self.engine, prompt, sampling)

    def _adecode(self, prompt: Callable[[], str], sampling: Sampling) -> AsyncGenerator[Delta, None]:
        return decoding.adecode(self.engine, prompt, sampling)

    async def awarm(self, text: str, *, within: float = inf) -> Warmed:
        """Prefills the beginning of a prompt of a later decode (``adapters.core.decoding.awarm``)."""
        return await decoding.awarm(self.engine, text, within=within)


def schema_of(kind: Any) -> dict[str, Any]:
    """Returns the JSON schema of a pydantic class or a TypedDict; a JSON schema is returned as a copy."""
    made: Any = getattr(kind, "model_json_schema", None)
    return dict(made() if made is not None and isinstance(kind, type) else convert_to_json_schema(kind))


def json_schema(response_format: Any) -> str | None:
    """Returns the JSON text of the schema that a ``response_format`` asks for; None if it asks for none.

    Raises ValueError for an unknown form.
    """
    if isinstance(response_format, type):
        return json.dumps(schema_of(response_format))
    kind = response_format.get("type") if isinstance(response_format, Mapping) else response_format
    if kind in (None, "text"):
        return None
    if kind == "json_object":
        return json.dumps({"type": "object"})
    schema = response_format.get("json_schema", {}).get("schema") if kind == "json_schema" else None
    if not isinstance(schema, Mapping):
        raise ValueError(
            'expected a response_format like {"type": "json_schema", "json_schema": {"name": ..., "schema": {...}}}, '
            f'{{"type": "json_object"}}, or a pydantic class; got {response_format!r}'
        )
    return json.dumps(schema)


def _texts(name: str, given: Any) -> tuple[str, ...]:
    if given is None:
        return ()
    if isinstance(given, str) or not isinstance(given, Iterable):  # a str is iterable, too
        raise TypeError(f"{name} is {given!r}; it must be a list of texts")
    return tuple(given)


def _alternatives(logprobs: bool | int | None, top: Any) -> int | None:
    if logprobs is None or logprobs is False:
        if top:
            raise ValueError(f"top_logprobs={top} needs logprobs=True")
        return None
    if top is not None and (not isinstance(top, int) or top < 0):
        raise ValueError(f"top_logprobs is {top!r}; it must be a whole number, 0 or more, or None")
    return top or 0 if logprobs is True else logprobs


def logprobs_of(found: tuple[TokenLogprob, ...]) -> dict[str, Any]:
    """Returns the logprobs of tokens in OpenAI's form."""

    def one(token: str, logprob: float) -> dict[str, Any]:
        return {"token": token, "bytes": list(token.encode("utf-8", "surrogatepass")), "logprob": logprob}

    return {"content": [{**one(t.token, t.logprob), "top_logprobs": [one(*other) for other in t.top]} for t in found]}
