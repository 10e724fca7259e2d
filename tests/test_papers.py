"""Each row of docs/papers.md names code that exists, and a command that can be given so."""

from __future__ import annotations

import argparse
import ast
import importlib
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from benchmarks.apps import apps
from benchmarks.harness.schemes import schemes

from docs_kit import ROOT
from fineflow.cli.main import parser as fineflow_parser

PAGE = ROOT / "docs" / "papers.md"
SOURCE = ROOT / "src" / "fineflow"
NUMBERS = {"R": 5, "A": 16, "P": 9}
_CODE = re.compile(r"`([^`]+)`")


def rows() -> dict[str, list[str]]:
    """The cells of each row, by its name: what, where, command, figure, what differs."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    found = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if re.match(r"\| [RAP]\d", line)]
    return {cells[0].strip(): cells[1:] for cells in found}


class ParsedError(Exception):
    """The command line was understood: ``given``."""

    def __init__(self, given: argparse.Namespace) -> None:
        super().__init__(given)
        self.given = given


def defined(path: Path) -> set[str]:
    """The names that a module defines at its top."""
    found: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        found |= {each.id for each in targets if isinstance(each, ast.Name)}
    return found


def check_place(place: str) -> None:
    file, _, name = place.partition(":")
    path = SOURCE / file
    assert path.is_file(), f"there is no {file}"
    assert not name or name in defined(path), f"{file} defines no {name}"


def check_command(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Raises AssertionError, ImportError or SystemExit for a command that cannot be given so. It runs nothing."""
    folder, _, rest = command.rpartition(" && ")
    words, here = shlex.split(rest), ROOT / folder.removeprefix("cd ") if folder else ROOT
    assert here.is_dir()
    if words[:3] == ["python", "-m", "pytest"]:
        assert all((here / each).is_file() for each in words[3:] if each.endswith(".py"))
    elif words[:2] == ["python", "-m"]:
        check_benchmark(words[2], words[3:], monkeypatch)
    else:
        assert words[0] == "fineflow"
        given = fineflow_parser().parse_args(words[1:])
        module, _, name = getattr(given, "object", ":").partition(":")
        assert not module or name in defined(here / f"{module}.py")


def check_benchmark(name: str, flags: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module(name)
    module = importlib.import_module(f"{name}.__main__") if hasattr(module, "__path__") else module
    parse = argparse.ArgumentParser.parse_args

    def once(self: argparse.ArgumentParser, *args: Any, **kwargs: Any) -> None:
        raise ParsedError(parse(self, *args, **kwargs))

    with monkeypatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", once)
        with pytest.raises(ParsedError) as caught:
            module.main(flags)
    given = caught.value.given
    for option, offered in (("app", [*apps()]), ("scheme", [each.name for each in schemes()])):
        assert set(getattr(given, option, None) or ()) <= set(offered)


def test_every_row_is_there_once_and_whole() -> None:
    assert list(rows()) == [f"{paper}{i}" for paper, most in NUMBERS.items() for i in range(1, most + 1)]
    for name, cells in rows().items():
        assert len(cells) == 5 and all(cells), name
        assert "§" in cells[0] and _CODE.search(cells[1]) and _CODE.search(cells[2]), name
        assert "{" not in cells[3], f"{name} has no figure"


@pytest.mark.parametrize("name", rows())
def test_places_and_commands_exist(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, where, command, *_ = rows()[name]
    for place in _CODE.findall(where):
        check_place(place)
    for each in _CODE.findall(command):
        check_command(each, monkeypatch)


@pytest.mark.parametrize("place", ["passes/none.py", "passes/prune.py:splits"])
def test_a_place_that_does_not_exist_is_found(place: str) -> None:
    with pytest.raises(AssertionError, match=r"there is no|defines no"):
        check_place(place)


@pytest.mark.parametrize(
    "command",
    [
        "python -m benchmarks.none",
        "python -m benchmarks.passes --fast",
        "python -m benchmarks run --scheme none",
        "python -m pytest tests/test_none.py",
        "fineflow measure",
        "cd examples/llamaindex && fineflow explain router:none",
        "cd examples/none && fineflow doctor",
    ],
)
def test_a_command_that_does_not_exist_is_found(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises((AssertionError, ImportError, SystemExit)):
        check_command(command, monkeypatch)
