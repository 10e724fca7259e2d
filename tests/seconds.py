"""What tests take: ``make test-all ARGS=--record-seconds`` records it, and ``make test`` leaves out what took long."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

RECORD = Path(__file__).with_name("seconds.json")
LONG = 0.5  # seconds with a worker of xdist on each core; quicker ones are not recorded


@cache
def recorded() -> Mapping[str, float]:
    """Returns the seconds of each test that took long, by its node id."""
    found: dict[str, float] = json.loads(RECORD.read_text())
    return found


class Seconds:
    """A plugin that adds up what the phases of each test take, and writes ``RECORD`` after a run of all tests."""

    def __init__(self, record: Path = RECORD) -> None:
        self.of: dict[str, float] = defaultdict(float)
        self._record = record

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.of[report.nodeid] += report.duration

    def pytest_sessionfinish(self) -> None:
        kept = {name: round(seconds, 1) for name, seconds in sorted(self.of.items()) if seconds > LONG}
        self._record.write_text(json.dumps(kept, indent=0, ensure_ascii=False) + "\n")
