"""Editor that passes use to change a graph: replaces, inserts and removes primitives, and leaves notes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fineflow.ir.graph import Graph, Note
from fineflow.ir.primitive import Primitive
from fineflow.ir.traverse import fresh


class GraphEditor:
    """A graph under edit: its current primitives, in program order, and the notes of one pass.

    The original graph does not change. ``graph`` returns the result, or the original if nothing was changed.
    """

    def __init__(self, graph: Graph, source: str) -> None:
        """source: name of the pass, for its notes."""
        self.original = graph
        self.notes: list[Note] = []
        self._source = source
        self._earlier = list(graph.notes)
        self._now = dict(graph.by_name)
        self._inserted: dict[str, list[str]] = {}  # primitive -> those inserted before it, in order
        self._taken = {*graph.by_name, *graph.inputs}
        self._changed = False

    def __contains__(self, name: object) -> bool:
        return name in self._now

    def __getitem__(self, name: str) -> Primitive:
        """Returns the current primitive of that name. Raises KeyError if it was removed or never existed."""
        return self._now[name]

    def __iter__(self) -> Iterator[Primitive]:
        """Yields the current primitives in program order."""
        for name in self.original.by_name:
            for each in (*self._inserted.get(name, ()), name):
                if each in self._now:
                    yield self._now[each]

    def put(self, p: Primitive) -> Primitive:
        """Replaces the primitive that has the name of ``p``."""
        assert p.name in self._now, p.name
        self._now[p.name] = p
        self._changed = True
        return p

    def change(self, name: str, **changes: object) -> Primitive:
        """Replaces some fields of a primitive."""
        return self.put(self._now[name].with_(**changes))

    def insert(self, p: Primitive, *, before: str) -> Primitive:
        """Inserts a primitive before one of the original graph, after those inserted there earlier."""
        self._inserted.setdefault(before, []).append(p.name)
        self._now[p.name] = p
        self._taken.add(p.name)
        self._changed = True
        return p

    def remove(self, name: str) -> None:
        """Removes a primitive. The caller redirects references to it."""
        del self._now[name]
        self._changed = True

    def fresh(self, name: str) -> str:
        """Returns the name, numbered if it is taken, and reserves it."""
        found = fresh(name, self._taken)
        self._taken.add(found)
        return found

    def done(self, where: str, reason: str) -> None:
        """Notes a rewrite of the primitive ``where``."""
        self.notes.append(Note(self._source, where, True, reason))

    def refused(self, where: str, reason: str) -> None:
        """Notes why the primitive ``where`` was not rewritten."""
        self.notes.append(Note(self._source, where, False, reason))

    def retract(self, notes: Iterable[Note]) -> None:
        """Removes notes of the original graph that no longer hold."""
        for note in notes:
            self._earlier.remove(note)
            self._changed = True

    @property
    def earlier(self) -> tuple[Note, ...]:
        """The notes of the original graph that still hold."""
        return tuple(self._earlier)

    def graph(self) -> Graph:
        """Returns the edited graph; the original object if there were neither changes nor notes."""
        if not self._changed and not self.notes:
            return self.original
        made = Graph(tuple(self), self.original.output, self.original.inputs)
        return made.noted(*self._earlier, *self.notes)
