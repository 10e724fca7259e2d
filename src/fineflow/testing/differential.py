"""Same answer: calls a pipeline by every entry point, stock and optimized, and reports the differences.

Stock is LangChain's own code on the original object. ``assert_same(make, input)`` is the whole test for one shape of
pipeline::

    def make():
        log = []
        chain = prompt | FakeChat(answers={"capital": "Paris"}) | RunnableLambda(lambda m: log.append(m.content) or m)
        return chain, log

    def test_chain():
        assert_same(make, {"question": "What is the capital of France?"})
"""

from __future__ import annotations

import asyncio
import difflib
import functools
import site
import sysconfig
import traceback
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, MutableSequence, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from langchain_core.callbacks import BaseCallbackHandler, BaseCallbackManager
from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda

from fineflow.testing import virtual_threads
from fineflow.testing.bounded import bounded
from fineflow.testing.recording import AsyncRecordingHandler, RecordingHandler, RunNode, arrange, run_tree
from fineflow.verification.canonical import as_lines, canonical, chunk_types, concatenated

SYNC = ("invoke", "stream", "batch")
ASYNC = ("ainvoke", "astream", "abatch", "astream_events")
ALL = (*SYNC, *ASYNC)
_MOMENT_SECONDS = 0.5  # in which cancelled tasks end

# Set to "caller" around every observed call: user code of the pipeline under test can record its value.
PROBE: ContextVar[str] = ContextVar("fineflow_probe", default="nobody")

# Configurations to run a shape with, besides none.
CONFIGS: dict[str, RunnableConfig] = {
    "plain": {},
    "tags": {"tags": ["t2", "t1"]},
    "metadata": {"metadata": {"user": "u1", "number": 3}},
    "run_name": {"run_name": "assistant"},
    "one at a time": {"max_concurrency": 1},
    "configurable": {"configurable": {"thread_id": "7", "session": "s"}},
    "recursion_limit": {"recursion_limit": 11},
}

Made = Runnable[Any, Any] | tuple[Runnable[Any, Any], MutableSequence[Any]]


@dataclass
class Observation:
    """Observable results of one call. Every field is comparable and printable.

    value: the returned value, canonical; for streams the concatenation of the chunks, as LangChain adds them. keys: of
    a returned dict, in order. chunk_types: type names of the chunks, per key ("" for chunks that are not dicts).
    chunks: the pieces themselves, per key. started: False if calling for a stream failed, before its first item. error:
    type, text and causes of the exception, with the user functions in its traceback. runs: the callback run tree. log:
    the side effects. probe: the caller's ``PROBE`` after the call. leftover: tasks that the call left in the caller's
    event loop.
    """

    entry: str
    value: Any = None
    keys: list[str] = field(default_factory=list)
    chunk_types: dict[str, list[str]] = field(default_factory=dict)
    chunks: dict[str, list[Any]] = field(default_factory=dict)
    started: bool = True
    error: dict[str, Any] | None = None
    runs: list[RunNode] = field(default_factory=list)
    log: list[Any] = field(default_factory=list)
    probe: str = ""
    leftover: list[str] = field(default_factory=list)


def observe(
    runnable: Any,
    entry: str,
    input: Any,
    config: RunnableConfig | None = None,
    *,
    log: Sequence[Any] = (),
    handler: Literal["sync", "async"] | None = "sync",
    timeout: float = 60.0,
    at_rest: bool = False,
) -> Observation:
    """Calls ``runnable`` by the entry point named ``entry`` and returns what a caller can observe.

    ``input`` of ``batch`` and ``abatch`` is a list of inputs. Async entry points run on an event loop of their own.
    ``handler`` None attaches no callback handler, and ``runs`` stays empty. at_rest: in virtual time, in which a run
    that fails waits until all that can end without it has ended. Raises ValueError for an unknown entry point and
    TimeoutError if the call has not ended after ``timeout`` s.
    """
    if entry not in ALL:
        raise ValueError(f"entry must be one of {', '.join(ALL)}; got {entry!r}")
    seen = Observation(entry)
    recording = RecordingHandler if handler == "sync" else AsyncRecordingHandler
    recorder = None if handler is None else recording(hold=at_rest)
    settings = _with_handler(config, recorder)
    call = functools.partial(bounded, functools.partial(_call, runnable, entry, input, settings, seen), timeout)
    virtual_threads.run(call) if at_rest else call()
    seen.runs = run_tree(recorder) if recorder is not None else []
    seen.log = [canonical(item) for item in log]
    return seen


