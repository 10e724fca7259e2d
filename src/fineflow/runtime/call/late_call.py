"""A call that is made when something first needs it: most runs of a graph start nothing ahead."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from contextvars import Context, copy_context
from typing import Any

from fineflow.ir import Op
from fineflow.runtime import events
from fineflow.runtime.call import lifecycle
from fineflow.runtime.call.claims import Summary
from fineflow.runtime.call.query import Call
from fineflow.runtime.call.trace import Trace

_making = threading.RLock()  # reentrant: what the collector ends inside may be a call


class LateCall:
    """Makes the ``Call`` of one query, as of the time and in the context in which the query began. Thread-safe.

    prepare: prepares that context, a copy of the caller's, and returns the label and the bound on component calls. The
    others are the call's own. made: the call, once it is made. began: seconds on the clock of ``events.now()``.
    """

    __slots__ = (
        "_context",
        "_entry",
        "_facts",
        "_kernels",
        "_loop",
        "_over",
        "_prepare",
        "_streaming",
        "_sync",
        "began",
        "made",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        kernels: Mapping[Op, Callable[..., Any]],
        entry: str,
        prepare: Callable[[], tuple[str, asyncio.Semaphore | None]],
        *,
        sync: bool,
        streaming: bool,
        facts: Any,
    ) -> None:
        self._loop, self._kernels, self._entry, self._facts = loop, kernels, entry, facts
        self._sync, self._streaming = sync, streaming
        self._prepare: Callable[[], tuple[str, asyncio.Semaphore | None]] | None = prepare
        self._context = copy_context()
        self.made: Call | None = None
        self._over = False
        self.began = events.now()

    def call(self) -> Call:
        """Returns the call; a closed one after the end."""
        with _making:
            if self.made is None:
                label, limit = ("", None) if self._prepare is None else self._context.run(self._prepare)
                self.made = Call(
                    self._loop,
                    self._kernels,
                    self._entry,
                    self._sync,
                    self._context,
                    label,
                    self._streaming,
                    limit,
                    self._facts,
                    began=self.began,
                )
                self._prepare = None
                if self._over:
                    self.made.close()
            return self.made

    def end(self) -> Call | None:
        """Returns the call, for the caller to close; None if it was never made. Nothing starts from now on."""
        with _making:
            self._over = True
            if self.made is None:  # in a task that user code leaves behind this may live for long
                self._prepare, self._context = None, Context()
            return self.made

    def stop(self) -> None:
        """Stops the work ahead: the deadline of the call has passed."""
        call = self.end()
        if call is not None:
            lifecycle.stop(call)

    def summary(self) -> Summary:
        """Returns the figures of a call that was never made."""
        return Summary(trace=Trace(self._entry, self.began, events.now(), ()))
