"""Runs a random agent by stock and optimized, in virtual time, and says what differs."""

from __future__ import annotations

import asyncio
import re
import sys
import types
import warnings
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

import fuzz_agent_world
from benchmarks.peers.plain import plain
from fuzz_agent_world import ASKED, Step, World
from fuzz_compare import Difference, compiled
from langgraph.types import Command

import fineflow
from fineflow import declare
from fineflow.testing import virtual, virtual_threads
from fineflow.testing.leaks import left
from fineflow.testing.recording import AsyncRecordingHandler, RecordingHandler, run_tree

COMPARED = ("error", "value", "chunks", "tree", "history", "effects", "requests")
AGAIN = "read again"  # no failure either: of an agent beside others, one of which has written something since
IN_VAIN = "in vain"  # a kind that is no failure: calls that the model has written, and stock has not made
_LATER = 60.0  # seconds, more than any tool takes
_STATES = 8  # of the history of a thread that are compared, the last ones
_SHOWN = 300  # characters of what differs
_AGAIN = 3  # runs of stock that say what varies in it
_ROUNDS = 20  # of the event loop, in which what has been cancelled ends


@dataclass
class Seen:
    """What is seen of one step.

    ended: it was cancelled, or ran out of time. stopped: it has failed, or has been interrupted. raced: so, while other
    threads ran, tools that search, or another run of the agent; how far these got is open in stock, too. beside: so was
    another run of the agent. numbered: it is not open which of several graphs that one node calls is the first, which
    LangGraph numbers.
    """

    value: str = ""
    error: str = ""
    chunks: list[str] = field(default_factory=list)
    tree: str = ""
    history: list[str] = field(default_factory=list)
    calls: Counter[str] = field(default_factory=Counter)
    effects: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    searches: Counter[str] = field(default_factory=Counter)
    left: str = ""
    wrong: list[str] = field(default_factory=list)
    written: Counter[str] = field(default_factory=Counter)
    ended: bool = False
    stopped: bool = False
    raced: bool = False
    beside: bool = False
    numbered: bool = True
    handler: Any = None

    def look(self) -> None:
        """Takes the tree of runs as it is now: again, when what stock has left behind has ended."""
        if self.handler is not None:
            tree = text_of(run_tree(self.handler))
            self.tree = tree if self.numbered else re.sub(r"\|\d+(?=\|)", "", tree)

    def offered(self, kind: str, each: str) -> int:
        """Returns how often the model has written a call, or has written one about the topic of a search."""
        if kind == "calls":
            return self.written[each]
        return sum(count for call, count in self.written.items() if call.partition(" ")[2] == each)


def _noting(world: World, serialized: Any, named: Any) -> None:
    topic = (named.get("inputs") or {}).get("topic")
    world.started[serialized["name"], str(topic)] += 1


