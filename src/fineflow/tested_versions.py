"""The newest releases of the frameworks that the tests pass with, and whether newer ones are installed.

fineflow reads the frameworks' own code. What a newer release changed is understood, or left to stock; which of the two,
nobody has tried yet.
"""

from __future__ import annotations

import re
import sys
import threading
import warnings
from collections.abc import Mapping
from functools import cache

from fineflow.errors import UntestedVersionWarning

# Those of constraints.txt; tools/constraints.py moves both.
NEWEST = {
    "langchain": "1.5.2",
    "langchain-classic": "1.0.8",
    "langchain-core": "1.8.3",
    "langchain-openai": "1.7.4",
    "langgraph": "1.2.24",
    "llama-index-core": "0.14.25",
}
_ADVICE = "What it changed may run as stock: compare with `fineflow check`, or upgrade fineflow"


def release(version: str) -> tuple[int, ...]:
    """Returns the numbers of a release, without what follows them; empty if it has none."""
    found = re.match(r"(?:\d+!)?v?(\d+(?:\.\d+)*)", version)
    return tuple(int(part) for part in found[1].split(".")) if found is not None else ()


def newer(installed: Mapping[str, str]) -> tuple[str, ...]:
    """Returns a sentence for each package that is newer than ``NEWEST``. installed: versions by package."""
    return tuple(
        f"{name} {installed[name]} is newer than the newest release that was tested, {tested}. {_ADVICE}."
        for name, tested in NEWEST.items()
        if release(installed.get(name, "")) > release(tested)
    )


@cache
def of_this_process() -> tuple[str, ...]:
    """Returns the sentences on the frameworks that this process has imported. Reads their metadata, thus files."""
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for name in NEWEST:  # modules: langchain_core, llama_index
        if name.removesuffix("-core").replace("-", "_") in sys.modules or name.replace("-", "_") in sys.modules:
            try:
                found[name] = version(name)
            except PackageNotFoundError:  # vendored
                continue
    return newer(found)


@cache
def warn_once() -> threading.Thread:
    """Warns of newer frameworks, once per process, from a thread: the caller may be on an event loop."""

    def warn() -> None:
        if said := of_this_process():
            warnings.warn(" ".join(said), UntestedVersionWarning, stacklevel=1)

    thread = threading.Thread(target=warn, name="fineflow-versions", daemon=True)
    thread.start()
    return thread
