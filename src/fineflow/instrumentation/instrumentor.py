"""The instrumentor for OpenTelemetry's tools, which find it by its entry point."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any

from fineflow.instrumentation.instrument import instrument, status, uninstrument


class FineflowInstrumentor:
    """``instrument`` and ``uninstrument`` in the form of OpenTelemetry's ``BaseInstrumentor``.

    ``opentelemetry-instrument`` calls every installed instrumentor; of this one that does something only with the
    environment variable ``FINEFLOW_INSTRUMENT=1``, so that having fineflow installed changes no app by itself.
    """

    def instrumentation_dependencies(self) -> Collection[str]:
        """Returns the packages that have to be installed: none, a framework counts once it is imported."""
        return ()

    def instrument(self, **options: Any) -> None:
        """See ``fineflow.instrument``."""
        automatic = options.pop("skip_dep_check", False)  # passed by opentelemetry-instrument alone
        options.pop("raise_exception_on_conflict", None)
        if not automatic or os.environ.get("FINEFLOW_INSTRUMENT", "") not in ("", "0"):
            instrument(**options)

    def uninstrument(self, **_: Any) -> None:
        """See ``fineflow.uninstrument``."""
        uninstrument()

    @property
    def is_instrumented_by_opentelemetry(self) -> bool:
        return status().active
