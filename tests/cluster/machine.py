"""One instance of Ray for all tests of this folder: the local one, which three processes start or join at once."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import ray
from desk import Desk, Process, factory
from process import TENANTS

import fineflow
from fineflow.runtime.cluster import local


@dataclass
class Machine:
    """The cluster, this process in it, and others."""

    runtime: fineflow.Runtime
    addresses: list[str]
    others: list[Process]
    desk: Any
    folder: Path

    def engine(self, kind: str, name: str, instances: int = 1, **settings: Any) -> Any:
        return self.runtime.engine(name, factory(kind, name=name, **settings), instances=instances)

    factory = staticmethod(factory)

    def close(self, gate: str) -> None:
        ray.get(self.desk.close.remote(gate))

    def open(self, gate: str) -> None:
        ray.get(self.desk.open.remote(gate))

    def told(self, name: str, count: int = 0) -> list[Any]:
        """What engines have told under a name, once there are so many."""
        found: list[Any] = ray.get(self.desk.told.remote(name, count), timeout=60)
        return found

    def host(self, name: str) -> Any:
        return ray.get_actor(name, "fineflow")

    def queued(self, name: str, items: int) -> None:
        """Returns when so many items wait in the queue of an engine, from all processes."""
        until(lambda: ray.get(self.host(name).statistics.remote()).queued == items)

    def requests(self, name: str) -> int:
        """Requests of all processes that the host of an engine knows of."""
        return sum(ray.get(self.host(name).clients.remote()).values())


def until(condition: Any, seconds: float = 60.0) -> None:
    """Returns when a condition of another process holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.02)


_shared: list[tuple[ExitStack, Machine]] = []


@pytest.fixture
def machine() -> Machine:
    if not _shared:
        stack = ExitStack()
        _shared.append((stack, stack.enter_context(_opened())))
    found = _shared[0][1]
    ray.get(found.desk.clear.remote())
    return found


def close_machine() -> None:
    """Ends the instance, which is made again when it is next used."""
    if _shared:
        stack, _ = _shared.pop()
        stack.close()


@contextmanager
def _opened() -> Iterator[Machine]:
    folder = Path(tempfile.mkdtemp(prefix="ff-"))
    here = os.path.dirname(__file__)
    changed = {"FINEFLOW_CLUSTER_DIR": str(folder), "FINEFLOW_CLUSTER_GRACE": "0.5", "PYTHONPATH": here}
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    others = [Process(), Process()]  # they start at the same time as this one
    try:
        with fineflow.Runtime(cluster="local", tenants=TENANTS) as runtime:
            desk = ray.remote(Desk).options(name="desk", num_cpus=0, max_concurrency=1000).remote()
            own = ray.get_runtime_context().gcs_address
            addresses = [own, *(other.ready.result(60) for other in others)]
            yield Machine(runtime, addresses, others, desk, folder)
            for other in others:
                other.end()
        until(lambda: local._free(folder / "keeper"))  # the last one has left
    finally:
        for other in others:
            other.kill()
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)
        shutil.rmtree(folder, ignore_errors=True)
