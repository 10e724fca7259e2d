"""A host for walks that only notes which calls it is told of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fineflow.adapters.lookahead import UNKNOWN, Stop, Walk
from fineflow.adapters.lookahead.past import Past
from fineflow.adapters.lookahead.values import Awaited


@dataclass
class Component:
    name: str


@dataclass
class Host:
    """Notes the calls that it is told of. results: of calls that have ended, by argument."""

    results: Mapping[Any, Any] = field(default_factory=dict)
    calls: list[Any] = field(default_factory=list)
    unsure: list[Any] = field(default_factory=list)
    changed: list[Any] = field(default_factory=list)
    past: Past = field(default_factory=Past)

    def calls_so_far(self) -> Callable[[], None]:
        found = len(self.calls), len(self.unsure), list(self.changed)

        def back() -> None:
            del self.calls[found[0] :], self.unsure[found[1] :]
            self.changed[:] = found[2]

        return back

    def knows(self, obj: Any) -> bool:
        return isinstance(obj, Component)

    def judges(self, obj: Any, name: str) -> bool:
        return name in ("invoke", "ainvoke")

    def awaits(self, obj: Any, name: str) -> bool:
        return name == "ainvoke"

    def call(self, obj: Any, name: str, args: Sequence[Any], named: Mapping[str, Any], *, sure: bool) -> Any:
        (given,) = args
        known = self.walk.known(given)
        (self.calls if sure and known else self.unsure).append(self.walk.copied(given) if known else UNKNOWN)
        result = self.results.get(str(given), UNKNOWN) if sure and known else UNKNOWN
        return Awaited(result) if name == "ainvoke" else result

    def inner(self, obj: Any, name: str, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        return None

    def changes(self, value: Any) -> None:
        self.changed.append(value)

    def joined(self, left: Any, right: Any) -> Any:
        raise Stop("makes a sequence")

    def made(self, kind: Any, name: str, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        raise Stop(f"makes a {kind.__name__}")

    def through(self, func: Callable[..., Any], *args: Any) -> Host:
        self.walk = Walk(self)
        self.walk.run(func, args, {})
        return self


llm = Component("llm")
