"""Instrumentation: the outermost calls of an app that runs unchanged go through ``optimize``."""

from fineflow.instrumentation.instrument import instrument, paused, status, uninstrument

__all__ = ["instrument", "paused", "status", "uninstrument"]
