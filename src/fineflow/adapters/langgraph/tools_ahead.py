"""Calls of tools that start while the model writes: each when the JSON of its arguments is complete.

In a node whose model writes calls for a ``ToolNode`` (``turns``), the pieces of the model's messages are looked at as
they pass by. Only the function of a tool runs ahead. Stock's ``ToolNode`` opens the run, checks the arguments, and
handles errors; its call of the function claims the result if it is for the same call of the model, with arguments that
are equal. A function that looks at the config of its run is left to stock: that run is not there yet.

While tools run, a model on an engine prefills the beginning of its next prompt: the messages so far, with the calls.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from contextvars import Context, ContextVar, copy_context
from functools import partial, wraps
from typing import Any, NamedTuple, cast

from langchain_core.messages import ToolCall
from langchain_core.runnables.config import var_child_runnable_config
from langchain_core.tools import BaseTool, StructuredTool

from fineflow.adapters.core.claiming import Claiming, Usable, never, side, under_way
from fineflow.adapters.inner_calls.entry_wrappers import in_block, wrap_method
from fineflow.adapters.langchain.arguments import frozen
from fineflow.adapters.langchain.run_recorder import Nested, RunRecorder, starts_runs
from fineflow.adapters.langgraph import searches_ahead
from fineflow.adapters.langgraph.beside import around, running
from fineflow.adapters.langgraph.mcp_tools import unread
from fineflow.adapters.langgraph.messages import MessageReader, StreamRequest, reader
from fineflow.adapters.langgraph.tool_runs import Moment, tool_runs_of
from fineflow.adapters.langgraph.turns import Offered, Turns
from fineflow.runtime.call.entry import Entry
from fineflow.runtime.call.gains import Member, SideBySide
from fineflow.runtime.call.written import Version, version
from fineflow.runtime.events import now
from fineflow.runtime.loop.scopes import setting
from fineflow.runtime.loop.workers import in_thread


class Turn:
    """One visit of a node with a model. Starts the calls that the model writes, once each.

    The next visit ends what is left of this one: nodes run one at a time. left: gets a fault of ours.
    """

    def __init__(self, here: Claiming, turns: Turns, left: Callable[[Any, Exception], None]) -> None:
        self._here, self._turns, self._left = here, turns, left
        self.answers = here.shadows.options.stream_answers
        self._around, self._runs = around.get(), tool_runs_of(here)
        self._begun: dict[str, tuple[Offered, Moment]] = {}  # calls that have started, and when; by id
        self._read: dict[str, Version] = {}  # what these read, as they found it
        self._stale: set[str] | None = None  # those that had to find something else, once that is decided
        self._deciding = threading.Lock()
        self._ids = set[str]()
        self.reading = set[str]()  # calls of undeclared tools that are seen to do no more than to read
        self._drops: list[Callable[[], None]] = []
        self.calls = SideBySide(here.call)
        here.call.groups.append(self.calls)
        visits = here.call.memory(_Visits)
        before, visits.last = visits.last, self
        if before is not None:
            before.drop()

    def drop(self) -> None:
        """Ends calls that stock has not made."""
        if self._here.outer is not None:
            self._here.outer.gains(self.calls.saved())
        drops, self._drops = self._drops, []
        for drop in drops:
            drop()

    def fault(self, error: Exception) -> None:
        self._left(self._turns.step, error)

    def begin(self, message: MessageReader, call: ToolCall) -> None:
        """Starts a call, unless an earlier one of the message may change what it reads."""
        name, number = call["name"], str(call["id"])
        offered = self._turns.tools.get(name)
        if offered is None or number in self._ids:
            return
        self._ids.add(number)
        early = self._turns.early(name)
        if early is not None and not (self._here.shadows.enters(type(early.tool)) and install()):
            early = None
        if early is not None and not self._may_start(early, number):
            early = None
        if early is not None and early.searches:
            if self._search(early, message, call):
                self.reading.add(number)
            message.guarded = message.guarded or (early.guards and number not in self.reading)
            return
        message.written |= offered.writes
        message.guarded = message.guarded or offered.guards
        if early is None or (early.reads and (message.guarded or early.waits_for(message.written))):
            return
        tool: Any = early.tool
        if starts_runs(tool) or (given := self._given(tool, call)) is None:
            return
        read = version(tool)
        if read.keys is None:  # it would be called once more, as nobody could tell what it reads
            return
        self._read[number] = read
        work = partial(_run, tool, given, copy_context(), self.calls.member(number), sync=self._here.call.sync)
        self._drops.append(
            self._here.begin_early(_leaf(tool), ([_key(number, given[0], given[1], unread(tool))], work))
        )

    @property
    def _alone(self) -> bool:
        """True if nothing else of the outermost call runs at the same time."""
        return self._around is None or self._around.alone

    @property
    def _by_tools(self) -> bool:
        return self._around is None or self._around.by_tools

    def _may_start(self, tool: Offered, number: str) -> bool:
        """Returns True if nothing that runs now may change what a call reads.

        Beside others only a declared tool may: runs of an undeclared one may change what the next one reads.
        """
        self._begun[number] = tool, self._runs.now
        if self._waits_for_others(tool) and self._runs.others_go_on():
            return False
        return self._alone or (self._by_tools and not (tool.guards or self._runs.changing(tool)))

    def holds(self, number: str) -> bool:
        """Returns True if nothing has changed what a call reads, since it has started."""
        if number not in self._begun:
            return True
        if self._stale is not None and number in self._stale:
            return False
        tool, since = self._begun[number]
        if self._waits_for_others(tool) and self._runs.others_since(since, self):
            return False
        return self._alone or (self._by_tools and not self._runs.changed(tool, since, self))

    def decide(self) -> None:
        """Looks what has been written since calls started, as stock begins the first tool of the message.

        What tools of the message write counts no more: a call that reads it starts early only where it comes first.
        """
        with self._deciding:
            if self._stale is None:
                self._stale = {number for number, read in self._read.items() if not read.holds()}

    def _waits_for_others(self, tool: Offered) -> bool:
        """Returns True if what the user's code starts may change what a tool reads."""
        return bool(tool.reads) or tool.guards

    def _given(self, tool: Any, call: ToolCall) -> Any:
        """Returns the arguments with which stock will call a tool's function; None if it has to be left to stock."""
        if tool.func is None and self._here.call.sync:
            return None
        try:
            return tool._to_args_and_kwargs(dict(call["args"]), str(call["id"]))
        except Exception:  # stock raises it, or lets the tool answer it
            return None

    def _search(self, early: Offered, message: MessageReader, call: ToolCall) -> bool:
        """Starts component calls of a call, as above. Returns True if it is known to do no more than to read."""
        waits = bool(message.written) if early.guards else early.waits_for(message.written)
        if (given := self._given(early.tool, call)) is None:
            return False
        tool, alone = cast(Any, early.tool), message.guarded or waits
        only_reads, drop = searches_ahead.start(self._here, tool, given, str(call["id"]), alone=alone)
        self._drops.append(drop)
        return only_reads

    def written(self, asked: StreamRequest, message: MessageReader) -> None:
        """Prefills the beginning of the next prompt, if the engine can and it is long enough to pay."""
        engine = asked.on_engine and self._turns.trusted
        if not engine or not message.calls or any(call["name"] not in self._turns.tools for call in message.calls):
            return
        here, begun = self._here, list[asyncio.Task[None]]()
        here.post(lambda: begun.append(here.call.task(asked.warm(message), 0, 0.0, "next prompt", None)))
        self._drops.append(lambda: here.post(lambda: [task.cancel() for task in begun]))


