"""Every public name stands in docs/reference.md, under the module that defines it."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import ModuleType

import pytest

import fineflow
import fineflow.engines
import fineflow.langchain
import fineflow.llamaindex
import fineflow.telemetry

PAGE = Path(__file__).parents[1] / "docs" / "reference.md"


def documented() -> set[str]:
    """The names that the page shows: those it lists of a module, or all public ones where it lists none."""
    found: set[str] = set()
    for block in PAGE.read_text().split("\n::: ")[1:]:
        module = block.partition("\n")[0]
        defined = importlib.import_module(module)
        listed = re.search(r"members: \[(.*)\]", block)
        names = listed[1].split(", ") if listed else [*getattr(defined, "__all__", vars(defined))]
        missing = [name for name in names if not hasattr(defined, name)]
        assert not missing, f"{module} has no {', '.join(missing)}"
        found.update(names)
    return found


MODULES = (fineflow, fineflow.telemetry, fineflow.langchain, fineflow.llamaindex, fineflow.engines)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_public_names_are_in_the_reference(module: ModuleType) -> None:
    assert [name for name in module.__all__ if name not in documented()] == []
