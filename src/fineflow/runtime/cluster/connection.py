"""This process and its cluster: it connects, makes or finds engines there, and leaves."""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Mapping
from functools import partial
from typing import IO, Any

from fineflow.errors import BackendError, installing
from fineflow.runtime.cluster import local

try:
    import ray
except ImportError as error:
    raise ImportError(f"Runtime(cluster=...) needs the package ray: {installing('ray')}") from error

from fineflow.runtime.cluster import calls
from fineflow.runtime.cluster.host import NAMESPACE, EngineSettings, existing, host_actor
from fineflow.runtime.cluster.remote import Link, RemoteBatches, RemoteEngine, RemoteLLM
from fineflow.runtime.cluster.worker import Factory

_RESOURCES = ("num_cpus", "num_gpus", "memory")  # of Ray; it takes all others by name
_GROUP = ("affinity", "deduction", "patience")


class Cluster:
    """Connection of this process. where: "local", "auto", or the address of a cluster (``ray.init``)."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.client = uuid.uuid4().hex[:12]
        self._engines: dict[str, RemoteEngine] = {}
        self._links: dict[str, Link] = {}
        self._lock: IO[str] | None = None
        self._own = not ray.is_initialized()  # else the connection is the user's
        self._process = os.getpid()
        if self._own:
            # For its progress bars Ray would put a function of its own in the place of ``print``.
            os.environ.setdefault("RAY_TQDM_PATCH_PRINT", "0")
            address = where
            if where == "local":
                address, self._lock = local.join()
                ray._raylet.Config.initialize("")  # Ray has read its environment when it was imported
            try:
                ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
            except Exception as error:
                local.leave(self._lock)
                raise _not_connected(where, error) from error

    def engine(
        self,
        name: str,
        factory: Factory,
        instances: int,
        resources: Mapping[str, float],
        group: Mapping[str, Any],
    ) -> RemoteEngine:
        """See ``Runtime.engine``."""
        if os.getpid() != self._process:
            raise BackendError("this process was forked from the one that connected; open a Runtime(cluster=...) here")
        settings = _settings(name, factory, instances, resources, group)
        host = host_actor(name, factory, settings)
        try:
            there, description = ray.get(host.describe.remote())
        except Exception as error:
            found = calls.failure(error, name)
            if isinstance(error, ray.exceptions.RayTaskError):
                ray.kill(host)  # it has no engine, and the next one may have a better factory
            raise BackendError(f"engine {name!r} could not be started: {type(found).__name__}: {found}") from found
        if there != settings:
            raise ValueError(f"the cluster has an engine {name!r} with other settings: {there}; asked for: {settings}")
        if name not in self._engines:
            link = Link(name, host, self.client)
            self._links[name] = link
            self._engines[name] = (RemoteBatches if "ops" in description else RemoteLLM)(name, link, description)
        return self._engines[name]

    def remove(self, name: str) -> None:
        """See ``Runtime.remove_engine``."""
        host = existing(name)
        self._engines.pop(name, None)
        if (link := self._links.pop(name, None)) is not None:
            link.close("it was removed")
        try:
            ray.get(host.stop.remote(), timeout=2 * calls.END_SECONDS)
        except ray.exceptions.RayError:
            pass
        ray.kill(host)

    def close(self) -> None:
        """Leaves the engines, whose requests of this process end, and the cluster."""
        if os.getpid() != self._process:
            return
        for link in self._links.values():
            link.close("its Runtime was closed")
        self._engines.clear()
        if self._own:
            ray.shutdown()
        local.leave(self._lock)


def _settings(
    name: str, factory: Any, instances: Any, resources: Mapping[str, float], group: Mapping[str, Any]
) -> EngineSettings:
    if isinstance(instances, bool) or not isinstance(instances, int) or instances < 1:
        raise ValueError(f"engine {name!r}: instances is a whole number of at least 1; got {instances!r}")
    if unknown := [each for each in group if each not in _GROUP]:
        raise TypeError(f"engine {name!r}: unknown settings {', '.join(unknown)}; there are {', '.join(_GROUP)}")
    if not (callable(factory) or (isinstance(factory, str) and factory.count(":") == 1)):
        raise TypeError(f'engine {name!r}: expected a factory, a function or "module:function"; got {factory!r}')
    options: dict[str, Any] = {"num_cpus": 0} | {each: resources[each] for each in _RESOURCES if each in resources}
    others = {each: amount for each, amount in resources.items() if each not in _RESOURCES}
    return EngineSettings(
        _named(factory), instances, {**options, **({"resources": others} if others else {})}, dict(group)
    )


def _named(factory: Any) -> str:
    """Returns what tells one factory from another, in any process."""
    if isinstance(factory, str):
        return factory
    if isinstance(factory, partial):
        return f"{_named(factory.func)}{factory.args}{factory.keywords}"
    name = getattr(factory, "__qualname__", type(factory).__qualname__)
    return f"{getattr(factory, '__module__', type(factory).__module__)}:{name}"


def _not_connected(where: str, error: Exception) -> BackendError:
    said = str(error).splitlines()[0] if str(error) else type(error).__name__
    return BackendError(
        f"could not connect to the Ray cluster {where!r}: {said}. Expected a cluster that runs (ray start --head), "
        'or cluster="local", which starts one on this machine'
    )
