"""Spans: one per call as a child of the caller's, one per step below it, never current, and nothing of the content."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnableParallel
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, StatusCode, TraceFlags, set_span_in_context
from telemetry_kit import ANSWER, CLASSIFY, QUESTION, SEARCH, STEPS, app, attributes, telemetry

import fineflow
from fineflow.runtime import events
from fineflow.testing.gates import Gate
from fineflow.testing.langchain import FakeChat
from fineflow.testing.virtual import run


def test_steps_are_below_the_call_and_the_call_below_its_caller() -> None:
    fast = fineflow.optimize(app(), strict=True)
    with telemetry() as kept:
        before = time.time_ns()
        with kept.tracer.start_as_current_span("request") as request:
            fast.invoke(QUESTION)
        after = time.time_ns()
    (call,) = kept.calls
    assert call.name == "invoke_workflow RunnableSequence"
    assert call.parent is not None and call.parent.span_id == request.get_span_context().span_id
    assert call.context.trace_id == request.get_span_context().trace_id
    assert before <= call.start_time < call.end_time <= after  # type: ignore[operator]
    found = attributes(call)
    assert found["gen_ai.operation.name"] == "invoke_workflow"
    assert (found["fineflow.entry"], found["fineflow.ahead"], found["fineflow.outcome"]) == ("invoke", True, "finished")
    assert (found["fineflow.claims.claimed"], found["fineflow.claims.missed"]) == (3, 0)
    steps = kept.steps(call)
    assert set(steps) == STEPS
    for span in steps.values():
        assert call.start_time <= span.start_time <= span.end_time <= call.end_time  # type: ignore[operator]
        assert attributes(span)["fineflow.result"] == "claimed"
    assert steps[SEARCH].start_time < steps[CLASSIFY].end_time <= steps[ANSWER].start_time  # type: ignore[operator]
    assert steps[CLASSIFY].kind is SpanKind.CLIENT and steps[SEARCH].kind is SpanKind.INTERNAL
    chat = attributes(steps[ANSWER])
    assert (chat["gen_ai.operation.name"], chat["fineflow.engine"], chat["fineflow.depth"]) == ("chat", "FakeChat", 1)
    assert (chat["gen_ai.usage.input_tokens"], chat["gen_ai.usage.output_tokens"]) == (4, 1)
    assert attributes(steps[SEARCH])["gen_ai.operation.name"] == "retrieval"


def test_times_are_those_of_the_steps() -> None:
    fast = fineflow.optimize(app(1.0), strict=True)
    with telemetry() as kept:
        run(fast.ainvoke(QUESTION))
    (call,) = kept.calls
    seconds = {name: ((s.end_time or 0) - (s.start_time or 0)) / 1e9 for name, s in kept.steps(call).items()}
    assert seconds == pytest.approx({CLASSIFY: 1.0, SEARCH: 1.0, ANSWER: 1.0}, abs=1e-3)
    assert ((call.end_time or 0) - (call.start_time or 0)) / 1e9 == pytest.approx(2.0, abs=1e-3)
    assert attributes(call)["fineflow.saved_seconds"] == pytest.approx(1.0, abs=1e-3)
    for span in kept.steps(call).values():
        assert attributes(span)["fineflow.run_seconds"] == pytest.approx(1.0, abs=1e-3)
        assert attributes(span)["fineflow.queue_seconds"] == pytest.approx(0.0, abs=1e-3)


def test_a_call_with_nothing_to_gain_is_one_span() -> None:
    fast = fineflow.optimize(ChatPromptTemplate.from_template("{question}") | FakeChat(), strict=True)
    with telemetry() as kept:
        fast.invoke(QUESTION)
    (span,) = kept.spans
    assert attributes(span)["fineflow.ahead"] is False and attributes(span)["fineflow.outcome"] == "finished"
    assert "fineflow.saved_seconds" not in attributes(span)


def test_streams_end_when_their_reader_has_all_or_leaves() -> None:
    fast = fineflow.optimize(app(last=FakeChat(default="one two three")), strict=True)
    with telemetry() as kept:
        with kept.tracer.start_as_current_span("request"):
            pieces = fast.stream(QUESTION)
            next(pieces)
            assert not kept.calls
            pieces.close()
            assert list(fast.stream(QUESTION))

        async def both() -> None:
            assert [piece async for piece in fast.astream(QUESTION)]

        asyncio.run(both())
    left, read, async_read = kept.calls
    assert [attributes(span)["fineflow.outcome"] for span in kept.calls] == ["cancelled", "finished", "finished"]
    assert left.status.status_code is StatusCode.UNSET and "error.type" not in attributes(left)
    assert left.parent is not None and read.parent is not None and async_read.parent is None
    assert set(kept.steps(read)) == set(kept.steps(async_read)) == STEPS


def test_an_error_names_its_class_on_the_step_and_the_call() -> None:
    fast = fineflow.optimize(app(last=FakeChat(answers=lambda _: ValueError("secret"))), strict=True)
    with telemetry() as kept, pytest.raises(ValueError, match="secret"):
        fast.invoke(QUESTION)
    (call,) = kept.calls
    assert (attributes(call)["error.type"], attributes(call)["fineflow.outcome"]) == ("ValueError", "failed")
    assert call.status.status_code is StatusCode.ERROR and not call.status.description and not call.events
    steps = kept.steps(call)
    assert attributes(steps[ANSWER])["error.type"] == "ValueError"
    assert steps[ANSWER].status.status_code is StatusCode.ERROR
    assert steps[SEARCH].status.status_code is StatusCode.UNSET


async def test_a_cancelled_call_says_what_had_not_ended() -> None:
    gate = Gate()
    fast = fineflow.optimize(app(0.0, last=FakeChat(gate=gate)), strict=True)
    with telemetry() as kept:
        task = asyncio.create_task(fast.ainvoke(QUESTION))
        await gate.arrived()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    (call,) = kept.calls
    assert attributes(call)["fineflow.outcome"] == "cancelled" and call.status.status_code is StatusCode.UNSET
    steps = kept.steps(call)
    assert attributes(steps[ANSWER])["fineflow.cancelled"] is True
    assert "fineflow.cancelled" not in attributes(steps[SEARCH])
    assert steps[ANSWER].end_time <= call.end_time  # type: ignore[operator]


def test_the_inputs_of_a_batch_are_parts_of_one_call() -> None:
    fast = fineflow.optimize(app(), strict=True)
    with telemetry() as kept:
        fast.batch([QUESTION, QUESTION, QUESTION])
    (call,) = kept.calls
    assert attributes(call)["fineflow.entry"] == "batch"
    parts = kept.below(call)
    assert [span.name for span in parts] == ["invoke_workflow RunnableSequence"] * 3
    assert all(set(kept.steps(part)) == STEPS for part in parts)


def test_calls_at_once_have_their_own_callers() -> None:
    fast = fineflow.optimize(app(), strict=True)
    with telemetry() as kept:

        def threaded(name: str) -> None:
            with kept.tracer.start_as_current_span(name):
                fast.invoke(QUESTION)

        async def awaited(name: str) -> None:
            with kept.tracer.start_as_current_span(name):
                await fast.ainvoke(QUESTION)

        async def together() -> None:
            await asyncio.gather(*(awaited(f"task {number}") for number in range(4)))

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(threaded, [f"thread {number}" for number in range(4)]))
        asyncio.run(together())
    callers = [span for span in kept.spans if span.name.startswith(("thread", "task"))]
    assert len(callers) == 8
    for caller in callers:
        (call,) = kept.below(caller)
        assert set(kept.steps(call)) == STEPS


class Gateway(BaseChatModel):
    """A company's model: keeps the span that is current where it is called."""

    seen: Any = None

    @property
    def _llm_type(self) -> str:
        return "gateway"

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        self.seen.append(trace.get_current_span().get_span_context().span_id)
        return ChatResult(generations=[ChatGeneration(message=AIMessage("ok"))])


