"""Every block of Python in the README and the documentation runs, and every ``fineflow`` command in them."""

from __future__ import annotations

import ast
import asyncio
import importlib.util
import inspect
import shlex
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

import fineflow
import programs
from docs_kit import PAGES, Block, blocks, given, write_app
from fineflow.instrumentation.instrument import uninstrument
from fineflow.runtime.process import shutdown

pytest.importorskip("langchain_openai")
get_dispatcher = pytest.importorskip("llama_index.core.instrumentation").get_dispatcher

NOT_RUN = {"adaptive.md": 1, "cluster.md": 1, "engines.md": 1, "vllm.md": 1, "adding.md": 1, "langgraph.md": 1}
"""Blocks that cannot run, by page; each says why. One more has to be entered here."""
RUNNING = [page for page in PAGES if blocks(page, "python")]


def left_out(block: Block) -> str:
    """Returns why a block does not run, or ""."""
    kind, _, what = block.why.partition(": ")
    return what if kind == "not run" else ""


def test_what_does_not_run_is_known() -> None:
    found = [block for page in PAGES for block in blocks(page, "python") if block.why.startswith("not run")]
    assert Counter(block.page.name for block in found) == NOT_RUN
    assert all(len(left_out(block)) > 10 for block in found), "a reason is missing"


@pytest.mark.parametrize("page", RUNNING, ids=lambda page: page.stem)
def test_no_block_is_overlooked(page: Path) -> None:
    fences = [line for line in page.read_text(encoding="utf-8").splitlines() if line.strip().startswith("```python")]
    assert len(blocks(page, "python")) == len(fences)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder with the app that pages name; it is the current one, and what it imports is forgotten."""
    write_app(tmp_path)
    (tmp_path / "llm.json").write_text(fineflow.costs.to_json())
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    root = get_dispatcher()
    monkeypatch.setattr(root, "span_handlers", [*root.span_handlers])  # pages add handlers, for the whole process
    monkeypatch.setattr("fineflow.runtime.servers._servers", {})  # and register servers
    yield tmp_path
    uninstrument()
    fineflow.telemetry.disable()
    shutdown()
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_app"]:
        del sys.modules[name]


@pytest.fixture(scope="session")
def places(cross_encoder: Any) -> dict[str, str]:
    """Folders of models, by how the pages name them."""
    from fineflow.demo.data import default_model
    from fineflow.engines import bundled_minilm

    found = {"sentence-transformers/all-MiniLM-L6-v2": str(bundled_minilm())}
    found["cross-encoder/ms-marco-MiniLM-L-6-v2"] = cross_encoder()
    return found | dict.fromkeys(("path/or/hub-id", "path/to/model"), str(default_model()))


@pytest.mark.engine
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("page", RUNNING, ids=lambda page: page.stem)
def test_blocks_run(page: Path, folder: Path, places: dict[str, str]) -> None:
    """The blocks of a page run one after the other, as in one module; then its tests."""
    names = {"__name__": "docs", **given(page)}
    for block in blocks(page, "python"):
        needed = block.why.partition("needs: ")[2]
        if left_out(block) or (needed and any(importlib.util.find_spec(each) is None for each in needed.split(", "))):
            continue
        code = block.code
        for name, place in places.items():
            code = code.replace(f'"{name}"', repr(place))
        before = set(names)
        try:
            run(compiled(code, str(block)), names)
            for name in [name for name in names if name.startswith("test_") and name not in before]:
                arguments = inspect.signature(names[name]).parameters
                names[name](**{argument: names[argument] for argument in arguments})
        except BaseException as error:
            raise AssertionError(f"the block at {block} fails: {type(error).__name__}: {error}") from error


def compiled(code: str, name: str) -> CodeType:
    return compile(code, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def run(code: CodeType, names: dict[str, Any]) -> None:
    if code.co_flags & inspect.CO_COROUTINE:
        asyncio.run(eval(code, names))
    else:
        exec(code, names)


def test_a_block_that_fails_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("Text.\n\n<!-- needs: json -->\n```python\nawait missing()\n```\n\n```text\nno code\n```\n")
    [block] = blocks(page, "python")
    assert (block.line, block.why) == (5, "needs: json")
    with pytest.raises(NameError):
        run(compiled(block.code, str(block)), {})


TESTED_ELSEWHERE = ("fineflow demo", "fineflow profile")
COMMANDS = sorted(
    {
        line.partition("  #")[0].partition(" > ")[0].strip()
        for page in PAGES
        for block in blocks(page, "sh")
        for line in block.code.splitlines()
        if line.startswith("fineflow ") and not line.startswith(TESTED_ELSEWHERE)
    }
)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_run(command: str, tmp_path: Path) -> None:
    write_app(tmp_path)
    done = programs.run("-m", *shlex.split(command), cwd=tmp_path)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    assert "Traceback" not in done.stderr


def test_some_commands_are_found() -> None:
    assert {command.split()[1] for command in COMMANDS} >= {"run", "check", "timeline"}