def assert_same(
    make_runnable: Callable[[], Made],
    input: Any,
    *,
    entries: Iterable[str] = ALL,
    optimize: Callable[..., Any] | None = None,
    config: RunnableConfig | None = None,
    batch: Sequence[Any] | None = None,
    handler: Literal["sync", "async"] | None = "sync",
    exact_chunks: bool = False,
    ordered_log: bool = True,
    **options: Any,
) -> None:
    """Raises AssertionError, with a diff, if the optimized pipeline differs observably from stock by any entry point.

    make_runnable: makes a fresh pipeline, or a pair of it and the list that its functions log side effects to. batch:
    the inputs of ``batch`` and ``abatch`` (default: ``input`` twice). optimize: default ``fineflow.optimize``; gets
    ``options``. exact_chunks: also compares where streams are cut. ordered_log: False compares the side effects as a
    multiset, for pipelines whose stock order is concurrent.
    """
    if not callable(make_runnable):
        raise TypeError(
            "assert_same expects a function that makes the pipeline, because each call gets a fresh one; got "
            f"{type(make_runnable).__name__}: write assert_same(lambda: ..., input)"
        )
    if optimize is None:
        import fineflow

        optimize = fineflow.optimize
    report = []
    for entry in entries:
        given = list(batch if batch is not None else (input, input)) if "batch" in entry else input
        call = functools.partial(_observe_made, make_runnable, entry=entry, input=given, config=config, handler=handler)
        mine = functools.partial(call, functools.partial(optimize, **options))
        # Of equal inputs that fail one is enough: what becomes of the others is not as in stock (docs/effects.md).
        one = {"input": [input]} if "batch" in entry and batch is None else {}
        differing = beyond_races(
            call(),
            mine(),
            (functools.partial(call, **one), functools.partial(mine, **one)),
            exact_chunks=exact_chunks,
            ordered_log=ordered_log,
        )
        report += [f"{entry}: {text}" for text in differing]
    if report:
        raise AssertionError("the optimized pipeline differs from stock\n\n" + "\n\n".join(report))


def differences(
    stock: Observation, optimized: Observation, *, exact_chunks: bool = False, ordered_log: bool = True
) -> list[str]:
    """Returns one text per field that differs: its name and a diff, ``-`` stock and ``+`` optimized."""
    found = []
    for name in (f.name for f in fields(Observation)):
        one, other = getattr(stock, name), getattr(optimized, name)
        if name == "chunks" and not exact_chunks:
            continue
        if name == "log" and not ordered_log:
            one, other = sorted(one, key=repr), sorted(other, key=repr)
        if name == "leftover" and not set(other) - set(one):
            continue
        if one != other:
            forms = as_lines(canonical(one)), as_lines(canonical(other))
            lines = difflib.unified_diff(*forms, "stock", "optimized", lineterm="", n=3)
            found.append("\n".join([f"{name} differs", *lines]))
    return found


def beyond_races(
    stock: Observation,
    optimized: Observation,
    again: tuple[Callable[..., Observation], Callable[..., Observation]],
    *,
    exact_chunks: bool = False,
    ordered_log: bool = True,
) -> list[str]:
    """Returns ``differences``, of calls that fail only those that depend on no race.

    Where a step fails beside others, how far these have come by then depends on which thread is first, in stock as
    well. If calls that fail differ in that alone, what counts is how two calls differ that are observed ``at_rest``
    (on a machine without ``virtual_threads``, nothing does). again: observe a call of stock, and an optimized one.
    """
    compare = functools.partial(differences, exact_chunks=exact_chunks, ordered_log=ordered_log)
    found = compare(stock, optimized)
    if stock.error is None or optimized.error is None:
        return found
    decided = [text for text in found if not text.startswith(_raced(stock.entry))]
    if found and not decided and virtual_threads.available:
        return compare(*(observed(at_rest=True) for observed in again))
    return decided


def _raced(entry: str) -> tuple[str, ...]:
    """Returns the fields that tell how far the steps beside one that fails have come."""
    events = ("value ",) if entry == "astream_events" else ()
    return ("runs ", "leftover ", "log ", *events)


def as_step(func: Callable[[Any], Any], name: str) -> Runnable[Any, Any]:
    """Returns a runnable that calls a function of one argument, so that it can be observed."""
    return RunnableLambda(func, name=name)


def _observe_made(
    make: Callable[[], Made], optimize: Callable[[Any], Any] = lambda made: made, **how: Any
) -> Observation:
    made, log = _made(make())
    return observe(optimize(made), log=log, **how)


def _made(made: Made) -> tuple[Any, Sequence[Any]]:
    return made if isinstance(made, tuple) else (made, ())


def _with_handler(config: RunnableConfig | None, handler: BaseCallbackHandler | None) -> dict[str, Any]:
    settings: dict[str, Any] = dict(config or {})
    callbacks = settings.get("callbacks")
    if handler is not None and isinstance(callbacks, BaseCallbackManager):
        settings["callbacks"] = callbacks.copy()
        settings["callbacks"].add_handler(handler)
    elif handler is not None:
        settings["callbacks"] = [*(callbacks or ()), handler]
    return settings