@pytest.mark.parametrize("entry", ["invoke", "stream"])
def test_no_span_of_ours_is_ever_current(entry: str) -> None:
    seen: list[int] = []
    note = RunnableLambda(lambda given: seen.append(trace.get_current_span().get_span_context().span_id) or given)
    fast = fineflow.optimize(app(model=fineflow.external(Gateway)(seen=seen)) | note, strict=True)
    with telemetry() as kept, kept.tracer.start_as_current_span("request") as request:
        result = getattr(fast, entry)(QUESTION)
        assert result == "ok" if entry == "invoke" else list(result) == ["ok"]
        assert trace.get_current_span() is request
    assert set(seen) == {request.get_span_context().span_id} and len(seen) >= 3
    assert attributes(kept.calls[0])["fineflow.ahead"] is True


def test_nothing_of_the_content_is_told() -> None:
    secret = "swordfish"
    model = FakeChat(default=f"answer {secret}")
    failing = FakeChat(answers=lambda _: RuntimeError(secret))
    with telemetry() as kept:
        for last in (model, failing):
            fast = fineflow.optimize(app(model=model, last=last), strict=True)
            try:
                assert secret in fast.invoke({"question": secret})
            except RuntimeError:
                assert last is failing
        told = "".join(span.to_json() for span in kept.spans) + str(kept.metrics())
    assert len(kept.calls) == 2 and "RuntimeError" in told
    assert secret not in told


