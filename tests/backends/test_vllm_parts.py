"""Parts of the vLLM engine that need no vLLM: what it believes to be cached, why processes ended, the environment."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from fineflow.backends.vllm.engine import VLLMEngine
from fineflow.backends.vllm.registry import shared
from fineflow.backends.vllm.request import Kept
from fineflow.backends.vllm.startup import cause, environment

TRACEBACKS = """\
ERROR something else
Traceback (most recent call last):
  File "worker.py", line 7, in load
    raise RuntimeError("x")
torch.OutOfMemoryError: tried to allocate 2 GiB

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "core.py", line 9, in run
RuntimeError: the worker has failed
"""


def test_the_first_exception_of_a_process_is_the_cause(tmp_path: Path) -> None:
    error = RuntimeError("Engine core initialization failed. See root cause above.")
    assert "below: if __name__ == '__main__'" in cause(tmp_path, error, {})
    assert cause(tmp_path, error, {"EngineCore": -9, "other": 0}) == "its process EngineCore ended with signal SIGKILL"
    assert cause(tmp_path, error, {"EngineCore": 3}) == "its process EngineCore ended with exit code 3"
    (tmp_path / "errors.log").write_text(TRACEBACKS)
    assert cause(tmp_path, error, {"EngineCore": 1}) == "torch.OutOfMemoryError: tried to allocate 2 GiB"
    worker = "Worker proc VllmWorker-0 died unexpectedly (exit code: -9)"
    (tmp_path / "errors.log").write_text(f"{worker}, shutting down executor.\n{TRACEBACKS}")
    assert cause(tmp_path, error, {"EngineCore": 1}) == worker


def test_without_a_log_it_is_the_innermost_exception(tmp_path: Path) -> None:
    outer = RuntimeError("outer")
    outer.__cause__ = ValueError("inner,\n  on two lines")
    assert cause(tmp_path, outer, {"EngineCore": None}) == "inner, on two lines"
    assert cause(tmp_path, KeyError(), {}) == "KeyError"


def test_the_environment_is_what_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "DEBUG")
    monkeypatch.setenv("GIVEN", "1")
    monkeypatch.delenv("VLLM_LOGGING_STREAM", raising=False)
    before = dict(os.environ)
    with environment():
        assert os.environ["VLLM_LOGGING_LEVEL"] == "DEBUG"  # what the user says
        assert os.environ["VLLM_LOGGING_STREAM"] == "ext://sys.stderr"
        os.environ["LD_PRELOAD"] = "libgomp.so"
        with environment():
            del os.environ["GIVEN"]
        assert "LD_PRELOAD" in os.environ
    assert dict(os.environ) == before


def known(kept: Kept, tokens: Sequence[int]) -> int:
    return kept.known(tokens, 4)


def test_blocks_that_were_used_last_are_believed_to_be_cached() -> None:
    kept = Kept()
    first, second = list(range(14)), [*range(8), *range(100, 106)]
    kept.add(first, 4, room=1000)
    assert known(kept, first) == 12
    assert known(kept, first[:7]) == 4
    assert known(kept, second) == 8
    assert known(kept, [1, *first]) == 0
    kept.correct(first, 4, cached=4)  # vLLM had less
    assert known(kept, first) == 4
    kept.clear()
    assert known(kept, first) == 0


def test_no_more_is_believed_than_fills_half_of_the_cache() -> None:
    kept = Kept()
    first, second = list(range(16)), list(range(100, 116))
    kept.add(first, 4, room=48)  # six blocks
    kept.add(second, 4, room=48)
    assert known(kept, second) == 16
    assert known(kept, first) == 8  # its end is given up first


def test_objects_that_say_the_same_stand_for_one_engine() -> None:
    one, same = VLLMEngine("m", dtype="float32"), VLLMEngine("m", dtype="float32")
    others = [
        VLLMEngine("m"),
        VLLMEngine("m", dtype="float32", name="n"),
        VLLMEngine("m", dtype="float32", context=9),
        VLLMEngine("m", dtype="float32", sessions=1),
    ]
    assert one.shared is same.shared is shared("m", "m", {"dtype": "float32"})
    assert len({id(each.shared) for each in (one, *others)}) == 5
    assert len(one.shared.users) == 2
    asyncio.run(one.aclose())
    asyncio.run(one.aclose())
    assert len(one._shared.users) == 1
    assert one.shared.users == same.shared.users  # asking for it is use
    assert len(one.shared.users) == 2
    assert (one.block_size, one.context, one.capacity, one.version) == (32, None, None, None)
    assert VLLMEngine("m", block_size=64).block_size == 64
    assert not VLLMEngine("m", enable_prefix_caching=False).can_prefill
    assert one.cache_statistics() is None
    assert one.cached([1] * 64) == 0


def test_nothing_is_imported_before_it_is_used() -> None:
    code = "import sys; from fineflow.backends.vllm import VLLMEngine; VLLMEngine('m'); print('vllm' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
