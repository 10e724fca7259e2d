"""Capacity planning: how many instances of each engine an app needs at a rate of calls, for an objective of latency.

``fineflow plan`` prints it. A call of the app, recorded once, becomes a graph of steps (``workload``); arrivals come
from a random process or a trace (``arrivals``); ``simulation`` runs any number of them on emulated instances, event by
event; ``search`` finds the least instances that meet the objectives.
"""
