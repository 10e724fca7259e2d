"""Verification of calls: one that was chosen is run again on stock when it has ended, and the answers are compared.

Only calls that may be repeated: no step writes, and user code does no more than call components that read. The
repetition runs in a thread of its own, on copies of the call's arguments, in a copy of the caller's context in which
callbacks and tracers are silent. It uses stock's sync methods, also for async calls: clients are bound to event loops,
and the caller's loop may be busy, or gone.
"""

from __future__ import annotations

import contextvars
import copy
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

from fineflow.adapters.core.claiming import under_way
from fineflow.adapters.core.framework import Framework
from fineflow.adapters.core.invocation import Invocation, Unrepeatable
from fineflow.adapters.core.plan import Plan
from fineflow.adapters.core.repeatable import Repeatability
from fineflow.errors import FineflowError
from fineflow.ir.text import name_of
from fineflow.runtime.events import now
from fineflow.runtime.queues import request_context
from fineflow.runtime.queues.admission import log
from fineflow.runtime.reruns import DIFFERENT, EQUAL, FULL, UNSTEADY, ending, repeating, reruns
from fineflow.verification.answers import Answer, Incomparable, differences
from fineflow.verification.settings import Difference, Verify

if TYPE_CHECKING:
    from fineflow.adapters.core.proxy import Planned

_LAST = -100  # priority at engines: other calls go first
_CHUNKS = 10_000  # of a stream that are kept
_SAID = 256  # sentences that are remembered as logged
_LEFT = "it was cancelled, or its stream not read to the end"

_said: set[str] = set()


def chosen(planned: Planned, plan: Plan, invocation: Invocation) -> Sampled | None:
    """Returns the call if it is to be verified. Raises nothing: a fault leaves the call unverified."""
    settings = planned._self_options.verify
    if not isinstance(settings, Verify) or invocation.chosen or under_way.get() is not None or not settings.due():
        return None
    invocation.chosen = True
    try:
        found = planned._self_verdict(plan, settings)
        if found.refusal:
            reruns().skip(found.refusal)
            _say_once(f"calls of {name_of(planned.__wrapped__)} are not verified: {found.refusal}")
        elif not reruns().room(settings.waiting):
            reruns().skip(FULL)
        else:
            return Sampled(planned, plan, invocation, settings, found)
    except Unrepeatable as why:
        reruns().skip(str(why))
    except Exception as error:
        reruns().failed(error)
    return None


def _say_once(text: str) -> None:
    if text not in _said and len(_said) < _SAID:
        _said.add(text)
        log.warning(text)


