"""Steps of the user's workflows: the component calls that they make run ahead.

A walk reads the step's events and the workflow's state without running code of theirs. It gets copies of both that
hold plain attributes; stock's step gets the user's.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from types import FunctionType, MethodType
from typing import Any

from llama_index.core.workflow import Context, Event
from workflows.context.state_store import InMemoryStateStore, get_by_path
from workflows.utils import get_steps_from_class

from fineflow.adapters.core.trust import of_packages_class
from fineflow.adapters.inner_calls.entry_wrappers import looked_through
from fineflow.adapters.inner_calls.finder import CallFinder
from fineflow.adapters.inner_calls.inner_calls import InnerCalls
from fineflow.adapters.llamaindex.inner_calls import IndexComponents, calls_of
from fineflow.adapters.llamaindex.reading import Readings, packaged_function
from fineflow.adapters.llamaindex.user_functions import called_by
from fineflow.adapters.lookahead import UNKNOWN
from fineflow.adapters.lookahead.values import Awaited, unknown
from fineflow.options import Options


def steps_of(workflow: Any) -> Mapping[str, FunctionType]:
    """Returns the steps of a user's workflow that call several components."""
    found: Mapping[str, Any] = get_steps_from_class(type(workflow))
    return {
        name: func
        for name, func in found.items()
        if isinstance(func, FunctionType)
        and not of_packages_class(type(workflow), name)
        and called_by(MethodType(func, workflow))
    }


def looking(workflow: Any, options: Options, nested: Callable[[Any], Any]) -> dict[str, Any]:
    """Returns the steps of a workflow as methods in which component calls run ahead.

    nested: returns a part of the workflow as one that runs ahead by itself.
    """
    steps = steps_of(workflow)
    readings = Readings(options, called_by(*(MethodType(func, workflow) for func in steps.values())))

    def begin(func: Any, args: Sequence[Any], named: Mapping[str, Any]) -> InnerCalls:
        components = StepComponents(options, nested, readings)
        given, by_name = [walked(each) for each in args], {name: walked(each) for name, each in named.items()}
        return calls_of(components, None, MethodType(func, workflow), given, by_name, StepCalls)

    return {name: _looking(func, partial(begin, func)) for name, func in steps.items()}


def _looking(func: FunctionType, begin: Any) -> Any:
    if inspect.iscoroutinefunction(func):

        @wraps(func)
        async def astep(self: Any, *args: Any, **named: Any) -> Any:
            return await looked_through(MethodType(func, self), begin)(*args, **named)

        return astep

    @wraps(func)
    def step(self: Any, *args: Any, **named: Any) -> Any:
        return looked_through(MethodType(func, self), begin)(*args, **named)

    return step


# --- what a walk sees -------------------------------------------------------------------------------------------------


class _State:
    """The state of a run as a step has read and set it so far. store: stock's."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._set: dict[Any, Any] = {}
        self._unknown = False

    def forget(self) -> None:
        """Begins another walk."""
        self._set, self._unknown = {}, False

    def get(self, path: Any, default: Any = ...) -> Any:
        if self._unknown or unknown(path):
            return UNKNOWN
        if path in self._set:
            return self._set[path]
        if self._set and any("." in str(each) for each in (path, *self._set)):
            return UNKNOWN  # one may be a part of the other
        return get_by_path(self._store._memory_storage.load_sync().data, path, default)

    def set(self, path: Any, value: Any, *, sure: bool) -> None:
        self._unknown = self._unknown or not sure or unknown(path)
        if not self._unknown:
            self._set[path] = value


class _StepContext:
    """The context of a step."""

    def __init__(self, store: Any) -> None:
        self.store = _State(store)


def walked(value: Any) -> Any:
    """Returns what a walk sees of an argument of a step."""
    if isinstance(value, Context):
        store = value.store
        return _StepContext(store) if type(store) is InMemoryStateStore else value
    if not isinstance(value, Event) or type(value).__getattr__ is not Event.__getattr__:
        return value
    seen = object.__new__(type(value))  # an event keeps undeclared values apart, and looks them up by code
    held = value._data
    seen.__dict__.update({**held, **vars(value), "_data": held})
    return seen


class StepComponents(IndexComponents):
    """Components, and what a step does with its context and its events."""

    def knows(self, obj: Any) -> bool:
        return type(obj) in (_State, _StepContext) or super().knows(obj)

    def judges(self, obj: Any, name: str) -> bool:
        if type(obj) is _State:
            return name in ("get", "set")
        if type(obj) is _StepContext:
            return name == "write_event_to_stream"
        return super().judges(obj, name)

    def made(self, kind: Any, name: str, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        if isinstance(kind, type) and issubclass(kind, Event) and _only_holds(kind):
            return UNKNOWN
        return super().made(kind, name, args, named)


class StepFinder(CallFinder):
    """Finds the component calls of one run of a step."""

    _seen: Any = None  # the walk that the states belong to

    def call(self, obj: Any, name: str, args: Sequence[Any], named: Mapping[str, Any], *, sure: bool) -> Any:
        if type(obj) is _StepContext:
            return None
        if type(obj) is not _State:
            return super().call(obj, name, args, named, sure=sure)
        if self._seen is not self.walk:
            self._seen = self.walk
            obj.forget()
        if name == "get":
            return Awaited(obj.get(*args, **named))
        obj.set(*args, **named, sure=sure)
        return Awaited(None)

    def made(self, kind: Any, name: str, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        if isinstance(kind, type) and issubclass(kind, Event):
            return self._components.made(kind, name, args, named)
        return super().made(kind, name, args, named)


class StepCalls(InnerCalls):
    """The component calls of one run of a step."""

    finder = StepFinder


def _only_holds(kind: Any) -> bool:
    """Returns True if making an event runs no code of the user's."""
    decorators, fields = kind.__pydantic_decorators__, kind.model_fields.values()
    validates = ("validators", "field_validators", "root_validators", "model_validators")
    made_by = [kind.__init__, kind.model_post_init, *(each.default_factory for each in fields)]
    return (
        kind.__new__ is object.__new__
        and not any(getattr(decorators, name) for name in validates)
        and all(each is None or packaged_function(each) for each in made_by)
    )
