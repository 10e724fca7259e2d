"""Timelines: ``record`` collects intervals, ``timeline_html`` and ``chrome_trace`` show them."""

from typing import TYPE_CHECKING

from fineflow._lazy import Lazy, lazily
from fineflow.runtime.events import Interval, labelled, record

if TYPE_CHECKING:  # imported on first use: plans are shown without them
    from fineflow.observe.chrome import chrome_trace
    from fineflow.observe.timeline import Timeline
    from fineflow.observe.timeline_page import timeline_html
    from fineflow.observe.tracks import Track

__all__ = ["Interval", "Timeline", "Track", "chrome_trace", "labelled", "record", "timeline_html"]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "Timeline": Lazy("fineflow.observe.timeline"),
        "Track": Lazy("fineflow.observe.tracks"),
        "chrome_trace": Lazy("fineflow.observe.chrome"),
        "timeline_html": Lazy("fineflow.observe.timeline_page"),
    },
)
