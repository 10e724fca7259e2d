"""Start of vLLM: environment and logging of its processes, and the causes of their failures."""

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

# Defaults for vLLM's environment. This process has threads, whose locks a fork would copy, so vLLM's processes are
# spawned; they share its standard output, which belongs to the program, so they log to standard error.
_DEFAULTS = {
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
_CPU_BLOCK = 32  # tokens; with vLLM's own default on CPU, 128, much of a common prefix is computed again
_CPU_CACHE = 2 << 30  # bytes; vLLM's own default takes nearly all memory of the machine
_LONGEST = 600  # characters of a reason
_LOG = "errors.log"
_OWN_LOGGING = ("VLLM_LOGGING_CONFIG_PATH", "VLLM_CONFIGURE_LOGGING")  # with these, users configure logging themselves

_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(: |$)")  # the line that ends a traceback
_DIED = re.compile(
    r"Worker proc \S+ died unexpectedly[^,]*"
)  # the exceptions after it are consequences in the waiting processes

_lock = threading.RLock()
_inside = 0
_before: dict[str, str] = {}


@contextlib.contextmanager
def environment() -> Iterator[None]:
    """Sets the environment to import and start vLLM, and restores all variables afterwards.

    vLLM sets some for its processes (libraries to preload, numbers of threads) that other processes of the user's
    program must not inherit.
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
    global _lock, _inside  # the threads inside, and the lock's holder, do not exist in a forked child
    _lock, _inside = threading.RLock(), 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def open_engine(options: Mapping[str, Any], folder: Path, stat_logger: Any) -> Any:
    """Returns an ``AsyncLLM`` on the running event loop, with ``scheduling_policy="priority"``. Blocks for ~30 s.

    options: of ``AsyncEngineArgs``. folder: for its log, see ``cause``. stat_logger: a factory for vLLM.
    """
    with environment():
        from vllm.platforms import current_platform
        from vllm.v1.engine.async_llm import AsyncLLM

        from vllm import AsyncEngineArgs

        given = {
            "scheduling_policy": "priority",
            "disable_log_stats": True,  # vLLM's own loggers; ours is active all the same
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
    """Makes the processes started inside also log errors to a file, unless the user configures logging."""
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
        configure_logging(own)  # in this process, which got the other configuration, too


def cause(folder: Path, error: BaseException, exits: Mapping[str, int | None]) -> str:
    """Returns the reason why vLLM's processes have ended, in one line: the first exception that one of them logged.

    error: the error seen by this process. exits: the processes' exit codes (negative: a signal).
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
            "because vLLM's processes import the script"
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
    """Raises BackendError in a process that multiprocessing is just starting: it must not start engines itself."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise BackendError(
            "VLLMEngine was used while a process of vLLM imported the program's main module; "
            "put the program's code below: if __name__ == '__main__'"
        )


@contextlib.contextmanager
def progress(title: str) -> Iterator[None]:
    """Shows the title and the elapsed time on a terminal; elsewhere only logs the title."""
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
