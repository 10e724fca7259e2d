"""Texts and figures that the documentation quotes are those of the program."""

from __future__ import annotations

import ast
import json
import re
from functools import cache
from typing import Any

import pytest
from benchmarks.harness import page
from benchmarks.public import community_apps as apps
from tools.pictures.__main__ import FOLDER, drawings
from tools.pictures.chart import chart
from tools.pictures.svg import PALETTES

from docs_kit import PAGES, ROOT
from fineflow.testing import virtual_threads

DOCS = ROOT / "docs"
_ERROR = re.compile(r"^\w+(Error|Overloaded): ")


@cache
def said() -> str:
    """All that the source can say: its constant texts, f-strings in parts."""
    found = []
    for path in (ROOT / "src" / "fineflow").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return "\n".join(found)


def quoted() -> list[str]:
    """The messages in the first column of the tables of troubleshooting.md."""
    rows = [line.split(" | ")[0] for line in (DOCS / "troubleshooting.md").read_text("utf-8").splitlines()]
    found = [text for row in rows if row.startswith("| ") for text in re.findall(r"`([^`]+)`", row)]
    return [text for text in found if " " in text and not text.startswith("fineflow ")]


def fragments(text: str) -> list[str]:
    parts = re.split(r"[…();\[\]]|: |pip install", _ERROR.sub("", text))
    return [part.strip(" .'") for part in parts if len(part.strip(" .'")) > 4 and part.strip() != "ImportError"]


@pytest.mark.parametrize("text", quoted())
def test_messages_are_those_of_the_source(text: str) -> None:
    assert fragments(text)
    assert [part for part in fragments(text) if part not in said()] == []


def test_a_message_that_nobody_says_is_found() -> None:
    assert len(quoted()) > 15
    assert fragments("BackendError: the moon … is full; try later") == ["the moon", "is full", "try later"]
    assert "the moon" not in said()


@pytest.fixture(scope="module")
def seconds() -> dict[str, dict[str, float]]:
    """Seconds of ``invoke`` of each app, as ``python -m benchmarks.public.community_apps`` measures them."""
    if not virtual_threads.available:
        pytest.skip("needs /proc/self/task")
    pytest.importorskip("langchain_openai")
    found = {}
    for name, path in apps.PATHS.items():
        stock, mine = (apps.seconds(name, optimized=each, awaits=False)[1] for each in (False, True))
        found[f"{name}, invoke"] = {"path": path, "stock": stock, "fineflow": mine}
    return found


@pytest.mark.filterwarnings("ignore::langchain_core._api.LangChainDeprecationWarning")
@pytest.mark.filterwarnings("ignore::langchain_core._api.LangChainBetaWarning")
def test_the_chart_of_gains_shows_what_is_measured(seconds: dict[str, Any]) -> None:
    """``python -m benchmarks suite emulated`` would write the figures that are drawn."""
    rounded = {name: {kind: round(each, 3) for kind, each in of.items()} for name, of in seconds.items()}
    for palette in PALETTES:
        svg = (FOLDER / f"gains-{palette.name}.svg").read_text(encoding="utf-8")
        assert svg == chart(rounded, palette), "it is old: make bench"
    changed = json.loads(json.dumps(rounded))
    changed["self_rag, invoke"]["fineflow"] += 0.5
    assert chart(changed, PALETTES[0]) != chart(rounded, PALETTES[0])


def test_drawings_are_those_of_the_program() -> None:
    """``make pictures`` and ``python -m benchmarks report`` would draw what is there, and write the same page."""
    for name, svg in drawings().items():
        assert (FOLDER / f"{name}.svg").read_text(encoding="utf-8") == svg, f"{name}.svg is old: make pictures"
    files, text = page.measured(), page.PAGE.read_text(encoding="utf-8")
    assert "emulated" in files or page.NOT_YET.format(target="bench") in text
    for name, svg in page.pictures(files).items():
        assert (FOLDER / name).read_text(encoding="utf-8") == svg, f"{name} is old: python -m benchmarks report"
    assert page.filled(text, page.parts(files)) == text, "the page is old: python -m benchmarks report"


