"""Every public name stands in the API reference, and its parameters in a table."""

from __future__ import annotations

import importlib
import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import fineflow
import fineflow.engines
import fineflow.langchain
import fineflow.llamaindex
import fineflow.telemetry

DOCS = Path(__file__).parents[1] / "docs"
PAGES = [DOCS / "reference.md", DOCS / "extending.md"]


def found(path: str) -> Any:
    """What a dotted path of the reference names: a module, or an attribute of one."""
    if importlib.util.find_spec(path.rpartition(".")[0]) is not None:
        try:
            return importlib.import_module(path)
        except ModuleNotFoundError:
            pass
    module, _, name = path.rpartition(".")
    defined = importlib.import_module(module)
    assert hasattr(defined, name), f"{module} has no {name}"
    return getattr(defined, name)


def documented() -> list[str]:
    """The names that the pages show, each as often as it is shown: of a module, those it lists or all public ones."""
    names: list[str] = []
    for block in "\n".join(page.read_text(encoding="utf-8") for page in PAGES).split("\n::: ")[1:]:
        path = block.partition("\n")[0]
        shown = found(path)
        if not isinstance(shown, ModuleType):
            names.append(path)
            continue
        listed = re.search(r"members: \[(.*)\]", block)
        members = listed[1].split(", ") if listed else [*getattr(shown, "__all__", vars(shown))]
        missing = [name for name in members if not hasattr(shown, name)]
        assert not missing, f"{path} has no {', '.join(missing)}"
        names += [f"{path}.{name}" for name in members]
    return names


MODULES = (fineflow, fineflow.telemetry, fineflow.langchain, fineflow.llamaindex, fineflow.engines)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_public_names_are_in_the_reference(module: ModuleType) -> None:
    names = {path.rpartition(".")[2] for path in documented()}
    assert [name for name in module.__all__ if name not in names] == []


def test_nothing_is_shown_twice() -> None:
    names = documented()
    assert sorted(name for name in set(names) if names.count(name) > 1) == []


TEXT = """Returns an answer.

A first remark: it takes time.

path: of a file. mode, speed: how it is read; see :class:`fineflow.Options`. A sentence that follows.
size: bytes.

Raises: ValueError for a bad path.
"""


def test_parameters_become_a_section() -> None:
    pytest.importorskip("griffe")
    from tools.docstrings import rewritten, split

    names = ["path", "mode", "speed", "size", "strict"]
    assert rewritten(TEXT, names, {"strict": "as elsewhere.", "path": "not this one"}).split("\n\n") == [
        "Returns an answer.",
        "A first remark: it takes time.",
        "**Raises** ValueError for a bad path.",
        "Args:\n"
        "    path: of a file.\n"
        "    mode: how it is read; see ``fineflow.Options``. A sentence that follows.\n"
        "    speed: how it is read; see ``fineflow.Options``. A sentence that follows.\n"
        "    size: bytes.\n"
        "    strict: as elsewhere.",
    ]
    assert rewritten("Returns it.", names) == "Returns it."
    assert split("A remark: no parameter.", names) == ("A remark: no parameter.", {})


def test_optimize_has_a_table_of_all_parameters() -> None:
    griffe = pytest.importorskip("griffe")
    from tools.docstrings import Parameters

    source = Path(fineflow.__file__).parents[1]
    package = griffe.load("fineflow", search_paths=[source], extensions=griffe.load_extensions(Parameters))
    optimize = package["api.optimize"]
    [section] = [each for each in optimize.docstring.parse("google") if each.kind.value == "parameters"]
    described = {each.name for each in section.value if each.description}
    assert described == {each.name for each in optimize.parameters}
