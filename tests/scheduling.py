"""Distribution of the tests over the workers of pytest-xdist."""

from __future__ import annotations

from typing import Any

from xdist.scheduler import LoadFileScheduling

# Long tests, most of which run in processes of their own. They start first, so that no worker is left with one of
# them at the end, and those that share no fixture go one by one to the next free worker.
ONE_BY_ONE = (
    "tests/adapters/langchain/test_random_chains.py",
    "tests/adapters/llamaindex/test_index_examples.py",
    "tests/benchmarks/",
    "tests/passes/test_never_slower.py",
    "tests/test_examples.py",
)
FIRST = ("tests/upstream/", *ONE_BY_ONE)
TOGETHER = "tests/cluster/"  # its tests share one instance of Ray


class Scheduling(LoadFileScheduling):
    """Gives a worker whole files, which keep their fixtures, but the long tests of ``ONE_BY_ONE`` each by itself.

    A test that loses its worker, as one does that hangs, is not run again; xdist's own schedulers by file try it until
    they run out of workers.
    """

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(TOGETHER):
            return TOGETHER
        return nodeid if nodeid.startswith(ONE_BY_ONE) else super()._split_scope(nodeid)

    def _reschedule(self, node: Any) -> None:
        if node.shutting_down:
            return
        # A worker has to know the next test before it runs one, and that there is none before it runs the last.
        while self.workqueue and self._pending_of(self.assigned_work[node]) <= 2:
            self._assign_work_unit(node)
        if not self.workqueue:
            node.shutdown()

    def remove_node(self, node: Any) -> str | None:
        """Hands the other tests of a worker that is lost to the rest. Returns the one that was running, if any."""
        units = self.assigned_work.pop(node)
        pending = [(unit, nodeid) for unit in units.values() for nodeid, done in unit.items() if not done]
        if not pending:
            return None
        unit, running = pending[0]
        unit[running] = True
        self.workqueue.update({scope: unit for scope, unit in units.items() if not all(unit.values())})
        for other in self.assigned_work:
            self._reschedule(other)
        return running