class Handler(RecordingHandler):
    """Tells the world which calls of tools stock has begun."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def on_tool_start(self, serialized: Any, *args: Any, **named: Any) -> None:
        _noting(self._world, serialized, named)
        super().on_tool_start(serialized, *args, **named)


class AsyncHandler(AsyncRecordingHandler):
    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    async def on_tool_start(self, serialized: Any, *args: Any, **named: Any) -> None:
        _noting(self._world, serialized, named)
        await super().on_tool_start(serialized, *args, **named)


def made(code: types.CodeType) -> tuple[Any, World, bool]:
    """Runs the code of a program: its agent, the world, and whether it runs by sync entry points."""
    world = World()
    module = types.ModuleType("program")
    sys.modules["program"] = module
    names = module.__dict__
    names["w"] = world
    declare._trusting[:] = []
    fineflow.trust_tools(lambda tool: fuzz_agent_world.trusted(tool.name))
    exec(code, names)
    world.live = not names["THREADS"] and not world.retrievers  # searches that start early change who is first
    return names["app"], world, names["SYNC"]


def observed(app: Any, world: World, sync: bool, *, optimized: bool) -> list[Seen]:
    """Runs an agent on one side: what is seen of each step."""
    world.reset(optimized=optimized)
    _forget(app)
    ran = fineflow.optimize(app, strict=True) if optimized else app
    found: list[Seen] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if sync:
            virtual_threads.run(lambda: found.extend(_step(ran, world, step) for step in world.steps))
        else:
            virtual.run(_steps(ran, world, found))
    found[-1].left += str(left(objects=False) or "") + (f" {world.running} tools run" if world.running else "")
    return found


def _forget(app: Any) -> None:
    """Empties the checkpoints and the store of an agent."""
    if app.checkpointer is not None:
        for part in (app.checkpointer.storage, app.checkpointer.writes, app.checkpointer.blobs):
            part.clear()
    if app.store is not None:
        app.store._data.clear()


async def _steps(app: Any, world: World, found: list[Seen]) -> None:
    for step in world.steps:
        before = asyncio.all_tasks()
        found.append(await _astep(app, world, step))
        for _ in range(_ROUNDS):
            if asyncio.all_tasks() <= before:
                break
            await asyncio.sleep(0)
        else:
            await asyncio.sleep(_LATER)  # stock leaves calls of tools, too, which end by and by
            found[-1].look()
        names = (getattr(task.get_coro(), "__qualname__", "?") for task in asyncio.all_tasks() - before)
        found[-1].left = " ".join(sorted(names))


def _asked(app: Any, world: World, step: Step, handler: Any) -> tuple[Any, dict[str, Any], str] | None:
    """Returns the input, the config and the method of a step; None if there is nothing to go on with."""
    given, thread = step.settings, {"thread_id": step.settings.get("thread", "1"), "user": "me"}
    config: dict[str, Any] = {"configurable": thread, "recursion_limit": 30}
    config |= {"callbacks": [handler]} if handler is not None else {}
    config |= {"max_concurrency": given["max_concurrency"]} if "max_concurrency" in given else {}
    entry = given.get("entry", "invoke")
    if step.kind == "ask":
        return {"messages": [("user", given["text"])]}, config, entry
    if step.kind == "fork":
        states = list(app.get_state_history({"configurable": thread}))
        if len(states) <= given["back"]:
            return None
        return None, config | {"configurable": {**thread, **states[given["back"]].config["configurable"]}}, entry
    pending = app.get_state({"configurable": thread}).interrupts
    if not pending:
        return None
    return Command(resume={each.id: _answer(each.value, given["value"]) for each in pending}), config, entry


def _answer(value: Any, said: str) -> Any:
    if not isinstance(value, dict) or "action_requests" not in value:
        return said
    kind = "reject" if said == "reject" else "approve"
    return {"decisions": [{"type": kind} for _ in value["action_requests"]]}


class _Noted:
    """Notes what happens during a step."""

    def __init__(self, world: World, step: Step, kind: Callable[[World], Any]) -> None:
        self.world, self.seen = world, Seen()
        self.handler = kind(world) if step.settings.get("handler", True) else None
        world.watched, world.at_once = self.handler is not None, step.settings.get("entry") == "batch"
        world.begun.clear()
        world.started.clear()
        self._calls, self._searches, self._written = Counter(world.calls), world.searched(), Counter(world.written)
        self._effects, self._requests, self._wrong = len(world.effects), len(world.requests), len(world.wrong)

    def over(self, app: Any, step: Step) -> Seen:
        seen, world = self.seen, self.world
        seen.calls, seen.searches = world.calls - self._calls, world.searched() - self._searches
        seen.written = world.written - self._written
        seen.effects, seen.wrong = _ordered(world, world.effects[self._effects :]), world.wrong[self._wrong :]
        seen.requests = sorted(world.requests[self._requests :])
        seen.handler, seen.numbered = None if seen.ended else self.handler, world.live
        seen.look()
        if getattr(app, "checkpointer", None) is not None and not seen.ended:
            config: Any = {"configurable": {"thread_id": step.settings.get("thread", "1")}}
            seen.stopped = bool(app.get_state(config).interrupts)
            seen.history = [text_of(each) for each in islice(app.get_state_history(config), _STATES)]
        seen.stopped = seen.stopped or bool(seen.error)
        seen.beside = world.at_once
        seen.raced = seen.stopped and (world.at_once or not world.live)
        return seen


def _ordered(world: World, effects: list[str]) -> list[str]:
    """Returns effects in their order; those of threads, and behind searches, between two requests in any."""
    if world.at_once:
        return sorted(effects)
    if world.live:
        return effects
    turns: list[list[str]] = [[]]
    for each in effects:
        turns[-1].append(each)
        if each == ASKED:
            turns.append([])
    return [each for turn in turns for each in sorted(turn)]


def _step(app: Any, world: World, step: Step) -> Seen:
    noted = _Noted(world, step, Handler)
    asked = _asked(app, world, step, noted.handler)
    if asked is None:
        return noted.seen
    (value, config, entry), seen = asked, noted.seen
    try:
        if "timeout" in step.settings:
            app, seen.ended = app.with_config({}) if not world.optimized else app, True
        if entry == "stream":
            seen.chunks = _chunks(list(app.stream(value, config, stream_mode=step.settings.get("mode"))), step)
        elif entry == "batch" and step.kind == "ask":
            seen.value = text_of(app.batch([value, value], [config, _other(config)]))
        else:
            seen.value = text_of(app.invoke(value, config))
    except Exception as error:
        seen.error = text_of(error)
    return noted.over(app, step)


async def _astep(app: Any, world: World, step: Step) -> Seen:
    noted = _Noted(world, step, AsyncHandler)
    asked = _asked(app, world, step, noted.handler)
    if asked is None:
        return noted.seen
    (value, config, entry), seen = asked, noted.seen
    call: Awaitable[Any]
    if entry == "stream":
        call = _read(app.astream(value, config, stream_mode=step.settings.get("mode")))
    elif entry == "events":
        call = _read(app.astream_events(value, config, version="v2"))
    elif entry == "batch" and step.kind == "ask":
        call = app.abatch([value, value], [config, _other(config)])
    else:
        call = app.ainvoke(value, config)
    try:
        found = await _ending(call, step, seen)
        if entry in ("stream", "events"):
            seen.chunks = _chunks(found, step)
        else:
            seen.value = text_of(found)
    except Exception as error:
        seen.error = text_of(error)
    except asyncio.CancelledError:
        seen.error = "cancelled"
    return noted.over(app, step)


async def _ending(call: Awaitable[Any], step: Step, seen: Seen) -> Any:
    """Awaits a call, which is cancelled if the step says so."""
    task = asyncio.ensure_future(call)
    if (seconds := step.settings.get("timeout")) is not None:
        seen.ended = True
        return await asyncio.wait_for(task, seconds)
    if (seconds := step.settings.get("cancel")) is not None:
        seen.ended = True
        asyncio.get_running_loop().call_later(seconds, task.cancel)
    return await task


async def _read(chunks: Any) -> list[Any]:
    return [each async for each in chunks]


def _other(config: dict[str, Any]) -> dict[str, Any]:
    return config | {"configurable": {**config["configurable"], "thread_id": "other"}}


def _chunks(found: list[Any], step: Step) -> Any:
    """Returns chunks in comparable form; where tasks run at the same time, their order is open in stock, too."""
    if step.settings.get("entry") == "events":
        found = [{key: part for key, part in each.items() if key not in ("run_id", "parent_ids")} for each in found]
    if step.settings.get("mode") == "values":
        return list(map(text_of, found))
    return sorted(map(text_of, found))


def text_of(value: Any) -> str:
    """Returns a value as text, without what is new in every run: ids, times and addresses.

    A message has its id when it is first reduced, which another task may be late to see. LangGraph cancels what is left
    twice, the second time with a message: which one counts depends on how many tasks wait for each other.
    """
    text = str(plain(value)).replace("'id': None", "'id': 'ID'")
    return text.replace("'CancelledError', 'message': '<object object>'", "'CancelledError', 'message': ''")


def compared(source: str, name: str = "<program>") -> tuple[list[Difference], int]:
    """Returns what differs, and how many calls of tools began early. What stock itself varies in does not differ."""
    app, world, sync = made(compiled(source, name))
    stock = observed(app, world, sync, optimized=False)
    mine = observed(app, world, sync, optimized=True)
    early, found = world.before_stock.total(), differences(stock, mine)
    if any(each.kind != IN_VAIN for each in found):
        varying = set[str]()
        for _ in range(_AGAIN):
            again = observed(app, world, sync, optimized=False)
            varying |= {each.kind for each in differences(stock, again) + differences(again, stock)}
        found = [each for each in found if each.kind not in varying]
        if found:  # which of two threads is first, or of two calls that take no time
            mine = observed(app, world, sync, optimized=True)
            varying |= {each.kind for each in found} - {each.kind for each in differences(stock, mine)}
            found = [each for each in found if each.kind not in varying]
        if varying and not found:
            found = [Difference("dropped", 0, ", ".join(sorted(varying)))]
    return found, early


def differences(stock: list[Seen], mine: list[Seen]) -> list[Difference]:
    """Returns what differs between the steps of two sides: of the first step in which something does."""
    broken = False
    for number, (one, other) in enumerate(zip(stock, mine, strict=True)):
        found: list[Difference] = []
        note = partial(_note, found, number)
        if other.wrong:
            note("early", one.wrong, other.wrong)
        if Counter(other.left.split()) - Counter(one.left.split()):
            note("left", one.left, other.left)
        if one.ended or other.ended or broken:
            if found:
                return found
            continue
        if one.raced and one.error == other.error:
            return found
        failed = bool(one.error) and one.error == other.error  # the rest of the run tree is a matter of time
        # A tool failed beside others, in an agent of a tool that took it.
        cut = "CancelledError" in repr((one.tree, one.chunks))
        for kind in ("error", "effects") if failed else COMPARED:
            first, second = getattr(one, kind), getattr(other, kind)
            if cut and kind in ("tree", "chunks"):
                continue
            if kind == "chunks" and one.stopped:
                second = _without_sooner(first, second)
            if first != second:
                note(kind, *_apart(first, second))
        for kind in ("calls", "searches"):
            first, second = getattr(one, kind), getattr(other, kind)
            more, fewer = second - first, first - second
            dropped = Counter({each: most for each in more if (most := other.offered(kind, each) - first[each]) > 0})
            if fewer:
                note(f"missing {kind}", dict(fewer), {})
            if more - dropped:
                reads = "[tu]" if other.beside else "u"  # what is declared to write may have done so in the other run
                again = kind == "calls" and all(
                    re.match(rf"(mcp_reads_)?{reads}\d ", each) and first[each] for each in more
                )
                note(AGAIN if again and not found else f"extra {kind}", {}, dict(more - dropped))
            elif more and not found:
                note(IN_VAIN, {}, dict(more))
        if found:
            return found  # what comes later follows from it
        broken = failed  # how far the calls beside a failure have got decides what is called when it goes on
    return []


def _without_sooner(one: list[str], other: list[str]) -> list[str]:
    """Leaves out ends of tools that are told beside an interrupt: in stock these tools end when the stream is over."""
    more = Counter(each for each in (Counter(other) - Counter(one)).elements() if "'event': 'on_tool_end'" in each)
    return sorted((Counter(other) - more).elements()) if more else other


def _note(found: list[Difference], number: int, kind: str, one: Any, other: Any) -> None:
    found.append(Difference(kind, number, f"stock    {one!r}\nfineflow {other!r}"))


def _apart(one: Any, other: Any) -> tuple[Any, Any]:
    """Returns the parts of two values in which they differ."""
    if isinstance(one, list) and isinstance(other, list):
        first, second = Counter(map(repr, one)), Counter(map(repr, other))
        less, more = list((first - second).elements()), list((second - first).elements())
        if not less or not more or max(map(len, (*less, *more))) < _SHOWN:
            return less or [each[:_SHOWN] for each in map(repr, one)], more
        one, other = less[0], more[0]
    one, other = (each if isinstance(each, str) else repr(each) for each in (one, other))
    start = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), 0)
    return one[max(start - _SHOWN // 2, 0) : start + _SHOWN], other[max(start - _SHOWN // 2, 0) : start + _SHOWN]
