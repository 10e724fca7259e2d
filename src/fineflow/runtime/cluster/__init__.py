"""Engines on Ray, which the processes of a cluster share (``fineflow.Runtime(cluster=...)``).

Each engine has a *host*, a named actor that owns fineflow's queue of it and serves all processes; its instances are
actors of their own. ``worker``: an instance. ``host``: the queue. ``remote``: the engine as other processes see it.
``scope``: what goes with a request. ``connection``: this process and its cluster. ``local``: the one of this machine.
"""
