"""Outcomes of the upstream suites without fineflow, recorded: they depend on versions and the interpreter alone.

``python tests/upstream/baselines.py`` runs the suites and writes ``recorded/NAME.json``. Of a suite's tests, whose
names are kept as a hash, nearly all pass: the others are listed.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).with_name("recorded")
_MATTER = (
    *("langchain-core", "langchain-classic", "langchain", "langchain-openai", "langchain-community", "langsmith"),
    *("langgraph", "langgraph-prebuilt", "langgraph-checkpoint", "langgraph-checkpoint-sqlite", "pydantic"),
    *("pytest", "pytest-asyncio", "pytest-mock", "pytest-socket", "syrupy", "blockbuster", "freezegun"),
)


def versions() -> dict[str, str]:
    """The interpreter and the packages that the outcomes depend on, as they are here."""
    found = {"python": "{}.{}".format(*sys.version_info)}
    for name in _MATTER:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def names(tests: Iterable[str]) -> str:
    """A hash of the names of tests, in whatever order."""
    return hashlib.sha256("\n".join(sorted(tests)).encode()).hexdigest()


def recorded(package: str) -> dict[str, Any] | None:
    """The record of a package; None if there is none for these versions."""
    path = FOLDER / f"{package}.json"
    found: dict[str, Any] | None = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
    return found if found is not None and found["versions"] == versions() else None


def outcomes(package: str, tests: Iterable[str]) -> dict[str, str] | None:
    """The recorded outcomes of these tests; None if there is no record, or it is one of other tests."""
    tests, record = list(tests), recorded(package)
    if record is None or record["names"] != names(tests):
        return None
    return {test: record["others"].get(test, "passed") for test in tests}


def write(package: str, found: dict[str, str]) -> None:
    """Records the outcomes of a package's tests."""
    others = {test: outcome for test, outcome in sorted(found.items()) if outcome != "passed"}
    record = {"versions": versions(), "tests": len(found), "names": names(found), "others": others}
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{package}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    from test_upstream import SUITES

    for suite in SUITES:
        done = suite.run()
        write(suite.name, done.outcomes)
        print(f"{suite.name}: {len(done.outcomes)} tests")
