"""The instrumentor for OpenTelemetry's tools, which find it by its entry point."""

from __future__ import annotations

import os
from collections.abc import Collection
from importlib.util import find_spec
from typing import Any

from fineflow import telemetry
from fineflow.instrumentation.instrument import instrument, status, uninstrument


class FineflowInstrumentor:
    """``instrument`` with ``telemetry.enable``, and their ends, in the form of OpenTelemetry's ``BaseInstrumentor``.

    ``opentelemetry-instrument`` calls every installed instrumentor. Having fineflow installed changes no app by itself:
    of this one that call does something only with the environment variables ``FINEFLOW_INSTRUMENT=1`` (routes the app's
    calls, with telemetry) or ``FINEFLOW_TELEMETRY=1`` (telemetry alone, of what the app itself optimizes).
    """

    def instrumentation_dependencies(self) -> Collection[str]:
        """Returns the packages that have to be installed: none, a framework counts once it is imported."""
        return ()

    def instrument(self, tracer_provider: Any = None, meter_provider: Any = None, **options: Any) -> None:
        """Routes the app's calls, and turns telemetry on if opentelemetry-api is installed.

        tracer_provider, meter_provider: see ``fineflow.telemetry.enable``. options: see ``fineflow.instrument``.
        """
        automatic = options.pop("skip_dep_check", False)  # passed by opentelemetry-instrument alone
        options.pop("raise_exception_on_conflict", None)
        routes = not automatic or _wanted("FINEFLOW_INSTRUMENT")
        if routes:
            instrument(**options)
        given = tracer_provider is not None or meter_provider is not None
        if given or ((routes or _wanted("FINEFLOW_TELEMETRY")) and find_spec("opentelemetry") is not None):
            telemetry.enable(tracer_provider, meter_provider)

    def uninstrument(self, **_: Any) -> None:
        """See ``fineflow.uninstrument`` and ``fineflow.telemetry.disable``."""
        uninstrument()
        telemetry.disable()

    @property
    def is_instrumented_by_opentelemetry(self) -> bool:
        return status().active


def _wanted(variable: str) -> bool:
    return os.environ.get(variable, "") not in ("", "0")
