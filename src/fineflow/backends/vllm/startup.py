"""Starting vLLM: what its processes find in the environment, where they log, and what went wrong in them."""

from __future__ import annotations

import contextlib
import copy
import json
import logging
import multiprocessing
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from fineflow.errors import BackendError

log = logging.getLogger("fineflow")

# What vLLM finds where nobody says otherwise. Its processes are started from one with threads, whose locks a fork would
# copy; and they share its standard output, which belongs to the program.
_DEFAULTS = {
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
_CPU_BLOCK = 32  # tokens; vLLM's own default on CPU, 128, leaves much of a prompt's beginning to be computed again
_CPU_CACHE = 2 << 30  # bytes; vLLM's own default is nearly all memory that the machine has, which others use, too
_LONGEST = 600  # characters of a reason
_LOG = "errors.log"
_OWN_LOGGING = ("VLLM_LOGGING_CONFIG_PATH", "VLLM_CONFIGURE_LOGGING")  # by which users take it into their hands

_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(: |$)")  # the line that ends a traceback
_DIED = re.compile(
    r"Worker proc \S+ died unexpectedly[^,]*"
)  # after which there are exceptions, but of those who waited

_lock = threading.RLock()
_inside = 0
_before: dict[str, str] = {}


@contextlib.contextmanager
def environment() -> Iterator[None]:
    """In here vLLM is imported and started. Afterwards the variables of the environment are what they were.

    vLLM sets some for the processes that it starts (libraries to preload, numbers of threads), which are nothing to
    others that the user's program may start.
    """
    global _inside, _before
    with _lock:
        if not _inside:
            _before = dict(os.environ)
            for name, value in _DEFAULTS.items():
                os.environ.setdefault(name, value)
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside:
                for name in [name for name in os.environ if name not in _before]:
                    del os.environ[name]
                os.environ.update(_before)


def _forget() -> None:
    global _lock, _inside  # in a forked child nobody is inside, and nobody holds the lock
    _lock, _inside = threading.RLock(), 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def open_engine(options: Mapping[str, Any], folder: Path, stat_logger: Any) -> Any:
    """An ``AsyncLLM`` on the running event loop, with ``scheduling_policy="priority"``. Blocks for half a minute.

    options: of ``AsyncEngineArgs``. folder: for its log, see ``cause``. stat_logger: a factory, as vLLM takes them.
    """
    with environment():
        from vllm.platforms import current_platform
        from vllm.v1.engine.async_llm import AsyncLLM

        from vllm import AsyncEngineArgs

        given = {
            "scheduling_policy": "priority",
            "disable_log_stats": True,  # of vLLM's own loggers; ours is in force all the same
            "use_tqdm_on_load": sys.stderr.isatty(),
            **options,
        }
        if current_platform.is_cpu():
            given.setdefault("block_size", _CPU_BLOCK)
            if "VLLM_CPU_KVCACHE_SPACE" not in os.environ and "gpu_memory_utilization" not in given:
                given.setdefault("kv_cache_memory_bytes", _CPU_CACHE)
        args = AsyncEngineArgs(**given)
        config = args.create_engine_config()
        with _logged(config, folder, given):
            return AsyncLLM.from_vllm_config(
                config,
                stat_loggers=[stat_logger],
                disable_log_stats=args.disable_log_stats,
                enable_log_requests=args.enable_log_requests,
            )


@contextlib.contextmanager
def _logged(config: Any, folder: Path, given: Mapping[str, Any]) -> Iterator[None]:
    """Has the processes that are started in here write their errors to a file, too, unless the user says how to log."""
    if any(name in os.environ for name in _OWN_LOGGING) or {"logging_config", "log_config_file"} & given.keys():
        yield
        return
    from vllm.logger import DEFAULT_LOGGING_CONFIG, configure_logging

    own = config.logging_config
    described = copy.deepcopy(DEFAULT_LOGGING_CONFIG)
    for formatter in described["formatters"].values():
        formatter["log_level"] = own.log_level
    described["handlers"]["vllm"].update(level=own.log_level, stream=os.environ["VLLM_LOGGING_STREAM"])
    described["handlers"]["file"] = {
        "class": "logging.FileHandler",
        "filename": str(folder / _LOG),
        "level": "ERROR",
        "delay": True,
    }
    described["loggers"]["vllm"].update(level=own.log_level, handlers=["vllm", "file"])
    file = folder / "logging.json"
    file.write_text(json.dumps(described), encoding="utf-8")
    config.logging_config = replace(own, pylogging_config_file=str(file))
    try:
        yield
    finally:
        config.logging_config = own
        configure_logging(own)  # of this process, which has just been given the other one, too


def cause(folder: Path, error: BaseException, exits: Mapping[str, int | None]) -> str:
    """Why vLLM's processes have ended, in a line: the first exception that one of them has logged.

    error: what it looks like from here. exits: the processes' exit codes (negative: of a signal).
    """
    with contextlib.suppress(OSError):
        found = _first_exception((folder / _LOG).read_text(encoding="utf-8", errors="replace"))
        if found:
            return found
    ended = [f"its process {name} ended with {_exit(code)}" for name, code in exits.items() if code]
    if ended:
        return "; ".join(ended)
    while error.__cause__ is not None:
        error = error.__cause__
    reason = " ".join(str(error).split())[:_LONGEST] or type(error).__name__
    if "Engine core initialization failed" in reason:
        reason += (
            " A script that uses VLLMEngine has to do so below: if __name__ == '__main__', "
            "because vLLM's processes import it"
        )
    return reason


def _first_exception(log: str) -> str:
    lines = iter(log.splitlines())
    for line in lines:
        if died := _DIED.match(line):
            return died[0]
        if line.startswith("Traceback (most recent call last)"):
            for each in lines:
                if _EXCEPTION.match(each):
                    return each.strip()
    return ""


def _exit(code: int) -> str:
    if code > 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return f"signal {signal.Signals(-code).name}"
    return f"signal {-code}"


def check_process() -> None:
    """BackendError in a process that multiprocessing is starting just now: it must not start engines itself."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise BackendError(
            "VLLMEngine was used while a process of vLLM imported the program's main module; "
            "put what the program does below: if __name__ == '__main__'"
        )


@contextlib.contextmanager
def progress(title: str) -> Iterator[None]:
    """Shows on a terminal what is waited for, and since when; elsewhere a line in the log has to do."""
    log.info(title)
    bar = tqdm(desc=title, bar_format="{desc}: {elapsed}", file=sys.stderr, disable=None, leave=False)
    done = threading.Event()

    def tick() -> None:
        while not done.wait(1):
            bar.refresh()

    ticker = None
    if not bar.disable:
        ticker = threading.Thread(target=tick, name="fineflow-vllm-progress", daemon=True)
        ticker.start()
    try:
        yield
    finally:
        done.set()
        if ticker is not None:
            ticker.join()
        bar.close()
