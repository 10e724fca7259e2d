"""These tests need the extra ``ray``."""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("ray") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    from machine import machine, shared_machine

    __all__ = ["machine", "shared_machine"]
