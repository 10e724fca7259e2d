"""Timelines: ``record`` collects intervals, ``timeline_html`` and ``chrome_trace`` show them."""

from fineflow.observe.chrome import chrome_trace
from fineflow.observe.timeline import Timeline
from fineflow.observe.timeline_page import timeline_html
from fineflow.observe.tracks import Track
from fineflow.runtime.events import Interval, labelled, record

__all__ = ["Interval", "Timeline", "Track", "chrome_trace", "labelled", "record", "timeline_html"]
