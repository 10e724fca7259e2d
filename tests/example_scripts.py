"""The example scripts as programs, and what of their output does not depend on the machine."""

from __future__ import annotations

import fcntl
import json
import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess

import programs

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted(path for path in (ROOT / "examples").rglob("*.py") if "__main__" in path.read_text(encoding="utf-8"))
# Those whose services sleep run in virtual time. The others load a model.
SLEEPING = ("langchain", "langgraph", "advanced_rag", "document_qa", "router", "sub_questions")
# Of examples/langchain, as `python -m benchmarks.public.community_apps` measures them in virtual time.
NOTHING_TO_GAIN = frozenset(
    {
        *("conversational_rag", "hyde", "parent_document", "rag_fusion"),
        *("router", "self_query", "step_back", "summary_refine"),
    }
)


@dataclass(frozen=True)
class Ran:
    """left: files that the program has left in the empty folder in which it ran."""

    returncode: int
    stdout: str
    stderr: str
    left: list[str]


def by_python(script: Path, kept: Path) -> Ran:
    """What a script does when ``python`` runs it. It runs once for all tests of all workers: ``kept`` is their folder.

    Raises subprocess.TimeoutExpired.
    """
    kept = kept / "examples"
    kept.mkdir(exist_ok=True)
    found = kept / f"{script.parent.name}-{script.stem}.json"
    with found.with_suffix(".lock").open("w") as lock, tempfile.TemporaryDirectory() as folder:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not found.exists():
            done = ran(script, Path(folder))
            left = [path.name for path in Path(folder).iterdir()]
            found.write_text(json.dumps([done.returncode, done.stdout, done.stderr, left]), encoding="utf-8")
        return Ran(*json.loads(found.read_text(encoding="utf-8")))


def ran(script: Path, folder: Path, *before: str, **env: str) -> CompletedProcess[str]:
    virtual = script.parent.name in SLEEPING or script.stem in SLEEPING
    return programs.run(*before, script, cwd=folder, env={**os.environ, **env}, virtual=virtual)


def said(text: str) -> list[str]:
    """Returns the lines without what was measured: times, and the plan and the tables that are made of them."""
    plan = r"^(?:Plan for|As run|Last run).*?(?:^output: .*?|fineflow explain --graphs)$"
    text = re.sub(plan, "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.split(r"^(?:Plan for|As run|Last run)", text, maxsplit=1, flags=re.MULTILINE)[0]
    text = re.sub(r"\d+(\.\d+)?( times| ?m?s\b|x\b)", "#", text)
    text = re.sub(r"\d+(\.\d+)?%", "#", text)
    text = re.sub(r"; # of # prompt tokens|\b\d+ of \d+ prompt tokens", "#", text)
    text = re.sub(r"\b\d+( free tokens| tokens free)", r"#\1", text)  # of the engine, which frees them meanwhile
    return [" ".join(line.split()) for line in text.splitlines()]


def last(text: str) -> list[str]:
    """Returns the last line that is not a progress bar."""
    return [line for line in text.strip().splitlines() if "it/s]" not in line][-1:]
