"""What forked children do first: threads and locks of the parent are not there, its calls go on elsewhere."""

from __future__ import annotations

import os
from collections.abc import Callable


def in_forked_children(do: Callable[[], None]) -> Callable[[], None]:
    """Decorates a function that each forked child calls before anything else; on systems without fork, nobody does."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=do)
    return do
