"""What keeps a plan from gaining more: code that nobody has declared, the line that would declare it, and its gain.

The gain is found by planning again as if the declaration were there.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from fineflow.adapters.core.installers import module_of, of_package
from fineflow.adapters.core.trust import OWN_CLASS, called, noting_own_classes
from fineflow.cost_model.costs import Costs, costs
from fineflow.cost_model.forecast import predict
from fineflow.declare import supposing
from fineflow.ir import Effect, Op, Primitive
from fineflow.ir.spec import everything
from fineflow.ir.text import duration, shortened, tidy
from fineflow.observe.overview import starts_early
from fineflow.tested_versions import NEWEST, installed_version, is_newer, package_of

if TYPE_CHECKING:
    from fineflow.adapters.core.plan import Plan

_MOST = 8  # obstacles that are tried: each is a plan
_LEAST = 0.001  # seconds that are worth a line


_IF_SO = "If its methods do no more than the interface says"


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Undeclared code. declared: the class, or the functions. said: what it is. remedy: the line that declares it."""

    declared: tuple[Any, ...]
    name: str
    said: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Gain:
    """Difference between two plans. seconds: None if not all of it was measured."""

    seconds: float | None
    steps: int
    more: tuple[str, ...]  # gains inside of steps

    @property
    def pays(self) -> bool:
        return self.steps > 0 or bool(self.more) if self.seconds is None else self.seconds >= _LEAST

    @property
    def rank(self) -> tuple[float, int]:
        return round(self.seconds or 0.0, 3), self.steps + len(self.more)  # less than a millisecond is noise

    def __str__(self) -> str:
        if self.seconds:
            return duration(self.seconds)
        steps = [f"{self.steps} more step{' starts' if self.steps == 1 else 's start'} early"] if self.steps > 0 else []
        return "; ".join([*steps, *self.more])


def advice(shown: Plan, again: Callable[[], Plan], known: Callable[[Plan], Costs] | None = None) -> tuple[str, ...]:
    """Returns a sentence for each obstacle whose declaration would gain, the largest gain first.

    again: makes the plan of the same object once more. known: the costs of a plan of this object; by default those that
    this process has measured.
    """
    found = list(_obstacles(shown, again))[:_MOST]
    gains = [(each, _gain(shown, [each], again, known)) for each in found]
    paying = sorted((pair for pair in gains if pair[1].pays), key=lambda pair: pair[1].rank, reverse=True)
    lines = [f"{each.said}, {each.remedy} gains: {gain}." for each, gain in paying]
    both = _gain(shown, found, again, known) if len(found) > 1 else None
    if behind := _behind(found, again):
        deeper = _gain(shown, [*found, *behind], again, known)
        if deeper.rank > max([*(gain.rank for _, gain in gains), *((both.rank,) if both else ())]):
            found, both = [*found, *behind], deeper
    if both is not None and both.pays and (not paying or both.rank > paying[0][1].rank):
        lines.append(_together(found, both))
    return tuple(lines)


def unrecognised(shown: Plan) -> tuple[str, ...]:
    """Returns a sentence for each step of a package that stock runs although one would expect it to be understood.

    These are functions of packages, which are read as the user's are, unless nothing but their own value waits for
    them; and, of a release that nobody has tested, objects.
    """
    said = dict[str, None]()
    for p in everything(shown.p_graph):
        if p.op is not Op.CALL or p.effects.kind is not Effect.OPAQUE or p.meta.get("reads_only"):
            continue
        func = _function(p.component)
        code = type(p.component) if func is None else called(func)
        module, name = str(getattr(code, "__module__", "")), getattr(code, "__qualname__", "a function")
        package = package_of(module)
        expected = bool(p.meta.get("packaged")) if func is not None else of_package(module) and is_newer(package)
        if expected and not module.startswith("fineflow"):
            named = f"`{name}` of {package} {installed_version(package)}".strip()
            newer = f" (newer than {NEWEST[package]}, the newest that was tested)" if is_newer(package) else ""
            said[f"{named}{newer} is not understood: stock runs it, and what follows waits for it."] = None
    return tuple(said)


def _function(component: Any) -> Any:
    """Returns the function that a step runs; None if it runs a method of its class."""
    own = getattr(component, "__dict__", {})
    found = (own.get(name) for name in ("func", "afunc", "_transform", "_atransform"))
    return next((each for each in found if callable(each)), None)


def _behind(found: Sequence[Obstacle], again: Callable[[], Plan]) -> list[Obstacle]:
    """Returns the user's own classes that planning comes to once those found are declared, as it stops at the first."""
    declared = [kind for each in found for kind in each.declared if isinstance(kind, type)]
    behind: list[Obstacle] = []
    new = declared
    while new and len(found) + len(behind) < _MOST:
        with supposing(declared):
            further = list(_obstacles(again(), again))
        more = [each for each in further if isinstance(each.declared[0], type) and each.declared[0] not in declared]
        new = [kind for each in more for kind in each.declared]
        declared, behind = [*declared, *new], [*behind, *more]
    return behind[: _MOST - len(found)]


def _together(found: Sequence[Obstacle], gain: Gain) -> str:
    names = [each.name for each in found]
    listed = f"{', '.join(names[:-1])} and {names[-1]}"
    if all(isinstance(each.declared[0], type) for each in found):
        return (
            f"{listed} are classes of your own. {_IF_SO.replace('its', 'their')}, "
            f'optimize(..., trust="interfaces") gains: {gain}.'
        )
    return f"Together: {listed}. All of them declared gain: {gain}."


