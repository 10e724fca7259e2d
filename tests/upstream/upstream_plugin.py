"""Loaded into the pytest of the upstream suite: records the outcome of each test, and hides ``langchain``."""

from __future__ import annotations

import functools
import importlib.metadata
import json
from pathlib import Path
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--outcomes", required=True, help="file to write the outcome of each test to, as JSON")


def pytest_configure(config: pytest.Config) -> None:
    # The upstream snapshots show the versions of langchain-core and, if it is installed, of langchain. They were
    # taken where it is not.
    from langchain_core.language_models import base

    if hasattr(base, "_get_langchain_version"):
        base._get_langchain_version = _hidden(base._get_langchain_version)
    config.pluginmanager.register(_Outcomes(Path(config.getoption("--outcomes"))))


def _hidden(own: Any) -> Any:
    """Returns the function of langchain's version as if it were not installed; for tests that patch versions, as is."""
    version, looked_up = importlib.metadata.version, getattr(own, "__wrapped__", own)

    @functools.cache
    def hidden() -> str | None:
        found: str | None = None if importlib.metadata.version is version else looked_up()
        return found

    return hidden


class _Outcomes:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.outcomes: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        outcome = "xfailed" if hasattr(report, "wasxfail") and report.skipped else report.outcome
        if report.when == "call" or outcome != "passed":
            self.outcomes[report.nodeid] = outcome

    def pytest_sessionfinish(self) -> None:
        self.path.write_text(json.dumps(self.outcomes), encoding="utf-8")
