"""What a connection leaves as it is in the process."""

from __future__ import annotations

import builtins

PRINT = builtins.print


def test_print_stays_pythons_own(machine: object) -> None:
    """Ray replaces it for its progress bars; a function of the user's that prints would then not be understood."""
    assert builtins.print is PRINT
    assert PRINT.__module__ == "builtins"
