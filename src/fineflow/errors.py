"""Every exception that fineflow itself raises. What the user's pipeline raises passes through unchanged."""

from __future__ import annotations

__all__ = [
    "BackendError",
    "FineflowError",
    "FineflowWarning",
    "GraphError",
    "Overloaded",
    "PlanningError",
    "RequestError",
]


class FineflowError(Exception):
    """Base of every exception that fineflow itself raises."""


class GraphError(FineflowError):
    """A graph breaks a validity rule; the message names the primitive, its inputs and the rule."""


class PlanningError(FineflowError):
    """An object could not be planned: raised with ``strict=True`` and by ``explain``, else the object runs as stock."""


class BackendError(FineflowError):
    """An engine could not start, or died; the cause is chained."""


class RequestError(BackendError):
    """An engine refuses one request (too long, no chat template), and goes on serving others."""


class Overloaded(FineflowError):
    """More calls than a ``Runtime`` allows at once, or lets wait. Nothing of it has run: it may be tried again."""


class FineflowWarning(UserWarning):
    """Something was left to stock that the user may have expected to be optimized."""
