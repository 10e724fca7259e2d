"""LlamaIndex apps as the community writes them take their critical path, and answer and report as stock does."""

from __future__ import annotations

import pytest

pytest.importorskip("llama_index.core")

from benchmarks.public.llamaindex_apps import APPS, answered
from benchmarks.public.llamaindex_kit import Kit

from fineflow.testing import virtual_threads
from fineflow.testing.llamaindex.differential import assert_same_index


@pytest.mark.skipif(not virtual_threads.available, reason="needs /proc")
@pytest.mark.parametrize("name", APPS)
def test_takes_its_critical_path(name: str) -> None:
    app = APPS[name]
    value, stock, _ = answered(app, optimized=False)
    found, took, saved = answered(app, optimized=True)
    assert found == value
    assert saved == pytest.approx(stock - took, abs=0.05), "explain says another gain"
    assert took <= 1.15 * app.path, (took, app.path)
    assert took <= 1.02 * stock


@pytest.mark.parametrize("name", [name for name, app in APPS.items() if app.entry in ("query", "retrieve")])
def test_same(name: str) -> None:
    app = APPS[name]
    assert_same_index(lambda manager: app.make(Kit(0, manager)), app.value)
