"""Common setup: distribution over workers, what runs only on request, every planned graph verified, costs forgotten."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

import fineflow.api
import fuzzing
from delays import Delays
from fineflow.adapters.core import durations
from fineflow.adapters.inner_calls import walk_costs
from fineflow.adapters.inner_calls.finder import CallFinder
from fineflow.adapters.lookahead import walk
from fineflow.cost_model.costs import costs
from fineflow.ir import Graph
from fineflow.passes import PASSES, Pass, rewrite
from fineflow.runtime.loop import deadline
from fineflow.testing.leaks import Left, left
from scheduling import FIRST, Scheduling
from seconds import Seconds, recorded
from sweeps import redundant

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")

# Beside other work an example may take long, to make and to run.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

_imported = 0  # modules, when they were last frozen
_tests = count()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--sweep", action="store_true", help="run the slow tests and every combination of parameters, too")
    parser.addoption("--record-seconds", action="store_true", help="record which tests take long, after all have run")
    parser.addoption("--delays", type=int, metavar="SEED", help="threads and wake-ups are late at random")


def _as_text(record: logging.LogRecord) -> bool:
    """Makes texts of what a record holds. It is kept until a test ends; a future, or an error's frames, keep calls."""
    record.msg, record.args = record.getMessage(), None
    if record.exc_info:
        record.exc_text, record.exc_info = logging.Formatter().formatException(record.exc_info), None
    return True


def pytest_configure(config: pytest.Config) -> None:
    # LangGraph's tasks that outlive a failed run: "cannot schedule new futures after shutdown"; and what tasks of
    # langchain-core raise when they are cancelled: "'CancelledError' object has no attribute 'generations'".
    for name in ("concurrent.futures", "asyncio"):
        logging.getLogger(name).addFilter(_as_text)
    fuzzing.all_of_them = config.option.sweep
    if config.option.record_seconds and not hasattr(config, "workerinput"):  # a worker reports to the main process
        config.pluginmanager.register(Seconds())
    if config.option.delays is not None:
        config.pluginmanager.register(Delays(config.option.delays))
    # Before torch is imported: the workers divide the cores among them, also for the processes that tests start.
    if workers := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0")):
        threads = max(1, (os.cpu_count() or 1) // workers)
        for name in THREADS:
            os.environ.setdefault(name, str(threads))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(FIRST))
    if config.option.sweep:
        return
    if left_out := redundant(items, recorded()):
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


def pytest_runtest_setup() -> None:
    # Libraries live to the end. Once frozen, they are left out where tests collect garbage or count objects, which
    # would take half a second each time. Some are imported when tests are collected, others by a test; tests of
    # benchmarks leave data that live as long. Looking takes milliseconds, too.
    global _imported
    if len(sys.modules) > _imported + 100 or (next(_tests) % 10 == 0 and len(gc.get_objects(generation=2)) > 100_000):
        _imported = len(sys.modules)
        gc.collect()
        gc.freeze()


@pytest.hookimpl(optionalhook=True)  # xdist may be off
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling | None:
    if config.option.dist != "loadfile":
        return None
    config.option.loadscopereorder = False  # else files with few tests come last, however long they take
    return Scheduling(config, log)


@pytest.fixture(autouse=True, scope="session")
def verified_graphs() -> Iterator[None]:
    def verified(graph: Graph, passes: Sequence[Pass] = PASSES, *, check: bool = False, **options: Any) -> Graph:
        return rewrite(graph, passes, check=True, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fineflow.api, "rewrite", verified)
        yield


@pytest.fixture
def left_before() -> Left:
    """What earlier tests of this process have left: their tracebacks and modules may hold queries."""
    return left()


@pytest.fixture
def deadline_passes(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Makes the deadlines of sync calls pass when the test calls it, not after the seconds that they are given."""
    passed: Future[None] = Future()

    def held(call: Future[Any], seconds: float) -> None:
        wait([call, passed], seconds, return_when=FIRST_COMPLETED)

    monkeypatch.setattr(deadline, "done_within", held)
    return lambda: passed.set_result(None)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt in the main thread, also where the suite was started with the signal ignored.

    Not in a callback of the garbage collector, where Python drops it: Hypothesis has one.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    callbacks, gc.callbacks[:] = gc.callbacks[:], []
    yield
    gc.callbacks[:] = callbacks
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def nothing_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    """What earlier tests took does not decide how later ones are planned, nor do collections of what they left."""
    monkeypatch.setattr(walk, "_SECONDS", 10.0)  # a collection that falls into a walk counts as its processor time
    costs.forget()
    for learned in (walk_costs._losses, durations._seconds, durations._calls):
        learned.clear()


@pytest.fixture
def walks(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The functions that walks for component calls go through during the test."""
    made: list[Any] = []
    look = CallFinder.look

    def noted(self: CallFinder) -> Any:
        made.append(self._function[0])
        return look(self)

    monkeypatch.setattr(CallFinder, "look", noted)
    return made


@pytest.fixture(scope="session")
def of_all_workers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all workers of this run of the tests share."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session")
def cross_encoder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Saves a tiny cross-encoder with random weights, as a trained one is saved, for so many labels; its folder."""

    def save(labels: int = 1) -> str:
        import torch
        from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

        from fineflow.backends.sentence_transformers import bundled_minilm

        folder: Path = tmp_path_factory.mktemp("cross-encoder")
        tokenizer = AutoTokenizer.from_pretrained(bundled_minilm())
        torch.manual_seed(0)
        sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
        config = BertConfig(vocab_size=len(tokenizer), num_labels=labels, initializer_range=1.0, **sizes)
        BertForSequenceClassification(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return str(folder)

    return save


@pytest.fixture(scope="module")
def one_core() -> Iterator[None]:
    """Threads that wait for each other on a busy machine take many times what small models take."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
