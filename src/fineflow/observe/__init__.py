"""Timelines: ``record`` collects intervals, ``timeline_html`` and ``chrome_trace`` show them."""

from fineflow.observe.timeline import Track, chrome_trace, timeline_html
from fineflow.runtime.events import Interval, labelled, record

__all__ = ["Interval", "Track", "chrome_trace", "labelled", "record", "timeline_html"]
