"""Runs notebooks and keeps their outputs in them: ``python -m tools.notebooks benchmarks/notebooks/*.ipynb``.

Each notebook runs in a process of its own, cell by cell, as Jupyter would: the value of a cell's last line is shown, by
its HTML, SVG or text, and top-level ``await`` works. With ``--check`` nothing is written. A cell that raises ends the
notebook, with exit status 1. It needs nothing but Python, so tests run the notebooks, too.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import inspect
import io
import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

_REPRS = {"text/html": "_repr_html_", "image/svg+xml": "_repr_svg_"}
_DIGITS = 100_000  # characters of an output that are worth keeping


def lines(text: str) -> list[str]:
    """Returns a text as notebooks store it."""
    return text.splitlines(keepends=True)


def bundle(value: Any) -> dict[str, list[str]]:
    """Returns what a value shows, by MIME type."""
    found = {"text/plain": lines(repr(value))}
    for kind, method in _REPRS.items():
        text = getattr(value, method)() if hasattr(type(value), method) else None
        if text is not None and len(text) <= _DIGITS:
            found[kind] = lines(text)
    return found


class Kernel:
    """Runs cells one after the other, in one namespace."""

    def __init__(self) -> None:
        self.namespace: dict[str, Any] = {"__name__": "__main__", "display": self._display}
        self._outputs: list[dict[str, Any]] = []

    def _display(self, value: Any) -> None:
        self._outputs.append({"output_type": "display_data", "metadata": {}, "data": bundle(value)})

    async def run(self, source: str, number: int) -> list[dict[str, Any]]:
        """Returns the outputs of a cell. Raises what it raises."""
        self._outputs, printed = [], io.StringIO()
        tree = ast.parse(source)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        with redirect_stdout(printed):
            await self._run(compile(tree, f"<cell {number}>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT))
            value = None
            if isinstance(last, ast.Expr):
                code = compile(ast.Expression(last.value), f"<cell {number}>", "eval", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
                value = await self._run(code)
        found = list(self._outputs)
        if text := printed.getvalue():
            found.insert(0, {"output_type": "stream", "name": "stdout", "text": lines(text)})
        if value is not None:
            result = {"output_type": "execute_result", "execution_count": number, "metadata": {}, "data": bundle(value)}
            found.append(result)
        return found

    async def _run(self, code: Any) -> Any:
        value = eval(code, self.namespace)
        return await value if inspect.iscoroutine(value) else value


async def executed(notebook: dict[str, Any]) -> dict[str, Any]:
    """Runs a notebook, and returns it with its outputs. Raises what a cell raises, with a note that names the cell."""
    kernel, number = Kernel(), 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            number += 1
            try:
                cell["outputs"] = await kernel.run("".join(cell["source"]), number)
            except Exception as error:
                error.add_note(f"in cell {number}: {''.join(cell['source'])[:200]}")
                raise
            cell["execution_count"] = number
    return notebook


def run(path: Path, *, check: bool) -> None:
    """Runs a notebook in this process, and writes it unless ``check``."""
    found = asyncio.run(executed(json.loads(path.read_text(encoding="utf-8"))))
    if not check:
        path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs notebooks, one after the other."""
    parser = argparse.ArgumentParser(prog="python -m tools.notebooks", description=__doc__)
    parser.add_argument("notebooks", nargs="+", type=Path)
    parser.add_argument("--check", action="store_true", help="write nothing")
    given = parser.parse_args(argv)
    if len(given.notebooks) == 1:
        run(given.notebooks[0], check=given.check)
        return 0
    status = 0
    for path in given.notebooks:
        flags = ["--check"] * given.check
        done = subprocess.run([sys.executable, "-W", "ignore", "-m", "tools.notebooks", *flags, str(path)], check=False)
        print(f"{'ok  ' if done.returncode == 0 else 'MISS'}  {path}", flush=True)
        status |= done.returncode
    return status


if __name__ == "__main__":
    sys.exit(main())