class Sampled:
    """A call that is verified: copies of its arguments, made before it begins, then its answer, then stock's."""

    def __init__(
        self, planned: Planned, plan: Plan, invocation: Invocation, settings: Verify, found: Repeatability
    ) -> None:
        self._obj = planned.__wrapped__
        self._framework = planned._self_framework
        self._snapshot, self._settings, self._found, self._how = plan.snapshot, settings, found, found.how
        self._entry, self._streams = invocation.method, invocation.streaming
        self._repeated, self._again, self._given = invocation.again()
        self._context = contextvars.copy_context()
        self._chunks: list[Any] = []
        self._ours = Answer()
        self._ended = 0.0

    # The call.

    def run(self, call: Callable[[], Any]) -> Any:
        """Makes a sync call."""
        try:
            value = call()
        except BaseException as error:
            self._raised(error)
            raise
        self._returned(value)
        return value

    async def arun(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """Makes an async call."""
        try:
            value = await call()
        except BaseException as error:
            self._raised(error)
            raise
        self._returned(value)
        return value

    def iterate(self, chunks: Generator[Any, None, None]) -> Generator[Any, None, None]:
        """Yields the chunks of a call."""
        try:
            while True:
                try:
                    chunk = next(chunks)
                except StopIteration:
                    break
                except BaseException as error:
                    self._raised(error)
                    raise
                self._keep(chunk)
                try:
                    yield chunk
                except BaseException:
                    reruns().skip(_LEFT)
                    raise
        finally:
            chunks.close()
        self._returned(None)

    async def aiterate(self, chunks: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
        """Does the same as ``iterate``, for an async call."""
        try:
            while True:
                try:
                    chunk = await anext(chunks)
                except StopAsyncIteration:
                    break
                except BaseException as error:
                    self._raised(error)
                    raise
                self._keep(chunk)
                try:
                    yield chunk
                except BaseException:
                    reruns().skip(_LEFT)
                    raise
        finally:
            await chunks.aclose()
        self._returned(None)

    def _keep(self, chunk: Any) -> None:
        if len(self._chunks) <= _CHUNKS:
            with suppress(Exception):  # of a dict that cannot be copied; its reader may take keys out
                chunk = copy.copy(chunk) if isinstance(chunk, dict) else chunk
            self._chunks.append(chunk)

    def _returned(self, value: Any) -> None:
        fields = self._framework.compared
        if self._streams:  # summed in the background
            self._answered(Answer)
        else:
            self._answered(lambda: Answer.of(value, fields))

    def _raised(self, error: BaseException) -> None:
        if not isinstance(error, Exception):
            reruns().skip(_LEFT)
        elif isinstance(error, FineflowError):
            reruns().skip(f"it raised fineflow's own {type(error).__name__}")
        else:
            fields = self._framework.compared
            self._answered(lambda: Answer.raised(error, self._chunks if self._streams else None, fields))

    def _answered(self, answer: Callable[[], Answer]) -> None:
        """Notes the answer before the caller may change it, and has the call run again."""
        try:
            if len(self._chunks) > _CHUNKS:
                raise Incomparable(f"its stream has more than {_CHUNKS:,} chunks")
            self._ours, self._ended = answer(), now()
            reruns().submit(self.repeat, self._settings.waiting)
        except Incomparable as why:
            reruns().skip(str(why))
        except Exception as error:
            reruns().failed(error)

    # Its repetition, in the background.

    def repeat(self) -> str:
        """Runs the call again on stock, compares, and reports a difference. Returns what came of it."""
        try:
            if self._streams and self._ours.error is None:
                self._ours = Answer.streamed(self._chunks, self._framework.compared)
            return self._compare()
        except (Incomparable, Unrepeatable) as why:
            reruns().skip(str(why))
            return ""

    def _compare(self) -> str:
        stock = self._stock()
        seconds = now() - self._ended
        found = differences(stock, self._ours, self._how)
        if not found:
            return "" if ending() else EQUAL
        doubt = self._doubt(stock)
        if ending():
            return ""
        difference = Difference(
            name=type(self._obj).__name__,
            entry=self._entry,
            repeated=self._repeated,
            share=self._settings.share,
            what=tuple(found),
            diff="\n".join(found.values()),
            compared=str(self._how),
            doubt=doubt,
            seconds=seconds,
            given=self._given(),
            optimized=self._ours,
            stock=stock,
        )
        self._report(difference)
        return UNSTEADY if doubt else DIFFERENT

    def _stock(self) -> Answer:
        """Returns what stock answers to the call."""
        return self._context.copy().run(self._answer_of_stock)

    def _answer_of_stock(self) -> Answer:
        unchanged = self._snapshot.holds() or self._snapshot.counted()
        if not (unchanged and self._found.still_holds()):
            raise Unrepeatable("the object was changed before it was run again")
        repeating.set(True)
        request_context.priority.set(_LAST)
        compared = self._framework.compared
        chunks: list[Any] | None = [] if self._streams else None
        with ExitStack() as silent:
            quiet_spans()
            for framework in Framework.made:  # a chain may hold components of another one
                for quiet in framework.silences():
                    silent.enter_context(quiet)
            try:
                value = self._again(self._obj)
                if chunks is not None:
                    for chunk in value:
                        chunks.append(chunk)
                        if len(chunks) > 2 * _CHUNKS:
                            raise Incomparable(f"stock's stream has more than {2 * _CHUNKS:,} chunks")
            except Incomparable:
                raise
            except Exception as error:
                if self._entry != self._repeated and self._framework.async_only(error):
                    raise Unrepeatable("a step can only be called by its async method") from error
                return Answer.raised(error, chunks, compared)
        return Answer.of(value, compared) if chunks is None else Answer.streamed(chunks, compared)

    def _doubt(self, stock: Answer) -> str:
        """Returns why a difference may not be fineflow's: asks stock once more."""
        if not self._snapshot.holds():
            return "numbers in components, such as counters of calls, have changed since"
        if self._found.external and (stock.error is None) != (self._ours.error is None):
            return "requests leave the process, and may have failed in one of the calls only"
        if differences(stock, self._stock(), self._how):
            return "stock answered differently when it was asked again"
        return ""

    def _report(self, difference: Difference) -> None:
        report = self._settings.report
        if report is None:
            (log.info if difference.doubt else log.warning)("%s", difference, extra={"event": "difference"})
            return
        try:
            report(difference)
        except Exception as error:
            log.warning("the report of a difference failed: %s: %s", type(error).__name__, error)


def quiet_spans() -> None:
    """Makes OpenTelemetry's instrumentations skip what runs in the current context, if it is imported.

    Those that do not look see a parent that is not sampled, and are not sampled either.
    """
    context, trace = sys.modules.get("opentelemetry.context"), sys.modules.get("opentelemetry.trace")
    if context is None:
        return
    made = context.get_current()
    names = ("_SUPPRESS_INSTRUMENTATION_KEY", "_SUPPRESS_HTTP_INSTRUMENTATION_KEY")
    keys = [getattr(context, name) for name in names if hasattr(context, name)]
    for key in (*keys, "suppress_instrumentation", "suppress_language_model_instrumentation"):
        made = context.set_value(key, True, made)
    if trace is not None:
        nobody = trace.SpanContext(trace_id=1, span_id=1, is_remote=False, trace_flags=trace.TraceFlags(0))
        made = trace.set_span_in_context(trace.NonRecordingSpan(nobody), made)
    context.attach(made)
