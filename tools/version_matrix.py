"""Runs the suites against several versions of Python and of the libraries, and writes the table of docs/versions.md.

Each row of the table is a set of versions. It is installed into a virtual environment in a temporary folder, together
with what the suite needs in versions that fit, and the suite runs on the sources of this checkout.

Usage: python tools/version_matrix.py [--only WORD ...] [--python 3.12=/path/to/python3.12 ...] [--work FOLDER] [--list]

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

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "versions.md"
BEGIN, END = "<!-- versions: begin -->", "<!-- versions: end -->"
HEAD = "| versions | Python | suite | passed | failed | skipped | seconds | date |\n|---|---|---|---|---|---|---|---|\n"
LIMIT = 1500.0  # seconds for one suite
SHOWN = 20  # failed tests

_TOOLS = ("wrapt>=2.0", "pytest>=9.0.3,<10", "pytest-asyncio>=1.3,<2", "pytest-xdist>=3.8,<4", "hypothesis>=6.100")
_LANGCHAIN = (
    *("langchain-core", "langchain-classic", "langchain-tests", "langchain-text-splitters", "langchain", "numpy"),
    *("chromadb", "langchain-chroma", "langchain-openai", "openai<3", "pytest-mock", "lark"),
)


@dataclass(frozen=True)
class Suite:
    """Tests that run together. first: requirements installed before the others, by themselves."""

    tests: tuple[str, ...]
    requires: tuple[str, ...]
    first: tuple[str, ...] = ()


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
SUITES = {
    "LangChain": Suite(_CHAINS, (*_TOOLS, *_LANGCHAIN)),
    "LlamaIndex": Suite(_INDEXES, (*_TOOLS, *_LANGCHAIN, "llama-index-core")),
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
    """One line of the table: versions under test, and what runs against them. No versions: those of constraints.txt."""

    versions: tuple[str, ...]
    suite: str
    python: str = "3.11"

    @property
    def label(self) -> str:
        return ", ".join(self.versions) or "constraints.txt"


ROWS = [
    *(Row((f"langchain-core=={v}",), "LangChain") for v in ("1.0.7", "1.2.31", "1.4.9", "1.6.13", "1.7.7", "1.8.0")),
    *(
        Row((f"llama-index-core=={v}",), "LlamaIndex")
        for v in ("0.14.5", "0.14.19", "0.14.22", "0.14.23", "0.14.24", "0.14.25")
    ),
    *(Row((f"openai=={v}",), "servers") for v in ("2.45.0", "2.54.0", "3.54.0")),
    *(Row((), suite, python) for python in ("3.12", "3.13") for suite in ("analysis", "LangChain", "LlamaIndex")),
    *(
        Row((f"transformers=={v}",), "transformers")
        for v in ("5.5.4", "5.10.4", "5.15.1", "5.18.0", "5.20.2", "5.21.1", "5.22.2", "5.23.0")
    ),
]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the chosen rows and updates the page after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="rows whose versions, suite or Python contain a word")
    parser.add_argument("--python", nargs="*", default=[], metavar="VERSION=PATH", help="interpreters not on the PATH")
    parser.add_argument("--work", type=Path, help="folder for the environments, kept; default a temporary one")
    parser.add_argument("--list", action="store_true", help="print the rows and stop")
    asked = parser.parse_args(arguments)
    rows = [row for row in ROWS if not asked.only or any(word in _key(row) for word in asked.only)]
    if not rows:
        parser.error(f"no row contains {' or '.join(asked.only)}; see --list")
    if asked.list:
        print("\n".join(_key(row) for row in rows))
        return 0
    interpreters = dict(item.split("=", 1) for item in asked.python)
    with tempfile.TemporaryDirectory() as temporary:
        work = asked.work or Path(temporary)
        good = [run(row, work.resolve(), interpreters.get(row.python)) for row in rows]
    return 0 if all(good) else 1


def run(row: Row, work: Path, interpreter: str | None) -> bool:
    """Installs the versions of a row, runs its suite and writes its line. Returns True if nothing failed."""
    print(f"== {_key(row)}", flush=True)
    suite = SUITES[row.suite]
    work.mkdir(parents=True, exist_ok=True)
    try:
        folder = work / f"{row.python}-{row.suite if row.versions else 'all'}"
        python = _environment(folder, interpreter or f"python{row.python}", suite, row)
    except subprocess.CalledProcessError as error:
        print((error.stdout or "")[-2000:], f"\n{_key(row)}: could not be installed", flush=True)
        return False
    files = [str(found) for pattern in suite.tests for found in sorted(ROOT.glob(pattern))]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [str(python), "-m", "pytest", "-q", "-n0", "--tb=short", "-p", "no:cacheprovider", *files]
    started = time.monotonic()
    done = subprocess.run(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT
    )
    seconds = time.monotonic() - started
    log = work / f"{_key(row).replace(' ', '-').replace('|', '').replace('=', '')}.log"
    log.write_text(done.stdout, encoding="utf-8")
    counts = counted(done.stdout)
    if done.returncode:
        failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
        print("\n".join(failed[:SHOWN]), f"\nthe whole output is in {log}", flush=True)
    good = done.returncode == 0 and counts["passed"] > 0
    label = row.label if row.versions else ", ".join(_installed(python, ("langchain-core", "llama-index-core")))
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
    rows = [line, *(old for old in rows if _cells(old)[:key] != _cells(line)[:key])]
    return "\n".join([*head, *sorted(rows, key=_by_version)]) + "\n"


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("| ").split("|")]


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
    pins = () if row.versions else ("-c", str(ROOT / "constraints.txt"))
    python = folder / "bin" / "python"
    if not python.exists():
        if shutil.which(interpreter) is None:
            sys.exit(f"{interpreter} was not found; name it: --python {row.python}=/path/to/python{row.python}")
        _call([interpreter, "-m", "venv", str(folder)])
        if suite.first:
            _call([str(python), "-m", "pip", "install", *suite.first])
    _call([str(python), "-m", "pip", "install", "uv"])  # pip takes minutes to find versions that fit old ones
    pinned = {version.partition("==")[0] for version in row.versions}
    others = [wanted for wanted in suite.requires if re.split("[<>=]", wanted)[0] not in pinned]
    install = [str(python), "-m", "uv", "pip", "install", "--link-mode", "copy", "--python", str(python)]
    _call([*install, *pins, *row.versions, *others])
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
