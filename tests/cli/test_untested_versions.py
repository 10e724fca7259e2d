"""A framework that is newer than those tested is told: by ``doctor``, ``explain``, and once by ``optimize``."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
from langchain_core.runnables import RunnablePassthrough

import fineflow
from fineflow import cli, tested_versions
from fineflow.tested_versions import NEWEST, newer, release

PINS = dict(
    line.strip().split("==")
    for line in Path(__file__).parents[2].joinpath("constraints.txt").read_text().splitlines()
    if "==" in line
)


@pytest.fixture
def older(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if only an older langchain-core had been tested, in a process that has told nothing yet."""
    monkeypatch.setitem(NEWEST, "langchain-core", "1.4.9")
    tested_versions.of_this_process.cache_clear()
    tested_versions.warn_once.cache_clear()
    yield
    tested_versions.of_this_process.cache_clear()


def test_those_of_the_constraints_are_tested() -> None:
    assert {name: PINS[name] for name in NEWEST} == NEWEST
    assert newer(PINS) == ()


def test_numbers_are_compared() -> None:
    later = {"langchain-core": f"{NEWEST['langchain-core']}.1", "langgraph": "1.2.9rc1", "another": "9"}
    (said,) = newer(later)
    assert said.startswith(f"langchain-core {later['langchain-core']} is newer than the newest release that was tested")
    assert release("1.2.9rc1") == (1, 2, 9)


def test_it_is_told_once(older: None, capsys: pytest.CaptureFixture[str]) -> None:
    expected = f"langchain-core {version('langchain-core')} is newer than the newest release that was tested, 1.4.9"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            fineflow.optimize(RunnablePassthrough())
            tested_versions.warn_once().join()
    (only,) = [each for each in caught if each.category is fineflow.UntestedVersionWarning]
    assert expected in str(only.message)
    assert expected in str(fineflow.explain(RunnablePassthrough())).replace("\n", " ")
    assert cli.main(["doctor"]) == 0
    assert expected in " ".join(capsys.readouterr().out.split())
