"""What counts as time of a walk."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any

import pytest
from walk_host import Host, llm


def test_what_the_garbage_collector_takes_is_no_time_of_the_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a large process one collection takes longer than a walk may."""
    clock, collecting = [0.0], list[bool]()
    monkeypatch.setattr("fineflow.adapters.lookahead.stopwatch.time", SimpleNamespace(thread_time=lambda: clock[0]))

    def collects(phase: str, info: dict[str, Any]) -> None:
        collecting.append(phase == "start")
        clock[0] += 0.5 * (phase == "stop")

    class Collecting(Host):
        def call(self, *args: Any, **named: Any) -> Any:
            gc.collect()
            clock[0] += 0.01
            return super().call(*args, **named)

    def asks(items: list[str]) -> None:
        for item in items:
            llm.invoke(item)
            for letter in "x" * 300:
                letter.upper()

    gc.callbacks.append(collects)
    try:
        host = Collecting().through(asks, ["a", "b", "c"])
    finally:
        gc.callbacks.remove(collects)
    assert (host.calls, host.walk.reason) == (["a", "b", "c"], "")
    assert any(collecting)
    assert host.walk.took == pytest.approx(0.03)
    assert not any("stopwatch" in repr(each) for each in gc.callbacks)
