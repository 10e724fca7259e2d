"""Identity of calls at the queues of engines: the tenant and the priority that a caller sets around its calls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from fineflow.runtime.queues import request_context
from fineflow.runtime.queues.admission import process_admission

Marks = tuple[tuple[ContextVar[Any], Any], ...]


def identity_marks(tenant: str | None, priority: int | None) -> Marks:
    """Returns context variables and their values: tenant, its weight, and priority; none for what is None."""
    marks: Marks = ()
    if tenant is not None:
        weight = process_admission().limits.weight(tenant)
        marks += ((request_context.tenant, tenant), (request_context.weight, weight))
    return marks if priority is None else (*marks, (request_context.priority, priority))


@contextmanager
def identity(*, tenant: str | None = None, priority: int | None = None) -> Iterator[None]:
    """Sets the tenant and the priority of all calls in the block, of any framework; None: as around it.

    Calls of LangChain objects may set their own in their metadata (``fineflow_tenant``, ``fineflow_priority``), which
    counts before this. priority: higher ones are served first; 0 by default. Use it around whole calls: a stream reads
    it where its first chunk is read.

    Raises: TypeError if ``tenant`` is not a string or ``priority`` not an int.
    """
    if tenant is not None and not isinstance(tenant, str):
        raise TypeError(f"identity(tenant=...) is the name of a tenant, a string; got {tenant!r}")
    if priority is not None and (isinstance(priority, bool) or not isinstance(priority, int)):
        raise TypeError(f"identity(priority=...) is an int, higher ones are served first; got {priority!r}")
    tokens = [(var, var.set(value)) for var, value in identity_marks(tenant, priority)]
    try:
        yield
    finally:
        for var, token in reversed(tokens):
            var.reset(token)
