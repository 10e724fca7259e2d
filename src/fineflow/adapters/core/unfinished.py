"""Objects that are still being written: whoever reads one waits until the write has ended.

In a session (``fineflow.session``) a write of vectors goes on in a thread of its own while the caller's next statements
run. Until it has ended, the objects that it writes to are *closed*: each temporarily has a subclass of its own class
whose attribute access waits. So code that knows nothing of sessions finds what stock would have written, or gets the
exception that stock's write would have raised. Then each object gets its own class back.

A fork in the code of the session waits, too: the child has no thread that would go on with the write. Where it cannot
wait, objects that are closed in the child raise that they are not complete.

Three kinds of code see through. The write itself, and whatever it calls in its context. Planning, which reads what an
object is made of, never what it contains (``seen_through``). And methods that a closed object has of its own, which
are named when it is closed.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from abc import ABCMeta
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from functools import lru_cache
from typing import Any, cast

from fineflow.runtime.call.query import LeftToStock
from fineflow.runtime.loop.forks import in_forked_children
from fineflow.runtime.loop.runtime_loop import on_engine_loop

_KEY = "_fineflow_unfinished"
_shut: weakref.WeakSet[Unfinished] = weakref.WeakSet()  # writes for which objects are closed
_going: weakref.WeakSet[Unfinished] = weakref.WeakSet()  # writes that have not ended
_ever_shut = False  # the set is asked several times in each call
_writing: ContextVar[Unfinished | None] = ContextVar("fineflow_writing", default=None)
_planning = threading.local()


class Unfinished:
    """A write that goes on in a thread of its own, in a copy of the caller's context.

    what: says what is written, for messages. finished: called in that thread when the write has succeeded, before
    anybody may read. lost: True if stock's caller would not have the objects after a failure, so that each use of them
    raises; otherwise the first use raises, and later ones find what the failed write has left. outcome: of the write.
    """

    def __init__(self, what: str, finished: Callable[[Any], None] = lambda value: None, *, lost: bool = False) -> None:
        self.what = what
        self._finished, self._lost = finished, lost
        self.outcome: Future[Any] = Future()
        self._value: tuple[Any, ...] = ()  # what the write returned, once it has
        self._failure: BaseException | None = None  # what it raised
        self._objects: list[tuple[Any, type]] = []
        self._raised = False  # True once somebody got the error
        self._lock = threading.RLock()

    # Writing.

    def start(self, write: Callable[[], Any]) -> None:
        """Starts the write."""
        context = copy_context()
        context.run(_writing.set, self)
        _going.add(self)

        def run() -> None:
            context.run(self._write, write)

        try:
            threading.Thread(target=run, name=f"fineflow {self.what}", daemon=True).start()
        except RuntimeError:  # the system has no more threads
            run()

    def close(self, obj: Any, own: Mapping[str, Any] | None = None, free: Iterable[str] = ()) -> bool:
        """Closes an object until the write has ended. Returns False if it has ended, or if the object cannot be closed.

        own: methods that it has meanwhile, which see through it. free: attributes that everybody may read.
        """
        global _ever_shut
        kind: Any = type(obj)
        with self._lock:
            if self.outcome.done() or not hasattr(kind, "__dict__") or _is_closed(kind):
                return False
            try:
                made = _closed_class(kind, tuple((own or {}).items()), frozenset(free))
                vars(obj)[_KEY] = self
                object.__setattr__(obj, "__class__", made)
            except TypeError:  # its class has slots, say
                getattr(obj, "__dict__", {}).pop(_KEY, None)
                return False
            self._objects.append((obj, kind))
            _ever_shut = True
            _shut.add(self)
            return True

    def _write(self, write: Callable[[], Any]) -> None:
        try:
            value = write()
            self._finished(value)
        except BaseException as error:
            self._failure = error
        else:
            self._value = (value,)
        self._settle()
        _going.discard(self)

    def _settle(self) -> None:
        with self._lock:
            if self._failure is not None:
                self.outcome.set_exception(self._failure)
            else:
                self._open()
                self.outcome.set_result(*self._value)

    def left_behind(self) -> None:
        """Ends the write in a forked child, in which it does not go on."""
        self._lock, self.outcome = threading.RLock(), Future()  # another thread may have held them
        if self._failure is None and not self._value:
            self._failure = RuntimeError(
                f"{self.what} had not ended when the process forked, so it is not complete in this child"
            )
        self._settle()

    def _open(self) -> None:
        for obj, kind in self._objects:
            object.__setattr__(obj, "__class__", kind)
            vars(obj).pop(_KEY, None)
        self._objects.clear()
        _shut.discard(self)

    # Waiting.

    @property
    def shut(self) -> bool:
        """True as long as objects are closed for it."""
        return self in _shut

    def done(self) -> bool:
        """Returns True if the write has ended."""
        return self.outcome.done()

    def wait(self) -> Any:
        """Waits for the end of the write, from a thread, and returns its value. Raises what the write raised."""
        error = self.outcome.exception()
        if error is None:
            return self.outcome.result()
        self._tell()
        raise error

    async def ended(self) -> None:
        """Waits for the end of the write, from any event loop. Raises nothing."""
        if self.outcome.done():
            return
        loop = asyncio.get_running_loop()
        there: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not there.done():
                there.set_result(None)

        def ended(_: object) -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(wake)

        self.outcome.add_done_callback(ended)
        await there

    def failed(self) -> bool:
        """Returns True if the write has ended with an error."""
        return self.outcome.done() and self.outcome.exception() is not None

    def untold(self) -> BaseException | None:
        """Waits for the end of the write, and returns its error if nobody has got it yet."""
        error = self.outcome.exception()
        if error is None or self._raised:
            return None
        self._tell()
        return error

    def _tell(self) -> None:
        with self._lock:
            self._raised = True
            if not self._lost:
                self._open()


def _is_closed(kind: type) -> bool:
    return _KEY in vars(kind)


def _read(obj: Any) -> None:
    """Returns when a closed object may be read."""
    write = unfinished(obj)
    if write is None or seeing() or _writing.get() is write:
        return
    if on_engine_loop() and not write.done():  # that loop may not wait, and reads no component of the user's
        raise LeftToStock(f"{write.what} has not ended")
    write.wait()


@lru_cache(maxsize=256)
def _closed_class(kind: Any, own: tuple[tuple[str, Any], ...], free: frozenset[str]) -> type:
    """Returns the subclass that objects of a class have while they are closed."""
    names = free | {name for name, _ in own}

    def read(self: Any, name: str) -> Any:
        if name == "__class__":
            return kind
        if name in names:
            with seen_through():  # a property reads more
                return kind.__getattribute__(self, name)
        _read(self)
        return kind.__getattribute__(self, name)

    def write(self: Any, name: str, value: Any) -> None:
        _read(self)
        kind.__setattr__(self, name, value)

    def delete(self: Any, name: str) -> None:
        _read(self)
        kind.__delattr__(self, name)

    def reduce(self: Any, protocol: Any) -> Any:
        _read(self)
        function, given, *state = kind.__reduce_ex__(self, protocol)
        return (function, tuple(kind if each is made else each for each in given), *state)

    methods = {"__getattribute__": read, "__setattr__": write, "__delattr__": delete, "__reduce_ex__": reduce}
    shown = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__, _KEY: True}
    new = cast(Any, ABCMeta.__new__ if isinstance(kind, ABCMeta) else type.__new__)
    made: type = new(type(kind), kind.__name__, (kind,), {**methods, **shown, **dict(own)})
    return made


# What optimized calls do.


def some() -> bool:
    """Returns True if an object is closed."""
    return _ever_shut and len(_shut) > 0


def unfinished(obj: Any) -> Unfinished | None:
    """Returns the write that an object is closed for; None for others. Reads no attribute of it."""
    if not _is_closed(type(obj)):
        return None
    found: Unfinished | None = object.__getattribute__(obj, "__dict__").get(_KEY)
    return found if found is not None and found.shut else None


def writing() -> bool:
    """Returns True in what a write runs."""
    return _writing.get() is not None


def seeing() -> bool:
    """Returns True inside a block of ``seen_through``."""
    return getattr(_planning, "depth", 0) > 0


@contextmanager
def seen_through() -> Iterator[None]:
    """Lets the code of the block, in this thread, read what closed objects are made of."""
    _planning.depth = getattr(_planning, "depth", 0) + 1
    try:
        yield
    finally:
        _planning.depth -= 1


# Forks.


def under_way() -> list[Unfinished]:
    """Returns the writes that have not ended."""
    return list(_going)


@in_forked_children
def _in_child() -> None:
    for write in under_way():
        write.left_behind()
    _going.clear()
