"""The example scripts as programs, and what of their output does not depend on the machine."""

from __future__ import annotations

import os
import re
from pathlib import Path
from subprocess import CompletedProcess

import programs

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(path for path in (ROOT / "examples").rglob("*.py") if "__main__" in path.read_text(encoding="utf-8"))
# Of examples/langchain, as `python -m benchmarks.public.community_apps` measures them in virtual time.
NOTHING_TO_GAIN = frozenset(
    {
        *("conversational_rag", "hyde", "parent_document", "rag_fusion"),
        *("router", "self_query", "step_back", "summary_refine"),
    }
)


def ran(script: Path, folder: Path, *before: str, **env: str) -> CompletedProcess[str]:
    return programs.run(*before, script, cwd=folder, env={**os.environ, **env})


def said(text: str) -> list[str]:
    """Returns the lines without what was measured: times, and the plan and the tables that are made of them."""
    text = re.sub(r"^(?:Plan for|As run|Last run).*?^output: .*?$", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.split(r"^(?:Plan for|As run|Last run)", text, maxsplit=1, flags=re.MULTILINE)[0]
    text = re.sub(r"\d+(\.\d+)?( times| ?m?s\b|x\b)", "#", text)
    text = re.sub(r"\d+(\.\d+)?%", "#", text)
    text = re.sub(r"; # of # prompt tokens|\b\d+ of \d+ prompt tokens", "#", text)
    return [" ".join(line.split()) for line in text.splitlines()]


def last(text: str) -> list[str]:
    """Returns the last line that is not a progress bar."""
    return [line for line in text.strip().splitlines() if "it/s]" not in line][-1:]
