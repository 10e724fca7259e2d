"""Lowers runnables with configurable fields or alternatives to the runnable that the call's config selects.

A plan is for one configuration (``Way``). Stock prepares its own runnable in each call; if that equals the planned one,
it runs the planned one's shadow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from langchain_core.runnables import Runnable
from langchain_core.runnables.config import merge_configs, var_child_runnable_config
from langchain_core.runnables.configurable import (
    DynamicRunnable,
    RunnableConfigurableAlternatives,
    RunnableConfigurableFields,
)

from fineflow.adapters.core.batched_search import exactly
from fineflow.adapters.core.builder import Symbol
from fineflow.adapters.core.installers import of_package
from fineflow.adapters.core.recognition import Row
from fineflow.adapters.core.shadows import Site, Stale
from fineflow.adapters.core.trust import NotLowered, OwnClass
from fineflow.adapters.langchain.builder import ChainBuilder
from fineflow.adapters.langchain.lowering.structure import RUN

_PREPARED = "prepared"


class Way(NamedTuple):
    """Everything that a plan depends on besides the runnable.

    constant: the input is text or numbers, or a dict of these, which no step can change under a reader. configurable:
    the configurable values that steps of the runnable read.
    """

    constant: bool
    configurable: Configurable


class Configurable:
    """Configurable values by id. Hashable: equal to others with equal plain values and identical objects."""

    __slots__ = ("_text", "values")

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = dict(values)
        self._text = exactly(self.values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Configurable) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)


NOTHING = Configurable({})


def configured(objects: Mapping[str, Any], config: Any) -> Configurable:
    """Returns what the config of a call, or the one around it, sets of the values that the planned objects read."""
    given: Any = config.get("configurable") if isinstance(config, Mapping) else None  # stock refuses anything else
    if given is None:
        given = (var_child_runnable_config.get() or {}).get("configurable")
    dynamic = [obj for obj in objects.values() if isinstance(obj, DynamicRunnable)] if given else []
    if not dynamic:
        return NOTHING
    read = {spec.id for obj in dynamic for spec in obj.config_specs}
    return Configurable({name: value for name, value in sorted(given.items()) if name in read})


def _lower_dynamic(dynamic: Any, value: Symbol, b: ChainBuilder) -> Symbol:
    chosen, configurable = _chosen(dynamic, b)
    if not _alike(again := _chosen(dynamic, b)[0], chosen):
        raise NotLowered(f"it makes a {type(again).__name__} in each call that differs from the last")
    outer, changed = b.configurable, b.configured
    b.configurable, b.configured = configurable, changed or configurable != outer
    try:
        with b.inside(_PREPARED, ""):
            return b.lower(chosen, value)
    finally:
        b.configurable, b.configured = outer, changed


def _chosen(dynamic: Any, b: ChainBuilder) -> tuple[Runnable[Any, Any], Mapping[str, Any]]:
    """Returns the runnable that the config selects, and the configurable values that it gets."""
    if b.configurable is None:
        raise NotLowered("its config is made by a function")
    config: Any = {"configurable": dict(b.configurable)}
    while isinstance(dynamic, DynamicRunnable):
        config = merge_configs(dynamic.config, config)
        if isinstance(dynamic, RunnableConfigurableAlternatives):
            which = config["configurable"].get(dynamic.which.id, dynamic.default_key)
            if which != dynamic.default_key and not isinstance(dynamic.alternatives.get(which), Runnable):
                raise NotLowered(f"its alternative {which!r} is made in each call, or unknown")
        elif not of_package(type(dynamic.default).__module__):
            raise OwnClass(type(dynamic.default))
        try:
            dynamic, config = dynamic._prepare(config)
        except Exception as error:  # a value that it refuses: stock raises
            raise NotLowered(f"the configured values are refused: {type(error).__name__}") from None
    return dynamic, config["configurable"]


def _shadow_dynamic(dynamic: Any, site: Site) -> Any:
    inner = site.part(_PREPARED)
    planned = inner.planned
    if planned is None:
        return dynamic
    shadow, copy = site.of(planned, _PREPARED), dynamic.model_copy()
    for obj in _defaults(dynamic):
        site.reads(obj)
    if not _current(dynamic, planned):
        raise Stale(site.leaf)

    def prepare(config: Any = None) -> Any:
        found, given = dynamic.prepare(config)
        return (shadow if _alike(found, planned) else found), given

    copy.__dict__["prepare"] = prepare
    return copy


def _defaults(dynamic: Any) -> list[Any]:
    """Returns the objects of which a call may make its own runnable."""
    found = []
    while isinstance(dynamic, DynamicRunnable):
        found.append(dynamic.default)
        dynamic = dynamic.default
    return found


def _current(dynamic: Any, planned: Any) -> bool:
    """Returns True unless a field of the default was set since ``planned`` was made of it."""
    made_of = next((obj for obj in _defaults(dynamic) if type(obj) is type(planned) and obj is not planned), None)
    if made_of is None or not isinstance(dynamic, RunnableConfigurableFields):
        return True
    fixed = [name for name in vars(planned) if name not in dynamic.fields and name in type(planned).model_fields]
    return all(_same(vars(made_of).get(name), vars(planned)[name]) for name in fixed)


def _alike(found: Any, planned: Any) -> bool:
    """Returns True if a runnable that stock has just made has the fields of the planned one."""
    if found is planned:
        return True
    if type(found) is not type(planned) or not isinstance(getattr(type(found), "model_fields", None), dict):
        return False
    return all(_same(vars(found).get(name), vars(planned).get(name)) for name in type(found).model_fields)


def _same(one: Any, other: Any) -> bool:
    return one is other or exactly(one) == exactly(other)


ROWS = tuple(
    Row(kind, (*RUN, "prepare", "_prepare"), _lower_dynamic, _shadow_dynamic, reads=None)
    for kind in (RunnableConfigurableFields, RunnableConfigurableAlternatives)
)
