"""Graph of primitives: immutable, in program order, with the notes of the passes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from fineflow.ir.primitive import Primitive, Ref


@dataclass(frozen=True, slots=True)
class Note:
    """A rewrite that a pass made or refused, with the reason; shown by ``explain``.

    ``done`` is True for a rewrite and False for a refusal. ``where`` names the primitive.
    """

    source: str
    where: str
    done: bool
    reason: str

    def __str__(self) -> str:
        """Formats one line: ``prune: answer/llm: reads only the question``, or ``prefill refused: ...``."""
        return " ".join(f"{self.source}{'' if self.done else ' refused'}: {self.where}: {self.reason}".split())


@dataclass(frozen=True)
class Graph:
    """Primitives in program order, the inputs that they may read, and the reference to the answer."""

    primitives: tuple[Primitive, ...]
    output: Ref
    inputs: tuple[str, ...] = ("input",)
    notes: tuple[Note, ...] = ()

    @cached_property
    def by_name(self) -> dict[str, Primitive]:
        return {p.name: p for p in self.primitives}

    @cached_property
    def users(self) -> dict[str, tuple[str, ...]]:
        """For each primitive or input, the names of the primitives that read it, in program order."""
        found: dict[str, list[str]] = {}
        for p in self.primitives:
            for name in dict.fromkeys(ref.name for ref in p.args.values()):
                found.setdefault(name, []).append(p.name)
        return {name: tuple(names) for name, names in found.items()}

    @property
    def rewritten(self) -> bool:
        """True if a pass has changed anything that its notes tell of."""
        return any(note.done for note in self.notes)

    def __iter__(self) -> Iterator[Primitive]:
        return iter(self.primitives)

    def __getitem__(self, name: str) -> Primitive:
        return self.by_name[name]

    def __contains__(self, name: object) -> bool:
        return name in self.by_name

    def with_primitives(self, primitives: Iterable[Primitive], notes: Iterable[Note] = ()) -> Graph:
        """Returns the same graph with other primitives and further notes."""
        return replace(self, primitives=tuple(primitives), notes=(*self.notes, *notes))

    def noted(self, *notes: Note) -> Graph:
        return replace(self, notes=(*self.notes, *notes))
