"""Recorders: ``fineflow.record()``, and the command that draws an app as it is above itself, optimized."""