def _call(runnable: Any, entry: str, input: Any, config: dict[str, Any], seen: Observation) -> None:
    PROBE.set("caller")
    if entry in ASYNC:
        asyncio.run(_acall(runnable, entry, input, config, seen))
        return
    try:
        if entry == "stream":
            chunks: list[Any] = []
            seen.started = False
            try:
                stream = runnable.stream(input, config=config)
                seen.started = True
                for chunk in stream:
                    chunks.append(chunk)
            finally:
                _see_chunks(seen, chunks)
        else:
            _see_value(seen, getattr(runnable, entry)(input, config=config))
    except Exception as error:
        seen.error = _see_error(error)
    seen.probe = PROBE.get()


async def _acall(runnable: Any, entry: str, input: Any, config: dict[str, Any], seen: Observation) -> None:
    before = asyncio.all_tasks()
    try:
        if entry in ("ainvoke", "abatch"):
            _see_value(seen, await getattr(runnable, entry)(input, config=config))
        else:
            await _astream(runnable, entry, input, config, seen)
    except Exception as error:
        seen.error = _see_error(error)
    seen.probe = PROBE.get()
    for _ in range(5):  # cancelled tasks may take a few rounds of the loop to end
        await asyncio.sleep(0)
    # Or a moment, if a thread calls their handlers. What was not cancelled is not waited for: it would do more.
    if cancelled := [task for task in asyncio.all_tasks() - before if task.cancelling()]:
        await asyncio.wait(cancelled, timeout=_MOMENT_SECONDS)
    left = asyncio.all_tasks() - before
    seen.leftover = sorted({getattr(task.get_coro(), "__qualname__", repr(task)) for task in left})


async def _astream(runnable: Any, entry: str, input: Any, config: dict[str, Any], seen: Observation) -> None:
    items: list[Any] = []
    seen.started = False
    stream: AsyncIterator[Any] = (
        runnable.astream_events(input, config=config, version="v2")
        if entry == "astream_events"
        else runnable.astream(input, config=config)
    )
    seen.started = True
    try:
        async for item in stream:
            items.append(item)
    finally:
        if entry == "astream_events":
            seen.value = event_tree(items)
        else:
            _see_chunks(seen, items)


def _see_value(seen: Observation, value: Any) -> None:
    seen.value = canonical(value)
    seen.keys = [str(key) for key in value] if isinstance(value, Mapping) else []


def _see_chunks(seen: Observation, chunks: list[Any]) -> None:
    if not chunks:
        return
    seen.value = canonical(concatenated(chunks))
    for chunk in chunks:
        for key, piece in chunk.items() if isinstance(chunk, Mapping) else [("", chunk)]:
            seen.chunks.setdefault(str(key), []).append(canonical(piece))
    seen.chunk_types = chunk_types(chunks)


def event_tree(events: Sequence[Mapping[str, Any]]) -> list[RunNode]:
    """Returns the events of ``astream_events`` as a run tree; the chunks of one run are concatenated."""
    nodes: dict[str, RunNode] = {}
    parents: dict[str, str | None] = {}
    chunks: dict[str, list[Any]] = {}
    for event in events:
        key, data = event["run_id"], event["data"]
        kind, _, step = event["event"].removeprefix("on_").rpartition("_")
        if key not in nodes:
            tags, metadata = tuple(sorted(event.get("tags", ()))), canonical(event.get("metadata", {}))
            nodes[key] = RunNode(kind, event["name"], tags, metadata)
            parents[key] = (event.get("parent_ids") or [None])[-1]
        node = nodes[key]
        if step == "stream":
            chunks.setdefault(key, []).append(data["chunk"])
            if node.events[-1:] == [event["event"]]:
                continue  # the number of chunks is not compared here
        else:
            node.inputs = canonical(data["input"]) if "input" in data else node.inputs
            node.outputs = canonical(data["output"]) if "output" in data else node.outputs
            node.error = canonical(data["error"]) if "error" in data else node.error
        node.events.append(event["event"])
    for key, pieces in chunks.items():
        nodes[key].tokens = [canonical(concatenated(pieces))]
    return arrange(nodes, parents)


def _see_error(error: BaseException) -> dict[str, Any]:
    causes, cause = [], error.__cause__
    while cause is not None:
        causes.append(canonical(cause))
        cause = cause.__cause__
    frames = [frame.name for frame in traceback.extract_tb(error.__traceback__) if _of_user(frame.filename)]
    return {**canonical(error), "causes": causes, "user frames": frames}


@functools.cache
def _library_folders() -> tuple[Path, ...]:
    paths = sysconfig.get_paths()
    folders = [paths["stdlib"], paths["platstdlib"], *site.getsitepackages(), paths["purelib"], paths["platlib"]]
    return (*(Path(f).resolve() for f in folders), Path(__file__).resolve().parents[1])


def _of_user(filename: str) -> bool:
    if filename.startswith("<"):
        return False
    path = Path(filename).resolve()
    return not any(path.is_relative_to(folder) for folder in _library_folders())
