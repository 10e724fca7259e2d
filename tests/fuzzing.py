"""Tests with random examples: a bounded, repeatable number of them, or with ``FINEFLOW_FUZZ=N`` N other ones."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

LONGER = int(os.environ.get("FINEFLOW_FUZZ", "0"))


def bounded(examples: int) -> settings:
    """Returns the settings of a test that runs so many examples, the same ones each time."""
    return settings(
        max_examples=LONGER or examples,
        derandomize=not LONGER,
        database=None,
        deadline=None,
        print_blob=False,
        suppress_health_check=list(HealthCheck),
    )