@pytest.mark.parametrize("sampled", [True, False])
def test_the_callers_sampling_decides(sampled: bool) -> None:
    flags = TraceFlags(TraceFlags.SAMPLED if sampled else TraceFlags.DEFAULT)
    parent = NonRecordingSpan(SpanContext(7, 9, is_remote=True, trace_flags=flags))
    fast = fineflow.optimize(app(), strict=True)
    with telemetry(ParentBased(ALWAYS_OFF)) as kept:
        token = otel_context.attach(set_span_in_context(parent))
        try:
            fast.invoke(QUESTION)
        finally:
            otel_context.detach(token)
        assert len(kept.calls) == sampled and bool(kept.spans) == sampled
        assert {span.context.trace_id for span in kept.spans} == ({7} if sampled else set())
        assert kept.metrics()["fineflow.call.duration"][0].count == 1


def test_suppressed_instrumentation_makes_no_spans() -> None:
    fast = fineflow.optimize(app(), strict=True)
    with telemetry() as kept:
        token = otel_context.attach(otel_context.set_value("suppress_instrumentation", True))
        try:
            fast.invoke(QUESTION)
        finally:
            otel_context.detach(token)
    assert not kept.spans


class Broken(TracerProvider):
    """A provider whose tracer raises."""

    def get_tracer(self, *args: Any, **kwargs: Any) -> Any:
        made = super().get_tracer(*args, **kwargs)
        made.start_span = _raise  # type: ignore[method-assign]
        return made


def _raise(*args: Any, **kwargs: Any) -> Any:
    raise OSError("no collector")


def test_a_fault_of_a_provider_changes_no_call(caplog: pytest.LogCaptureFixture) -> None:
    plain = app()
    fast = fineflow.optimize(plain, strict=True)
    fineflow.telemetry.enable(Broken())
    try:
        with caplog.at_level(logging.WARNING, "fineflow"):
            assert fast.invoke(QUESTION) == plain.invoke(QUESTION)
            assert list(fast.stream(QUESTION)) == list(plain.stream(QUESTION))
            assert asyncio.run(fast.ainvoke(QUESTION)) == "ok"
    finally:
        fineflow.telemetry.disable()
    assert len([record for record in caplog.records if "telemetry failed" in record.message]) == 1


def test_calls_under_way_when_it_is_turned_off_are_not_told() -> None:
    gate = Gate()
    fast = fineflow.optimize(app(0.0, last=FakeChat(gate=gate)), strict=True)
    with telemetry() as kept:
        thread = threading.Thread(target=fast.invoke, args=(QUESTION,))
        thread.start()
        gate.wait_arrived()
        fineflow.telemetry.disable()
        gate.open()
        thread.join()
    assert not kept.spans
    assert not events.listening()
    assert [point.value for point in kept.metrics()["fineflow.calls.running"]] == [0]


def test_turning_it_on_again_replaces_the_providers() -> None:
    fast = fineflow.optimize(app(), strict=True)
    with telemetry() as first, telemetry() as second:
        fast.invoke(QUESTION)
    assert not first.spans and len(second.calls) == 1


def test_branches_and_maps_are_a_tree() -> None:
    each = ChatPromptTemplate.from_template("grade {x}") | FakeChat(prefill=0.01)
    split = RunnableLambda(lambda given: [{"x": word} for word in given["question"].split()])
    both = RunnableParallel(graded=split | each.map(), answer=app())
    fast = fineflow.optimize(both, strict=True)
    with telemetry() as kept:
        fast.invoke({"question": "one two three"})
    (call,) = kept.calls
    (mapped,) = [span for span in kept.below(call) if attributes(span)["fineflow.op"] == "map"]
    graded = kept.below(mapped)
    assert len(graded) == 3 and {attributes(span)["fineflow.op"] for span in graded} == {"decode"}
    for span in graded:
        assert mapped.start_time <= span.start_time <= span.end_time <= mapped.end_time  # type: ignore[operator]


def test_bad_providers_are_refused() -> None:
    wrong: Any = object()
    with pytest.raises(TypeError, match="tracer_provider must be a TracerProvider of OpenTelemetry, not object"):
        fineflow.telemetry.enable(wrong)
    with pytest.raises(TypeError, match="meter_provider must be a MeterProvider"):
        fineflow.telemetry.enable(meter_provider=wrong)


def test_a_long_call_says_how_many_steps_it_leaves_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fineflow.telemetry.otel.MOST", 2)
    fast = fineflow.optimize(app(), strict=True)
    with telemetry() as kept:
        fast.invoke(QUESTION)
    (call,) = kept.calls
    assert len(kept.below(call)) == 2
    assert attributes(call)["fineflow.steps_left_out"] >= 1


def test_functions_have_spans_if_they_take_long() -> None:
    fast = fineflow.optimize(app(), strict=True)
    for least, names in ((0.0, ["call context/lambda.call"]), (60.0, [])):
        with telemetry(functions_from=least) as kept:
            fast.invoke(QUESTION)
        (call,) = kept.calls
        assert [span.name for span in kept.below(call) if attributes(span)["fineflow.op"] == "call"] == names
