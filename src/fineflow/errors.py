"""Exceptions that fineflow itself raises. Exceptions of the user's pipeline pass through unchanged."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

__all__ = [
    "BackendError",
    "FineflowError",
    "FineflowWarning",
    "GraphError",
    "Overloaded",
    "PlanningError",
    "RequestError",
    "SemanticError",
    "UntestedVersionWarning",
    "UsageError",
]


_SHOWN = 80  # characters of a value in messages


class FineflowError(Exception):
    """Base of every exception that fineflow itself raises."""


class GraphError(FineflowError):
    """A graph breaks a validity rule; the message names the primitive, its inputs and the rule."""


class PlanningError(FineflowError):
    """An object could not be planned. Raised by ``explain`` and with ``strict=True``; else the object runs as stock."""


class BackendError(FineflowError):
    """An engine could not start, or died. Chains the cause."""


class RequestError(BackendError):
    """An engine refuses one request (too long, no chat template) and keeps serving others."""


class Overloaded(FineflowError):
    """A ``Runtime`` has reached its bound of concurrent or waiting calls. The call has not run; it may be retried."""


class SemanticError(FineflowError):
    """A request or transform that a semantic variable depends on failed, or was cancelled. Chains the cause.

    name: of the variable that has no value. reason: what failed, and why.
    """

    def __init__(self, name: str, reason: str) -> None:
        own = reason.startswith((f"{name} failed", f"{name} was cancelled"))
        super().__init__(reason if own else f"{name} has no value: {reason}")
        self.name, self.reason = name, reason

    def __reduce__(self) -> tuple[type[SemanticError], tuple[str, str]]:
        return type(self), (self.name, self.reason)


class FineflowWarning(UserWarning):
    """fineflow left something to stock that the user may have expected to be optimized."""


class UntestedVersionWarning(UserWarning):
    """A framework is newer than the newest release that fineflow was tested with. Nothing has failed."""


class UsageError(Exception):
    """Bad input to a command. The message is one line: what was expected, what came, what to do."""


def shown(value: Any) -> str:
    """Returns the beginning of a value's ``repr``, for messages."""
    text = repr(value[: _SHOWN + 1] if isinstance(value, str) else value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def installing(extras: str) -> str:
    """Returns the command that installs extras, from where this fineflow came from: a checkout, a file, or an index."""
    import json  # all of these take longer to import than the rest of this module, and only a message needs them
    from importlib import metadata
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    try:
        told = json.loads(metadata.distribution("fineflow").read_text("direct_url.json") or "{}")
    except (metadata.PackageNotFoundError, ValueError):  # a folder on the path
        return f"pip install -e '.[{extras}]' in a checkout of fineflow"
    url, editable = str(told.get("url", "")), told.get("dir_info", {}).get("editable", False)
    if url.startswith("file:"):
        path = url2pathname(urlsplit(url).path)
        source = "." if path == os.getcwd() else path
        return f"pip install {'-e ' if editable else ''}'{source}[{extras}]'"
    system = told.get("vcs_info", {}).get("vcs", "")
    return f"pip install 'fineflow[{extras}]{f' @ {system}+{url}' if system else ''}'"


def missing_folder(model: str | Path) -> str:
    """Returns what is wrong with a model that is given as a local folder; "" if nothing is, or if it is a hub id."""
    source = os.path.expanduser(model)
    local = isinstance(model, Path) or source.startswith((os.sep, "./", "../", ".\\", "..\\"))
    if not local or os.path.isdir(source):
        return ""
    return "that is a file" if os.path.exists(source) else "there is no such folder"


def not_loaded(kind: str, model: str | Path, expected: str, reason: str) -> BackendError:
    """Returns the error of every engine whose model cannot be loaded. kind, expected: such as "LLM", "a folder with …".

    reason: from ``missing_folder``, or what the library said, in one line.
    """
    source = os.path.expanduser(model)
    return BackendError(
        f"could not load the {kind} {source!r}: {reason.rstrip('.')}. "
        f"Expected {expected}, or the id of a model on a hub that can be reached."
    )
