"""Component calls inside user functions run ahead, with the results, requests and traces of stock."""

from __future__ import annotations

import pytest
from pipelines import ENTRIES
from written_apps import APPS, ASYNC_APPS

import fineflow
from fineflow.testing import virtual, virtual_threads
from fineflow.testing.differential import assert_same

needs_virtual_threads = pytest.mark.skipif(not virtual_threads.available, reason="needs /proc")


@needs_virtual_threads
@pytest.mark.parametrize("name", APPS)
def test_takes_its_critical_path(name: str) -> None:
    app = APPS[name]
    value, stock = virtual_threads.run(lambda: app.make(1).invoke(app.value))
    assert stock == pytest.approx(app.stock, abs=0.02)
    fast = fineflow.optimize(app.make(1), strict=True)
    found, took = virtual_threads.run(lambda: fast.invoke(app.value))
    assert found == value
    assert took <= 1.15 * app.path, (took, app.path)
    assert took <= stock * 1.02


@pytest.mark.parametrize("name", APPS)
def test_same(name: str) -> None:
    app = APPS[name]
    assert_same(lambda: app.make(0), app.value, strict=True, entries=ENTRIES)


@pytest.mark.parametrize("name", ASYNC_APPS)
def test_async_takes_its_critical_path(name: str) -> None:
    app = ASYNC_APPS[name]
    value, stock = virtual.run(app.make(1).ainvoke(app.value))
    assert stock == pytest.approx(app.stock)
    found, took = virtual.run(fineflow.optimize(app.make(1), strict=True).ainvoke(app.value))
    assert found == value
    assert took <= 1.02 * app.path, (took, app.path)


@pytest.mark.parametrize("name", ASYNC_APPS)
def test_async_same(name: str) -> None:
    app = ASYNC_APPS[name]
    assert_same(lambda: app.make(0), app.value, strict=True, entries=("ainvoke", "astream", "abatch"))
