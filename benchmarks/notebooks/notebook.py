"""Runs cells of Python and writes them with their outputs, in Jupyter's format 4.5. Needs no Jupyter."""

from __future__ import annotations

import ast
import io
import json
import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Svg:
    """A picture that a cell ends with."""

    text: str


def cells_of(script: str) -> list[tuple[str, str]]:
    """Returns kind ("markdown" or "code") and source of each cell of a script in the percent format.

    ``# %% [markdown]`` begins a cell of comment lines, ``# %%`` one of code.
    """
    parts = re.split(r"^# %%(.*)\n", script, flags=re.MULTILINE)[1:]
    found = []
    for head, body in zip(parts[::2], parts[1::2], strict=True):
        kind = "markdown" if "[markdown]" in head else "code"
        lines = body.strip("\n").splitlines()
        if kind == "markdown":
            lines = [line.removeprefix("#").removeprefix(" ") for line in lines]
        found.append((kind, "\n".join(lines)))
    return found


def executed(script: str) -> dict[str, Any]:
    """Runs the code cells of a script in one namespace. Returns the notebook as JSON data.

    A cell shows what it prints, and the value of its last expression. Raises what a cell raises.
    """
    names: dict[str, Any] = {"__name__": "__main__"}
    return {
        "cells": list(_cells(cells_of(script), names)),
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def write(script: Path, notebook: Path) -> None:
    """Runs a script and writes its notebook."""
    made = executed(script.read_text(encoding="utf-8"))
    notebook.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _cells(sources: list[tuple[str, str]], names: dict[str, Any]) -> Iterator[dict[str, Any]]:
    count = 0
    for number, (kind, source) in enumerate(sources):
        cell = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}, "source": source.splitlines(keepends=True)}
        if kind == "code":
            count += 1
            cell |= {"execution_count": count, "outputs": _run(source, names, count)}
        yield cell


def _run(source: str, names: dict[str, Any], count: int) -> list[dict[str, Any]]:
    body = ast.parse(source).body
    last = ast.Expression(body.pop().value) if body and isinstance(body[-1], ast.Expr) else None  # type: ignore[attr-defined]
    printed, value = io.StringIO(), None
    with redirect_stdout(printed):
        exec(compile(ast.Module(body, []), "cell", "exec"), names)
        if last is not None:
            value = eval(compile(last, "cell", "eval"), names)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        text = printed.getvalue().splitlines(keepends=True)
        outputs.append({"output_type": "stream", "name": "stdout", "text": text})
    if value is not None:
        data = {"text/plain": [repr(value)]}
        if isinstance(value, Svg):
            data = {"image/svg+xml": value.text.splitlines(keepends=True), "text/plain": ["<picture>"]}
        outputs.append({"output_type": "execute_result", "execution_count": count, "data": data, "metadata": {}})
    return outputs
