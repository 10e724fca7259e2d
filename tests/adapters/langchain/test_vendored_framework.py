"""A framework that lies in a folder of the application: its classes count as the user's own, and calls stay stock's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from benchmarks.apps import app as app_of
from benchmarks.harness.world import World

import fineflow
from fineflow.adapters.core import installers
from fineflow.testing import virtual


@pytest.fixture(autouse=True)
def vendored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    installed = installers._installed
    monkeypatch.setattr(installers, "_installed", lambda package: package != "langchain_core" and installed(package))
    installers.of_application.cache_clear()
    yield
    installers.of_application.cache_clear()  # later tests of this process have an installed one


@pytest.mark.parametrize("name", ["advanced_rag", "rag_fusion"])
def test_answers_are_those_of_stock(name: str) -> None:
    """A map of searches is looked through, and its own call is not one that its functions make."""
    app = app_of(name)

    async def answers(optimized: bool) -> list[Any]:
        made = app.stock(World(app.setting, app.says, app.passages))
        chain = fineflow.optimize(made, strict=True) if optimized else made
        return [app.answer(await chain.ainvoke(app.asked(number, 0))) for number in range(2)]

    assert virtual.run(answers(True)).value == virtual.run(answers(False)).value