def _obstacles(shown: Plan, again: Callable[[], Plan]) -> Iterator[Obstacle]:
    """Yields the user's own classes that were not believed, and the functions that may have side effects.

    The plan names classes; planning again meets the classes themselves, as others may have the same name.
    """
    primitives = list(everything(shown.p_graph))
    notes = [note.reason for graph in (shown.p_graph, shown.e_graph) for note in graph.notes]
    reasons = [*(p.effects.reason for p in primitives), *notes]
    names = dict.fromkeys(
        text.partition(OWN_CLASS)[0].strip().rpartition(" ")[2].lstrip("(") for text in reasons if OWN_CLASS in text
    )
    with noting_own_classes() as kinds:
        if names:
            again()
    named = [kind for kind in kinds if kind.__name__ in names]
    for kind in sorted(named, key=lambda kind: [*names].index(kind.__name__)):
        says = f"`{kind.__name__}`{_at(kind)} is a class of your own. {_IF_SO}"
        yield Obstacle((kind,), kind.__name__, says, f"fineflow.external({kind.__name__})")
    seen = set[str]()
    for p in primitives:
        if (functions := _functions(p)) and (where := _place(p, functions)) not in seen:
            seen.add(where)
            name = str(p.meta.get("called") or functions[0].__name__)
            says = f"`{name}` at {where} {tidy(p.effects.reason)}. If it has no side effects that count"
            yield Obstacle(functions, f"`{name}`", says, "@fineflow.pure on it")


def _functions(p: Primitive) -> tuple[Any, ...]:
    if p.op is not Op.CALL or p.effects.kind is not Effect.OPAQUE:
        return ()
    own = getattr(p.component, "__dict__", {})
    found = tuple(own[name] for name in ("func", "afunc") if isinstance(own.get(name), FunctionType | MethodType))
    return () if any(of_package(module_of(func)) for func in found) else found  # nobody can decorate these


def _place(p: Primitive, functions: Sequence[Any]) -> str:
    from fineflow.adapters.python.bytecode import location  # with the frameworks, which are imported later

    return str(p.meta.get("where") or location(functions[0].__code__))


def _at(kind: type) -> str:
    try:
        file, line = inspect.getsourcefile(kind), inspect.getsourcelines(kind)[1]
    except (OSError, TypeError):  # made in a shell, or in C
        return ""
    return f" at {os.path.basename(file)}:{line}" if file else ""


def _gain(
    shown: Plan, obstacles: Iterable[Obstacle], again: Callable[[], Plan], known_of: Callable[[Plan], Costs] | None
) -> Gain:
    with supposing(declared for each in obstacles for declared in each.declared):
        other = again()
    own: Costs = costs if known_of is None else known_of(shown)
    others = _Measured(_stand_ins(other, _measured(shown))) if known_of is None else known_of(other)
    now = predict(shown.e_graph, own, written=shown.p_graph)
    then = predict(other.e_graph, others, written=other.p_graph)
    known = now.known and then.known and now.seconds > 0
    done = [note.reason for note in shown.p_graph.notes if note.done]
    more = [f"{shortened(n.where)}: {n.reason}" for n in other.p_graph.notes if n.done and n.reason not in done]
    new = [remark.rstrip(".") for remark in other.remarks if remark not in shown.remarks]
    more += [remark[0].lower() + remark[1:] for remark in new]
    steps = len(starts_early(other.e_graph, other.p_graph)) - len(starts_early(shown.e_graph, shown.p_graph))
    return Gain(now.seconds - then.seconds if known and not more else None, steps, tuple(more))


def _measured(shown: Plan) -> Mapping[str, float]:
    """Returns the seconds that steps of the user's own took, by their place in the user's object."""
    calls = [p for p in everything(shown.e_graph) if p.op is Op.CALL and costs.measured(p.engine, p.op, p.name)]
    return {p.leaf: costs.predict(p.engine, p.op, name=p.name) for p in calls}


_WHOLE = frozenset({Op.DECODE, Op.PARTIAL_DECODE, Op.SEARCH, Op.RERANK, Op.TOOL, Op.CALL})


def _stand_ins(other: Plan, took: Mapping[str, float]) -> Mapping[str, float]:
    """Returns the seconds of the steps in another plan of what was one step of the user's own, by name."""
    found = [p for p in everything(other.e_graph) if p.leaf in took]
    return {p.name: took[p.leaf] if p.op in _WHOLE else 0.0 for p in found}


class _Measured(Costs):
    """What is known, and further steps by name."""

    def __init__(self, seconds: Mapping[str, float]) -> None:
        super().__init__()
        self._seconds = seconds

    def predict(
        self, engine: str | None, op: Op, *, size: float | None = None, name: str = "", together: float = 1.0
    ) -> float:
        found = self._seconds.get(name)
        return costs.predict(engine, op, size=size, name=name, together=together) if found is None else found

    def measured(self, engine: str | None, op: Op, name: str = "") -> bool:
        return name in self._seconds or costs.measured(engine, op, name)

    def size(self, engine: str | None, op: Op, name: str = "") -> float:
        return costs.size(engine, op, name)

    def split_penalty(self, engine: str | None, tokens: float) -> float:
        return costs.split_penalty(engine, tokens)
