"""Functions of LangChain's objects that also call components of another framework: a node that asks an index."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from fineflow.adapters.core.proxy import Planned
from fineflow.adapters.inner_calls.components import Components
from fineflow.adapters.inner_calls.guests import guests
from fineflow.adapters.langchain.inner_calls.runnables import Runnables
from fineflow.adapters.lookahead import Stop
from fineflow.adapters.lookahead.values import Args, Named
from fineflow.options import Options


class Keeper(Protocol):
    """Keeps what makes the ``Components`` of guests, as long as the object with the functions stays as it is."""

    guests: Sequence[Callable[[], Components]] | None


def runnables(keeper: Keeper, options: Options, *args: Any, **named: Any) -> Runnables:
    """Returns the ``Components`` for one run of a function: those of LangChain, and of guests if there are some."""
    if not (known := guests()):
        return Runnables(*args, **named)
    if keeper.guests is None:
        keeper.guests = [each.components(options) for each in known]
    return WithGuests([make() for make in keeper.guests], *args, **named)


def _of_its_own(name: str) -> Any:
    """Returns a method that asks the framework to which its first argument belongs."""

    def method(self: WithGuests, obj: Any, *args: Any) -> Any:
        guest = self._guest(obj)
        return getattr(super(WithGuests, self) if guest is None else guest, name)(obj, *args)

    return method


class WithGuests(Runnables):
    """The ``Components`` of LangChain and of guests: each component is that of the framework that knows it."""

    judges, key, compared, told_apart, same = map(_of_its_own, ["judges", "key", "compared", "told_apart", "same"])
    composite, parts, inner, makes = map(_of_its_own, ["composite", "parts", "inner", "makes"])
    part, computes, result, embedded, method = map(_of_its_own, ["part", "computes", "result", "embedded", "method"])

    def __init__(self, of_guests: Sequence[Components], *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._guests = of_guests

    def _guest(self, obj: Any) -> Components | None:
        return next((each for each in self._guests if each.knows(obj)), None)

    def knows(self, obj: Any) -> bool:
        return super().knows(obj) or self._guest(obj) is not None

    def reads_only(self, part: Planned, name: str, key: Any) -> bool:
        guest = self._guest(part.__wrapped__)
        return super().reads_only(part, name, key) if guest is None else guest.reads_only(part, name, key)

    def computed(self, part: Planned, key: Any) -> Any:
        guest = self._guest(part.__wrapped__)
        return super().computed(part, key) if guest is None else guest.computed(part, key)

    def made(self, kind: Any, name: str, args: Args, named: Named) -> Any:
        for each in self._guests:
            try:
                return each.made(kind, name, args, named)
            except Stop:
                continue
        return super().made(kind, name, args, named)
