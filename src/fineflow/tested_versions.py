"""The newest releases of the frameworks that the tests pass with, and whether newer ones are installed.

fineflow reads the frameworks' own code. What a newer release changed is understood, or left to stock; which of the two,
nobody has tried yet.
"""

from __future__ import annotations

import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
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


PYTHON = (3, 14)
"""The newest Python whose bytecode is read."""


def interpreter() -> str:
    """Returns why nothing is planned on this interpreter; "" if its bytecode is known, and it has a lock (a GIL)."""
    running = sys.version_info[:2]
    if running > PYTHON:
        return "fineflow does not read the bytecode of Python {}.{}; the newest that it does is {}.{}".format(
            *running, *PYTHON
        )
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return "fineflow was not tested on a Python without a global interpreter lock"
    return ""


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


def package_of(module: str) -> str:
    """Returns the name of the package that a module of a framework is in: "llama-index-llms-openai"."""
    root, _, rest = module.partition(".")
    parts = rest.split(".") if rest else []
    if root == "llama_index":
        parts = parts[:2] if parts and parts[0] != "core" else ["core"]
    elif root != "langgraph" or parts[:1] not in (["prebuilt"], ["checkpoint"]):
        parts = []
    return "-".join([root, *parts[: 1 if root == "langgraph" else 2]]).replace("_", "-")


@cache
def installed_version(package: str) -> str:
    """Returns the installed version of a package; "" if it has none. Reads its metadata, thus files."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:  # vendored
        return ""


def is_newer(package: str) -> bool:
    """Returns True if a package is installed in a release that is newer than the newest one that was tested."""
    return package in NEWEST and release(installed_version(package)) > release(NEWEST[package])


@cache
def of_this_process() -> tuple[str, ...]:
    """Returns the sentences on the frameworks that this process has imported. Reads their metadata, thus files."""
    imported = {package_of(module) for module in tuple(sys.modules) if "." not in module}
    return newer({name: installed_version(name) for name in NEWEST if name in imported})


_told: set[str] = set()


def tell_once(sentences: Iterable[str]) -> None:
    """Warns of sentences that this process has not been told, from a thread: the caller may be on an event loop."""
    new = [each for each in dict.fromkeys(sentences) if each not in _told]
    if new:
        _told.update(new)
        _warn(lambda: new)


@cache
def warn_once() -> threading.Thread:
    """Warns of newer frameworks, once per process, from a thread: the caller may be on an event loop."""
    return _warn(of_this_process)


def _warn(said: Callable[[], Sequence[str]]) -> threading.Thread:
    def warn() -> None:
        if sentences := said():
            warnings.warn(" ".join(sentences), UntestedVersionWarning, stacklevel=1)

    thread = threading.Thread(target=warn, name="fineflow-versions", daemon=True)
    thread.start()
    return thread
