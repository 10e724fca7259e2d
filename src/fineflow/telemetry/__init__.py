"""Telemetry of optimized calls: OpenTelemetry's spans and metrics, and Prometheus' metrics. Off until it is turned on.

Each library is imported by the function that needs it. While nothing is on, calls do nothing for telemetry.
"""

from __future__ import annotations

import threading
from importlib import import_module
from typing import Any

from fineflow.errors import installing
from fineflow.telemetry.hub import HUB, Sink

__all__ = ["disable", "enable", "enable_prometheus"]

_lock = threading.Lock()
_on: dict[str, Sink] = {}


def enable(tracer_provider: Any = None, meter_provider: Any = None) -> None:
    """Turns on OpenTelemetry's spans and metrics for the calls of optimized objects, in this process::

        fineflow.telemetry.enable()

    Each outermost call becomes a span, as a child of the span that is current when the call begins, with a span below
    it for each step. They are made when the call has ended, and are never current, so no span of another library
    changes its place. They hold times, names and counts: no prompt, answer, document, argument or message of an
    exception. Calling it again replaces the providers.

    tracer_provider, meter_provider: those of OpenTelemetry's SDK (by default the global ones, also if they are set
    later).

    Raises: ImportError without opentelemetry-api; TypeError for something that is no provider.
    """
    for name, provider, method in (
        ("tracer_provider", tracer_provider, "get_tracer"),
        ("meter_provider", meter_provider, "get_meter"),
    ):
        if provider is not None and not callable(getattr(provider, method, None)):
            kind = "TracerProvider" if method == "get_tracer" else "MeterProvider"
            raise TypeError(f"{name} must be a {kind} of OpenTelemetry, not {type(provider).__name__}")
    made = _module("opentelemetry", "otel", "opentelemetry-api")
    _set("opentelemetry", made.OpenTelemetry(tracer_provider, meter_provider))


def enable_prometheus(registry: Any = None) -> None:
    """Turns on metrics of ``prometheus_client`` for the calls of optimized objects, in this process::

        fineflow.telemetry.enable_prometheus()

    They are ordinary instruments, so prometheus_client's multiprocess mode (``PROMETHEUS_MULTIPROC_DIR``) adds up those
    of several workers. May be called before workers are forked. Calling it again replaces the registry.

    registry: by default ``prometheus_client.REGISTRY``.

    Raises: ImportError without prometheus-client; ValueError if other metrics of the registry have the same names.
    """
    made = _module("prometheus_client", "prometheus", "prometheus-client")
    _set("prometheus", made.Prometheus(registry))


def disable() -> None:
    """Turns telemetry off. Calls under way are not reported. What was made stays with its providers and registries."""
    with _lock:
        for name in tuple(_on):
            HUB.remove(_on.pop(name))


def _set(name: str, sink: Sink) -> None:
    with _lock:
        if (before := _on.pop(name, None)) is not None:
            HUB.remove(before)
        _on[name] = sink
        HUB.add(sink)


def _module(library: str, extra: str, package: str) -> Any:
    ours = {"opentelemetry": "fineflow.telemetry.otel", "prometheus_client": "fineflow.telemetry.prometheus"}[library]
    try:
        return import_module(ours)
    except ImportError as error:
        if (error.name or "").partition(".")[0] != library:
            raise
        text = f"{package} is not installed; it comes with: {installing(extra)}"
        raise ImportError(text, name=library) from error