class _Visits:
    """Of one call: the last visit of a node with a model."""

    def __init__(self) -> None:
        self.last: Turn | None = None


class _FailedAhead(NamedTuple):
    """An exception that a function raised ahead of stock, and the seconds that it took.

    Stock gets it as late as if it had called the function itself: a failure ends the calls of tools beside it, and some
    of them may be about to write.
    """

    error: Exception
    seconds: float

    def left(self, since: float) -> float:
        """Returns the seconds for which stock still has to wait. since: when it has called the function."""
        return max(0.0, self.seconds - (now() - since))


class _Left(Exception):
    """The function has to be called by stock, in its place."""


async def _run(tool: Any, given: Any, context: Context, member: Member, *, sync: bool) -> list[Any]:
    """Calls the function of a tool in the context of the node's visit.

    Returns a list with its result, or with what it raised as ``_FailedAhead``.
    """
    member.began = now()
    done = await asyncio.get_running_loop().create_task(_called(tool, given, sync=sync), context=context)
    member.ended = now()
    return done


async def _called(tool: Any, given: Any, *, sync: bool) -> list[Any]:
    recorder, (positional, named) = RunRecorder(tool), given
    recorder.silence()
    under_way.set(None)
    reader.set(None)
    var_child_runnable_config.set(cast(Any, _Config(recorder)))
    run = _Run(recorder)  # LangSmith refers to it weakly
    if (langsmith := sys.modules.get("langsmith.run_helpers")) is not None:
        langsmith._set_tracing_context({"parent": run})  # as langchain-core 1.8.3 does
    began, before = now(), frozen(given)
    try:
        if tool.coroutine is not None and not sync:
            value = await tool.coroutine(*positional, **named)
        else:
            value = await in_thread(lambda: tool.func(*positional, **named))
    except Nested as error:
        raise _Left("it starts a run, or asks for the task around it") from error
    except (SystemExit, KeyboardInterrupt) as error:
        raise _Left("it ends the process") from error
    except Exception as error:
        value = _FailedAhead(error, now() - began)
    if frozen(given) != before:  # stock's are part of the message
        with suppress(Nested):
            recorder.taint()
    if recorder.tainted:
        raise _Left("it starts a run, asks for the task around it, or changes its arguments")
    return [value]


