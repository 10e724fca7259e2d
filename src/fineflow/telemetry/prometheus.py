"""Metrics of ``prometheus_client``: ordinary instruments, which its multiprocess mode adds up over workers.

A custom collector would be asked in the one process that serves the scrape, and multiprocess mode asks none.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import prometheus_client

from fineflow.runtime.recording import RecordedCall
from fineflow.telemetry.finished import FinishedCall
from fineflow.telemetry.metrics import METRICS, RUNNING, Metric, of_call, of_work

_lock = threading.Lock()
_made: weakref.WeakKeyDictionary[Any, Mapping[Metric, Any]] = weakref.WeakKeyDictionary()
"""Instruments by registry: a registry takes a name once."""


class Prometheus:
    """Adds ended calls to the instruments of a registry."""

    def __init__(self, registry: Any = None) -> None:
        registry = prometheus_client.REGISTRY if registry is None else registry
        with _lock:
            found = _made.get(registry)
            if found is None:
                found = _made[registry] = {metric: _instrument(metric, registry) for metric in METRICS}
        self._instruments = found

    def began(self, call: RecordedCall) -> bool:
        """Counts a call as running."""
        self._instruments[RUNNING].inc()
        return True

    def finished(self, call: FinishedCall, given: bool | None) -> None:
        """Adds an ended call to the metrics."""
        if given is None:  # it began with a fault
            return
        self.dropped(call, given)
        for metric, value, labels in of_call(call):
            self._add(metric, value, labels)

    def dropped(self, call: FinishedCall, given: bool | None) -> None:
        """Counts a call as over."""
        if given is not None:
            self._instruments[RUNNING].dec()

    def worked(self, engine: str, items: int, waits: Sequence[float], seconds: float, failed: bool) -> None:
        """Adds an ended batch to the metrics."""
        for metric, value, labels in of_work(engine, items, waits, seconds, failed):
            self._add(metric, value, labels)

    def _add(self, metric: Metric, value: float, labels: Sequence[str]) -> None:
        instrument = self._instruments[metric].labels(*labels)
        if metric.kind == "histogram":
            instrument.observe(value)
        else:
            instrument.inc(value)


def _instrument(metric: Metric, registry: Any) -> Any:
    labels = [name.replace(".", "_") for name in metric.labels]
    about: dict[str, Any] = {"labelnames": labels, "registry": registry}
    if metric.kind == "counter":
        return prometheus_client.Counter(metric.exposed, metric.text, **about)
    if metric.kind == "gauge":  # a worker that has died does not count
        return prometheus_client.Gauge(metric.exposed, metric.text, multiprocess_mode="livesum", **about)
    return prometheus_client.Histogram(metric.exposed, metric.text, buckets=metric.buckets, **about)
