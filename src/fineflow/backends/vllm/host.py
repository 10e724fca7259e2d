"""A running vLLM: one ``AsyncLLM`` on its own event loop, in its own thread.

``AsyncLLM`` belongs to one event loop, blocks it while it starts, and handles the messages of its processes there. With
its own loop it blocks no other work, and outlives the loops of its callers. Requests come from any event loop.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import tempfile
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fineflow.backends.vllm.cache_metrics import Gauges
from fineflow.backends.vllm.startup import cause, open_engine, progress
from fineflow.errors import BackendError, RequestError

_EXIT_SECONDS = 30.0  # for vLLM's processes to release their resources; longer than they take on a busy machine
# Workers end by themselves when their core has died; but one of them (vLLM 0.32.0) was still there after half a minute.
_ORPHAN_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Facts:
    """Settings that vLLM determined when it started; sizes in tokens.

    block: size of a KV block. context: longest prompt and output together. room: size of the KV cache. caching: the
    prefix cache is on.
    """

    version: str
    block: int
    context: int
    room: int
    caching: bool


class Host:
    """One run of vLLM: from ``start`` until ``stop`` or until vLLM's processes die. Not reusable."""

    def __init__(self, name: str, model: str, options: Mapping[str, Any]) -> None:
        self.name = name
        self.model = model
        self.gauges = Gauges()
        self.facts: Facts
        self.workers: list[Any] = []  # processes of psutil, below vLLM's core
        self.llm: Any = None
        self._options = options
        self._loop: asyncio.AbstractEventLoop
        self._ending: asyncio.Event
        self._guard = threading.Lock()
        self._open = False
        self._tasks: dict[asyncio.Task[None], Callable[[Any], None]] = {}  # running -> receiver of its items
        self._thread = threading.Thread(target=self._main, name=f"fineflow-vllm-{name}", daemon=True)
        self._started: Future[None] = Future()

    @property
    def running(self) -> bool:
        """True if it accepts requests."""
        return self._open

    @property
    def busy(self) -> bool:
        """True if any work is running."""
        return bool(self._tasks)

    def start(self) -> None:
        """Blocks until vLLM is ready. BackendError, with the root cause, if it cannot start."""
        with progress(f"starting vLLM with {self.name}"):
            self._thread.start()
            self._started.result()
        # Registered last, hence run before the exit functions of vLLM and multiprocessing, which would wait forever.
        atexit.register(self.stop)

    def stop(self) -> None:
        """Fails running requests and blocks until vLLM's processes have ended."""
        with contextlib.suppress(RuntimeError):  # the loop has ended by itself
            self._loop.call_soon_threadsafe(self._ending.set)
        self._thread.join()
        atexit.unregister(self.stop)

    def abandon(self) -> None:
        """Detaches a forked child from vLLM's processes, which belong to the parent and must not be ended here."""
        self._open = False
        atexit.unregister(self.stop)
        client = getattr(self.llm, "engine_core", None)
        if client is not None:
            for owner in (client, client.resources.engine_manager):
                if owner is not None:
                    owner._finalizer.detach()

    def _main(self) -> None:
        with tempfile.TemporaryDirectory(prefix="fineflow-vllm-", ignore_cleanup_errors=True) as folder:
            asyncio.run(self._serve(Path(folder)))

    async def _serve(self, folder: Path) -> None:
        self._loop, self._ending = asyncio.get_running_loop(), asyncio.Event()
        try:
            self.llm = open_engine({"model": self.model, **self._options}, folder, self.gauges.logger)
            self.facts = self._facts()
            self.workers = [worker for core in self._processes() for worker in _below(core.pid)]
        except BaseException as error:
            failure = BackendError(f"vLLM could not start with {self.model!r}: {cause(folder, error, {})}")
            failure.__cause__ = error
            self._started.set_exception(failure)
            return
        self._open = True
        self._started.set_result(None)
        ending = asyncio.ensure_future(self._ending.wait())
        await asyncio.wait({ending, self.llm.output_handler}, return_when=asyncio.FIRST_COMPLETED)
        with self._guard:
            self._open = False
        await asyncio.sleep(0)  # work accepted before becomes a task
        if ending.done():
            failure = BackendError(f"LLM engine {self.name!r} was closed while a request was running")
        else:
            why = cause(folder, self.llm.dead_error, self._exits())
            failure = BackendError(f"LLM engine {self.name!r} died: {why}; its next use starts another one")
            failure.__cause__ = self.llm.dead_error
            ending.cancel()
        await self._fail(failure)
        processes = self._processes()
        self.llm.shutdown(timeout=_EXIT_SECONDS)
        self.llm = None
        for process in processes:
            process.join(_EXIT_SECONDS)  # else it stays a zombie
        _end(self.workers, within=_ORPHAN_SECONDS)

    async def _fail(self, error: BackendError) -> None:
        left = dict(self._tasks)
        for task, deliver in left.items():
            deliver(_same(error))
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    def _facts(self) -> Facts:
        from vllm import __version__

        config = self.llm.vllm_config
        cache = config.cache_config
        room = getattr(cache, "kv_cache_size_tokens", None) or cache.num_gpu_blocks * cache.block_size
        return Facts(
            __version__, cache.block_size, config.model_config.max_model_len, room, bool(cache.enable_prefix_caching)
        )

    def _processes(self) -> list[Any]:
        manager = self.llm.engine_core.resources.engine_manager
        return list(getattr(manager, "processes", ()))

    def _exits(self) -> dict[str, int | None]:
        processes = self._processes()
        for process in processes:
            process.join(1)  # it has ended, or is about to
        return {process.name: process.exitcode for process in processes}

    # From other event loops

    async def call(self, work: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
        """Awaits ``work(llm)`` on vLLM's event loop. BackendError if vLLM ends first."""

        async def once(llm: Any) -> AsyncGenerator[Any, None]:
            yield await work(llm)

        async with contextlib.aclosing(self.stream(once)) as found:
            async for result in found:
                return result

    async def stream(
        self, work: Callable[[Any], AsyncIterator[Any]], *, expose: Callable[[Callable[[], None]], None] | None = None
    ) -> AsyncGenerator[Any, None]:
        """Iterates ``work(llm)``, which runs on vLLM's event loop. Closing the iterator cancels the work there.

        expose: called with a thread-safe function that ends the iteration. Raises BackendError if vLLM ends,
        RequestError for requests that vLLM refuses.
        """
        loop, items = asyncio.get_running_loop(), asyncio.Queue[Any]()

        def deliver(item: Any) -> None:
            with contextlib.suppress(RuntimeError):  # the caller's loop is closed
                loop.call_soon_threadsafe(items.put_nowait, item)

        if expose is not None:
            expose(lambda: deliver(_END))
        task = self._submit(work, deliver)
        try:
            while (item := await items.get()) is not _END:
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            with contextlib.suppress(RuntimeError):  # vLLM's loop has ended, with its tasks
                self._loop.call_soon_threadsafe(task.cancel)

    def run(self, work: Callable[[], None]) -> None:
        """Calls ``work`` on vLLM's event loop, if that has not ended."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(work)

    def _submit(self, work: Callable[[Any], AsyncIterator[Any]], deliver: Callable[[Any], None]) -> _Task:
        task = _Task()

        def begin() -> None:
            if not task.cancelled:
                task.task = made = self._loop.create_task(self._pump(work, deliver))
                self._tasks[made] = deliver
                made.add_done_callback(lambda done: self._tasks.pop(done, None))

        with self._guard:
            if not self._open:
                raise BackendError(f"LLM engine {self.name!r} has ended")
            self._loop.call_soon_threadsafe(begin)
        return task

    async def _pump(self, work: Callable[[Any], AsyncIterator[Any]], deliver: Callable[[Any], None]) -> None:
        from vllm.v1.engine.exceptions import EngineDeadError

        try:
            async for item in work(self.llm):
                deliver(item)
            deliver(_END)
        except EngineDeadError:
            await asyncio.Event().wait()  # until _serve fails all tasks with the cause
        except Exception as error:
            deliver(self._backend_error(error))

    def _backend_error(self, error: Exception) -> BackendError:
        """Returns the BackendError for a failed request: a RequestError if its own values are the reason."""
        from vllm.exceptions import GracefulHTTPError, VLLMClientError

        root: BaseException = error
        while root.__cause__ is not None:
            root = root.__cause__
        if isinstance(root, (ValueError, TypeError, VLLMClientError, GracefulHTTPError)):
            failure: BackendError = RequestError(f"LLM {self.name!r} refuses the request: {root}")
        else:
            failure = BackendError(f"LLM engine {self.name!r} failed: {type(root).__name__}: {root}")
        failure.__cause__ = error
        return failure


_END = object()


class _Task:
    """Handle of a task that starts on vLLM's loop a moment later."""

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.cancelled = False

    def cancel(self) -> None:
        """Cancels the task. Call it on vLLM's loop."""
        self.cancelled = True
        if self.task is not None:
            self.task.cancel()


def _below(pid: int) -> list[Any]:
    import psutil

    try:
        return list(psutil.Process(pid).children(recursive=True))
    except psutil.NoSuchProcess:
        return []


def _end(processes: list[Any], *, within: float) -> None:
    """Blocks until the processes have ended; kills those that have not within so many seconds."""
    import psutil

    def running(process: Any) -> bool:
        try:  # nobody may be there to reap it
            return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return False

    for killed in (False, True):
        left = [process for process in processes if running(process)]
        if killed:
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        deadline = time.monotonic() + within
        while any(map(running, left)) and time.monotonic() < deadline:
            time.sleep(0.02)


def _same(error: BackendError) -> BackendError:
    """Returns a copy: each waiting caller raises its own exception object."""
    copy = BackendError(*error.args)
    copy.__cause__ = error.__cause__
    return copy
