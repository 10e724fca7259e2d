"""Tests with random examples: a bounded, repeatable number of them, or with ``FINEFLOW_FUZZ=N`` N other ones.

``make test`` runs a quarter of the number that ``make test-all`` runs.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

LONGER = int(os.environ.get("FINEFLOW_FUZZ", "0"))
QUICK = 4

all_of_them = False  # set by conftest before tests are imported


def bounded(examples: int) -> settings:
    """Returns the settings of a test that runs so many examples, the same ones each time; or some, to be quick."""
    return settings(
        max_examples=LONGER or (examples if all_of_them else max(10, examples // QUICK)),
        derandomize=not LONGER,
        database=None,
        deadline=None,
        print_blob=False,
        suppress_health_check=list(HealthCheck),
    )