def test_the_table_of_apps_is_what_is_measured(seconds: dict[str, Any]) -> None:
    page = (DOCS / "langchain.md").read_text(encoding="utf-8").partition("\n## Apps\n")[2]
    rows = re.findall(r"^\| `(\w+)` \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", page, re.MULTILINE)
    assert {row[0] for row in rows} == set(apps.PATHS)
    for name, *shown in rows:
        each = seconds[f"{name}, invoke"]
        measured = [each["path"], each["stock"], each["fineflow"], each["stock"] / each["fineflow"]]
        assert [float(text) for text in shown] == pytest.approx(measured, abs=0.0051), name


def test_pictures_that_are_shown_exist_and_others_do_not() -> None:
    found = (re.findall(r"images/([\w/-]+\.\w+)", page.read_text(encoding="utf-8")) for page in PAGES)
    files = [path for path in FOLDER.rglob("*") if path.is_file()]
    assert {name for names in found for name in names} == {str(path.relative_to(FOLDER)) for path in files}
    assert [path.name for path in files if path.stat().st_size > 200_000] == []


def test_every_page_is_in_the_navigation_once() -> None:
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2].partition("\n\n")[0]
    assert sorted(re.findall(r": ([\w-]+\.md)$", nav, re.MULTILINE)) == sorted(path.name for path in DOCS.glob("*.md"))


SOURCE = ROOT / "src" / "fineflow"
MAP = (
    *("design", "python-model", "effects", "claims", "component-calls"),
    *("inside-langgraph", "queues-and-loops", "adding"),
)
"""The pages that name files of the source. The first one is the map, which has to stay short."""
_FILE = re.compile(r"[\w*][\w.*-]*(/[\w.*-]+)*(\.py|\.md|\.toml|/)|[\w*]+(/[\w*]+)+")


def named(page: str) -> list[str]:
    """The files and folders that a page names in its text, outside of code blocks."""
    text = re.sub(r"^```.*?^```", "", (DOCS / f"{page}.md").read_text(encoding="utf-8"), flags=re.M | re.S)
    return [text for text in re.findall(r"`([^`\n]+)`", text) if _FILE.fullmatch(text)]


def exists(name: str) -> bool:
    """True for the end of the path of a file or folder: of the source, or from the root."""
    return bool(list(SOURCE.rglob(name.strip("/"))) or list(ROOT.glob(name.strip("/"))))


def tree() -> list[str]:
    """The folders of the source that the tree of design.md has, as it writes them: without those around them."""
    text = (DOCS / "design.md").read_text(encoding="utf-8").partition("```text\nsrc/fineflow/\n")[2].partition("```")[0]
    return re.findall(r"(?<![\w.])(\w+)/(?=[\s:])", text)


@pytest.mark.parametrize("page", MAP)
def test_what_the_pages_of_the_design_name_exists(page: str) -> None:
    assert [name for name in named(page) if not exists(name)] == []
    assert len((DOCS / f"{page}.md").read_text(encoding="utf-8").splitlines()) <= (350 if page == "design" else 250)


def test_the_tree_of_the_design_has_every_folder() -> None:
    folders = {path.parent for path in SOURCE.rglob("__init__.py")} - {SOURCE}
    assert sorted(set(tree())) == sorted({path.name for path in folders})
    assert len(named("design")) > 30
    assert exists("adapters/core/session.py")
    assert not exists("adapters/core/moon.py")


def test_links_of_the_readme_lead_somewhere() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)|(?:srcset|src)=\"([^\"]+)\"", text)
    missing = [place for pair in targets for place in pair if place and not (ROOT / place).exists()]
    assert missing == []
