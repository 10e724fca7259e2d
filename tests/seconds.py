"""What tests take: ``make test-all ARGS=--record-seconds`` records it, and ``make test`` leaves out what took long."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

RECORD = Path(__file__).with_name("seconds.json")
LONG = 0.3  # seconds with a worker of xdist on each core; quicker ones are not recorded


@cache
def recorded() -> Mapping[str, float]:
    """Returns the seconds of each test that took long, by its node id."""
    found: dict[str, float] = json.loads(RECORD.read_text())
    return found


class Seconds:
    """A plugin that adds up what the phases of each test take, and records it for the files that ran."""

    def __init__(self, record: Path = RECORD) -> None:
        self.of: dict[str, float] = defaultdict(float)
        self._record = record

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.of[report.nodeid] += report.duration

    def pytest_sessionfinish(self) -> None:
        ran = {name.partition("::")[0] for name in self.of}
        before = json.loads(self._record.read_text())
        kept = {name: seconds for name, seconds in before.items() if name.partition("::")[0] not in ran}
        kept |= {name: round(seconds, 1) for name, seconds in self.of.items() if seconds > LONG}
        self._record.write_text(json.dumps(dict(sorted(kept.items())), indent=0, ensure_ascii=False) + "\n")
