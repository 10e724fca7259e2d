"""Benchmarks of fineflow's gains and costs: each module is a command, e.g. ``python -m benchmarks.assistant --help``.

"Stock" is the framework's own code, without fineflow.
"""
