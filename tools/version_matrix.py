"""Runs the suites against several versions of Python and of the libraries, and writes the table of docs/versions.md.

Each row of the table is a set of versions: single releases with what fits them, or one of three whole sets: *lowest*
(the lower bounds of pyproject.toml), *pinned* (constraints.txt) and *newest* (what it allows today). It is installed
into a virtual environment in a temporary folder, and the suite runs on the sources of this checkout.

Usage: python tools/version_matrix.py [--only WORD ...] [--python 3.12=/path/to/python3.12 ...] [--work FOLDER] [--list]
       [--if-newer]

--if-newer: runs nothing where the frameworks' newest releases are those of constraints.txt. .ci/run has the suites
``equality`` and ``runnables`` run on the newest releases in this way, in a small environment.

Rows that did not run keep their line in the table. Exits with 1 if a row could not be installed or a test failed.
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
import constraints

ROOT = Path(__file__).resolve().parents[1]
CONSTRAINTS = ROOT / "constraints.txt"
PAGE = ROOT / "docs" / "versions.md"
BEGIN, END = "<!-- versions: begin -->", "<!-- versions: end -->"
HEAD = "| versions | Python | suite | passed | failed | skipped | seconds | date |\n|---|---|---|---|---|---|---|---|\n"
SHOWN = 20  # failed tests

_TOOLS = ("wrapt>=2.2", "pytest>=9.0.3,<10", "pytest-asyncio>=1.3,<2", "pytest-xdist>=3.8,<4", "hypothesis>=6.100")
_LANGCHAIN = (
    *("langchain-core", "langchain-classic", "langchain-tests", "langchain-text-splitters", "langchain", "numpy"),
    *("chromadb", "langchain-chroma", "langchain-openai", "openai<3", "pytest-mock", "lark"),
)


@dataclass(frozen=True)
class Suite:
    """Tests that run together. first: requirements installed before the others, by themselves.

    small: of a set, too, only what it requires is installed, and not every combination of parameters is run, on all
    cores. arguments: of pytest. limit: seconds.
    """

    tests: tuple[str, ...]
    requires: tuple[str, ...]
    first: tuple[str, ...] = ()
    small: bool = False
    arguments: tuple[str, ...] = ()
    limit: float = 1500.0


_CHAINS = tuple(
    f"tests/adapters/langchain/test_{name}.py"
    for name in (
        *("same_answer", "calls", "composition", "branches", "batches", "maps", "tools", "routers", "history"),
        *("classic_chains", "inner_calls", "made_chains", "made_in_functions", "stores", "servers", "structured"),
        *("retriever_lists", "tracing", "watching"),
    )
)
_INDEXES = tuple(
    f"tests/adapters/llamaindex/test_{name}.py"
    for name in (
        *("same_index", "containers", "choosing", "fusion", "retrievers", "sub_questions", "postprocessors"),
        *("methods", "workflows", "agents", "ingestion", "index_inner_calls", "structured_answers"),
    )
)
_GAINS = (
    *("test_apps", "test_explained_truth", "test_examples", "benchmarks/test_benchmarks", "benchmarks/test_harness"),
    *("watching/test_handler", "watching/test_span_handler", "adapters/langgraph/test_graph_gains"),
    *("adapters/langchain/test_effects_gain", "adapters/llamaindex/test_written_index_apps"),
)
_SMALL = (
    *(*_TOOLS, f"{ROOT}[langchain,langgraph,llama-index,openai,chroma]", "langchain>=1.2,<2", "langchain-tests"),
    *("blockbuster", "freezegun", "grandalf", "lark", "pytest-mock", "pytest-socket", "syrupy", "numpy"),
)
_EQUAL = ("langchain/test_same_answer", "langgraph/test_graph_fidelity", "llamaindex/test_same_index")
_PROVIDERS = ("anthropic", "google-genai", "ollama", "groq", "mistralai")
SUITES = {
    "equality": Suite(tuple(f"tests/adapters/{name}.py" for name in _EQUAL), _SMALL, small=True),
    "providers": Suite(
        ("tests/adapters/langchain/test_structured_providers.py",),
        (*_SMALL, *(f"langchain-{name}" for name in _PROVIDERS)),
        small=True,
    ),
    "runnables": Suite(("tests/upstream/test_upstream.py",), _SMALL, small=True, arguments=("-k", "runnables")),
    "LangChain": Suite(_CHAINS, (*_TOOLS, *_LANGCHAIN)),
    "LlamaIndex": Suite(_INDEXES, (*_TOOLS, *_LANGCHAIN, "llama-index-core")),
    "LangGraph": Suite(("tests/adapters/langgraph",), (*_TOOLS, *_LANGCHAIN, "langgraph")),
    "gains": Suite(tuple(f"tests/{name}.py" for name in _GAINS), ()),
    "upstream": Suite(("tests/upstream",), (), arguments=("-o", "faulthandler_timeout=0"), limit=5400.0),
    "analysis": Suite(("tests/adapters/test_*.py", "tests/adapters/third", "tests/ir"), (*_TOOLS, *_LANGCHAIN)),
    "servers": Suite(
        ("tests/backends/test_openai_server.py", "tests/adapters/langchain/test_servers.py"), (*_TOOLS, *_LANGCHAIN)
    ),
    "transformers": Suite(
        ("tests/backends/test_transformers_*.py",),
        (*_TOOLS, "transformers", "accelerate>=1.0", "llguidance>=1.7,<2", "langchain-core", "langchain-tests"),
        first=("torch==2.13.0",),
    ),
}


@dataclass(frozen=True)
class Row:
    """One line of the table: versions under test, or the name of a set, and what runs against them."""

    versions: tuple[str, ...] | str
    suite: str
    python: str = "3.11"

    @property
    def label(self) -> str:
        return self.versions if isinstance(self.versions, str) else ", ".join(self.versions)


# How uv chooses the versions of a set. What only tests need is as pinned: lower bounds of it are nobody's concern.
SETS: dict[str, tuple[str, ...]] = {"lowest": ("--resolution", "lowest-direct"), "pinned": (), "newest": ()}
_OF_TESTS = re.compile(
    r"(torch|pytest.*|hypothesis|syrupy|blockbuster|freezegun|ruff|mypy|numpy|psycopg.*"
    r"|langgraph-checkpoint-.*)=="
)
_FRAMEWORKS = r"(langchain|langgraph|llama-index|openai|wrapt|pydantic)\b"
_NAMED = ("langchain-core", "langgraph", "llama-index-core")  # in the label of a set

ROWS = [
    *(Row((f"langchain-core=={v}",), "LangChain") for v in ("1.4.9", "1.6.13", "1.7.7", "1.8.0")),
    Row(("llama-index-core==0.14.25",), "LlamaIndex"),
    *(Row((f"openai=={v}",), "servers") for v in ("2.45.0", "2.54.0", "3.54.0")),
    *(
        Row(which, suite)
        for which in SETS
        for suite in ("analysis", "LangChain", "LangGraph", "LlamaIndex", "servers", "upstream")
    ),
    *(Row(which, "gains") for which in ("lowest", "newest")),
    *(Row("newest", suite) for suite in ("equality", "providers", "runnables")),
    *(
        Row("pinned", suite, python)
        for python in ("3.12", "3.13", "3.14")
        for suite in ("analysis", "LangChain", "LangGraph", "LlamaIndex")
    ),
    *(Row((f"transformers=={v}",), "transformers") for v in ("5.20.2", "5.21.1", "5.22.2", "5.23.0")),
]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the chosen rows and updates the page after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="rows whose versions, suite or Python contain a word")
    parser.add_argument("--python", nargs="*", default=[], metavar="VERSION=PATH", help="interpreters not on the PATH")
    parser.add_argument("--work", type=Path, help="folder for the environments, kept; default a temporary one")
    parser.add_argument("--list", action="store_true", help="print the rows and stop")
    parser.add_argument("--if-newer", action="store_true", help="only if a framework has a release newer than pinned")
    asked = parser.parse_args(arguments)
    rows = [row for row in ROWS if not asked.only or any(word in _key(row) for word in asked.only)]
    if not rows:
        parser.error(f"no row contains {' or '.join(asked.only)}; see --list")
    if asked.list:
        print("\n".join(_key(row) for row in rows))
        return 0
    if asked.if_newer and not (lines := newer_frameworks()):
        print("nothing to run: the newest releases of the frameworks are those of constraints.txt")
        return 0
    if asked.if_newer:
        print("newer than constraints.txt:", *lines, sep="\n  ")
    interpreters = dict(item.split("=", 1) for item in asked.python)
    with tempfile.TemporaryDirectory() as temporary:
        work = asked.work or Path(temporary)
        good = [run(row, work.resolve(), interpreters.get(row.python)) for row in rows]
    return 0 if all(good) else 1


def newer_frameworks() -> list[str]:
    """Returns a line for each framework of which pyproject.toml allows a release that is newer than the pinned one."""
    _, lines = constraints.moved(CONSTRAINTS.read_text(encoding="utf-8"), constraints.newest())
    return [line for line in lines if re.match(_FRAMEWORKS, line)]


def run(row: Row, work: Path, interpreter: str | None) -> bool:
    """Installs the versions of a row, runs its suite and writes its line. Returns True if nothing failed."""
    print(f"== {_key(row)}", flush=True)
    suite = SUITES[row.suite]
    work.mkdir(parents=True, exist_ok=True)
    try:
        name = row.suite if not isinstance(row.versions, str) else f"{row.versions}{'-small' if suite.small else ''}"
        folder = work / f"{row.python}-{name}"
        python = _environment(folder, interpreter or f"python{row.python}", suite, row)
    except subprocess.CalledProcessError as error:
        print((error.stdout or "")[-2000:], f"\n{_key(row)}: could not be installed", flush=True)
        return False
    files = [str(found) for pattern in suite.tests for found in sorted(ROOT.glob(pattern))]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    how = ("-n", "logical", *suite.arguments) if suite.small else ("-n0", "--sweep", *suite.arguments)
    command = [str(python), "-m", "pytest", "-q", *how, "--tb=short", "-p", "no:cacheprovider", *files]
    started = time.monotonic()
    log = work / f"{_key(row).replace(' ', '-').replace('|', '').replace('=', '')}.log"
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=suite.limit,
        )
    except subprocess.TimeoutExpired as error:
        log.write_bytes(error.stdout or b"")  # not decoded, whatever was asked for
        print(f"{_key(row)}: has not ended in {suite.limit:.0f} s; the output so far is in {log}", flush=True)
        return False
    seconds = time.monotonic() - started
    log.write_text(done.stdout, encoding="utf-8")
    counts = counted(done.stdout)
    if done.returncode:
        failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
        print("\n".join(failed[:SHOWN]), f"\nthe whole output is in {log}", flush=True)
    good = done.returncode == 0 and counts["passed"] > 0
    label = row.label
    if isinstance(row.versions, str):
        label += f" ({', '.join(_installed(python, _NAMED))})"
    cells = [label, row.python, row.suite, counts["passed"], counts["failed"], counts["skipped"], round(seconds)]
    line = "| " + " | ".join(str(cell) for cell in (*cells, datetime.date.today().isoformat())) + " |"
    print(line, flush=True)
    write(line, 3)
    return good


def counted(output: str) -> dict[str, int]:
    """Returns passed, failed (with errors) and skipped of pytest's closing line; all zero without one."""
    lines = [line for line in output.splitlines() if re.search(r"\d+ (passed|failed|skipped|errors?)\b.* in ", line)]
    found = {what: int(n) for n, what in re.findall(r"(\d+) ([a-z]+)", lines[-1])} if lines else {}
    failed = found.get("failed", 0) + found.get("error", 0) + found.get("errors", 0)
    return {"passed": found.get("passed", 0), "failed": failed, "skipped": found.get("skipped", 0)}


