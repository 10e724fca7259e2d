"""These tests need the extra ``ray``."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

if find_spec("ray") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    from machine import close_machine, machine

    __all__ = ["machine"]

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
        """Closes the ``Runtime`` of the folder's tests behind the last one: others in this process open their own."""
        if nextitem is None or not nextitem.path.is_relative_to(Path(__file__).parent):
            close_machine()
