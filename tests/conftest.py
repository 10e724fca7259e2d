"""What holds for all tests: every graph that is planned is verified after every pass, and plans are reproducible."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

import fineflow.api
from fineflow.ir import Graph
from fineflow.passes import PASSES, Pass, rewrite
from fineflow.runtime.costs import costs


@pytest.fixture(autouse=True, scope="session")
def verified_graphs() -> Iterator[None]:
    def verified(graph: Graph, passes: Sequence[Pass] = PASSES, *, check: bool = False, **options: Any) -> Graph:
        return rewrite(graph, passes, check=True, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fineflow.api, "rewrite", verified)
        yield


@pytest.fixture(autouse=True)
def nothing_learned() -> None:
    """What earlier tests took does not decide how later ones are planned."""
    costs.forget()