def merged(table: str, line: str, key: int) -> str:
    """Returns a table, by versions, with a line added, or put in place of the one with the same ``key`` first cells."""
    head, rows = table.splitlines()[:2], table.splitlines()[2:]
    rows = [line, *(old for old in rows if _named(old)[:key] != _named(line)[:key])]
    return "\n".join([*head, *sorted(rows, key=_by_version)]) + "\n"


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("| ").split("|")]


def _named(line: str) -> list[str]:
    """The cells of a line, without the versions that a set had: it has others later, and is the same row."""
    return [cell.partition(" (")[0] for cell in _cells(line)]


def _by_version(line: str) -> list[Any]:
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", line)]


def write(line: str, key: int) -> None:
    """Puts a line into the table of the page."""
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    table, after = rest.split(END)
    PAGE.write_text(
        f"{before}{BEGIN}\n{merged(table.strip() or HEAD.strip(), line, key)}{END}{after}", encoding="utf-8"
    )


def _key(row: Row) -> str:
    return f"{row.label} | Python {row.python} | {row.suite}"


def _environment(folder: Path, interpreter: str, suite: Suite, row: Row) -> Path:
    """Makes or reuses an environment and installs the versions. CalledProcessError with the output if that fails."""
    python = folder / "bin" / "python"
    if not python.exists():
        if shutil.which(interpreter) is None:
            sys.exit(f"{interpreter} was not found; name it: --python {row.python}=/path/to/python{row.python}")
        _call([interpreter, "-m", "venv", str(folder)])
        if suite.first or (isinstance(row.versions, str) and not suite.small):
            _call([str(python), "-m", "pip", "install", *(suite.first or ("torch==2.13.0",))])
        _call([str(python), "-m", "pip", "install", "uv"])  # pip takes minutes to find versions that fit old ones
    install = [str(python), "-m", "uv", "pip", "install", "--link-mode", "copy", "--python", str(python)]
    if isinstance(row.versions, str):
        pins = [
            line for line in CONSTRAINTS.read_text().splitlines() if row.versions == "pinned" or _OF_TESTS.match(line)
        ]
        chosen = folder / "constraints.txt"
        chosen.write_text("\n".join([*pins, "torch==2.13.0"]))
        wanted = suite.requires if suite.small else ("--editable", f"{ROOT}[demo,dev]")
        _call([*install, *SETS[row.versions], "-c", str(chosen), *wanted])
        return python
    pinned = {version.partition("==")[0] for version in row.versions}
    others = [wanted for wanted in suite.requires if re.split("[<>=]", wanted)[0] not in pinned]
    _call([*install, *row.versions, *others])
    _call([*install, "--no-deps", "--editable", str(ROOT)])
    return python


def _call(command: Sequence[str]) -> None:
    subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def _installed(python: Path, names: Sequence[str]) -> list[str]:
    """The installed versions of libraries, as NAME==VERSION; those that are not installed are left out."""
    done = subprocess.run([python, "-m", "pip", "freeze"], capture_output=True, text=True, check=True)
    return [line for line in done.stdout.split() if line.partition("==")[0] in names]


if __name__ == "__main__":
    sys.exit(main())