class _Config(dict[str, Any]):
    """Stands for the config of a run that is not there yet: a function that looks at it is left to stock."""

    def __init__(self, recorder: RunRecorder) -> None:
        super().__init__(callbacks=None)
        self._recorder = recorder

    def __getitem__(self, key: str) -> Any:
        self._recorder.taint()
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self._recorder.taint()
        return super().get(key, default)

    def __iter__(self) -> Iterator[str]:
        self._recorder.taint()
        return super().__iter__()

    def keys(self) -> Any:
        self._recorder.taint()
        return super().keys()

    def items(self) -> Any:
        self._recorder.taint()
        return super().items()

    def copy(self) -> dict[str, Any]:
        self._recorder.taint()
        return super().copy()


class _Run:
    """Stands for LangSmith's run of the tool, which is not there yet either: what a tool traces belongs to it."""

    def __init__(self, recorder: RunRecorder) -> None:
        object.__setattr__(self, "_recorder", recorder)

    def __getattribute__(self, name: str) -> Any:
        object.__getattribute__(self, "_recorder").taint()

    def __bool__(self) -> bool:
        object.__getattribute__(self, "_recorder").taint()
        return True


def _usable(entry: Entry) -> bool:
    return not isinstance(entry.error, _Left)


def _leaf(tool: Any) -> str:
    return f"tool {id(tool):x}"


def _key(number: str, args: Any, named: Any, unread: frozenset[str]) -> Any:
    """Returns what a call of a tool's function is claimed by: the call's id, and arguments of equal types, too.

    unread: names of arguments that the function does not read.
    """
    named = {name: value for name, value in named.items() if name not in unread}
    return number, repr((args, named)), args, named


asked: ContextVar[str] = ContextVar("fineflow_tool_call", default="")
"""The id of the call for which a tool runs here."""


@contextmanager
def _asked_for(stock: Any, tool: Any, name: str, named: Mapping[str, Any]) -> Iterator[Any]:
    """Notes which call of the model a tool runs for, and when. The last visit of a model has written it."""
    here, number = under_way.get(), named.get("tool_call_id")
    turn = _turn_of(here) if number else None
    member = turn.calls.member(str(number)) if turn is not None else None
    if turn is not None:
        turn.decide()
    reads = turn is not None and number in turn.reading
    runs = nullcontext() if here is None else running(here, tool, turn, reads=reads)
    with runs, setting((asked, str(number or "")), (side, member)):
        if member is not None:
            member.asked = now()
        yield stock
        if member is not None:
            member.got = now()


_ASKING = in_block(_asked_for)


def _turn_of(here: Claiming | None) -> Turn | None:
    return here.made.memory(_Visits).last if here is not None and here.made is not None else None


def holds(here: Claiming, number: str) -> bool:
    """Returns False if something may have changed what a call of a tool reads, since it has started."""
    turn = _turn_of(here)
    return turn is None or turn.holds(number)


def _usable_for(here: Claiming, number: str) -> Usable:
    """Returns whether a call of a tool may claim an entry."""
    return _usable if holds(here, number) else never


def install() -> bool:
    """Notes the ids of calls, from now on. Returns False where somebody else's method is in the way."""
    return None not in [wrap_method(BaseTool, name, *_ASKING) for name in ("run", "arun")]


def claiming(here: Claiming, tool: StructuredTool, functions: Mapping[str, Any]) -> dict[str, Any]:
    """Returns functions in place of those of a tool, by attribute, which claim. functions: what they are already."""
    made = dict(functions)
    for name in ("func", "coroutine"):
        own = made.get(name) or tool.__dict__.get(name)
        if own is not None:
            made[name] = (_aclaimed if name == "coroutine" else _claimed)(here, _leaf(tool), own, unread(tool))
    return made


def _claimed(here: Claiming, leaf: str, own: Callable[..., Any], left_out: frozenset[str]) -> Callable[..., Any]:
    @wraps(own)
    def claimed(*args: Any, **named: Any) -> Any:
        began, key = now(), _key(asked.get(), args, named, left_out)
        value = here.claim(leaf, key, partial(own, *args, **named), _usable_for(here, asked.get()))[1]
        if type(value) is _FailedAhead:
            time.sleep(value.left(began))
            raise value.error
        return value

    return claimed


def _aclaimed(here: Claiming, leaf: str, own: Callable[..., Any], left_out: frozenset[str]) -> Callable[..., Any]:
    @wraps(own)
    async def claimed(*args: Any, **named: Any) -> Any:
        began, key = now(), _key(asked.get(), args, named, left_out)
        value = (await here.aclaim(leaf, key, partial(own, *args, **named), _usable_for(here, asked.get())))[1]
        if type(value) is _FailedAhead:
            await asyncio.sleep(value.left(began))
            raise value.error
        return value

    return claimed
