"""Lists that a function makes item by item of what a map makes: each can be made as soon as the map has its item."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fineflow.ir import Graph, Op, Primitive, Ref
from fineflow.ir.primitive import NUMBER
from fineflow.ir.traverse import added_to_body

_KEY = "key:"  # what names of a RECORD's arguments begin with


@dataclass(frozen=True)
class MadeEach:
    """A map that makes a list item by item.

    source: the map. function: the CALL that makes an item of one of its; None if the map does so itself. of: the key
    of the map's list in the function's argument. given: what else the function reads, by key.
    """

    source: Primitive
    function: Primitive | None = None
    of: str = ""
    given: Mapping[str, Ref] = field(default_factory=dict)

    @property
    def what(self) -> str:
        """Says what the map has made, for a note."""
        return "it" if self.function is None else f"what {self.function.name} makes it of"

    def in_body(self, source: Primitive) -> tuple[Primitive, Ref]:
        """Returns the map with the function in its body, and where that has the item. source: the map as it is now."""
        if self.function is None:
            return source, source.body.output
        p = self.function
        args = {"item": source.body.output, NUMBER: Ref(NUMBER)}
        one = p.with_(args=args, params={**p.params, "stage": "one", "of": self.of}, after=())
        made = added_to_body(source, one, {f"{_KEY}{key}": ref for key, ref in self.given.items()}, NUMBER)
        return made, Ref(made.body.primitives[-1].name)


def made_each(p: Primitive, graph: Graph) -> MadeEach | None:
    """Returns the map of whose items a CALL makes its own one by one; None if there is none."""
    lists = p.meta.get("itemwise") if p.op is Op.CALL and not p.by_stock and not p.meta.get("claimed") else None
    if lists is None:
        return None
    value = p.args["value"]
    if lists.keys is None:
        source = _map(value, graph)
        return MadeEach(source, p) if source is not None else None
    record = graph.by_name.get(value.name)
    if record is None or record.op is not Op.RECORD or value.key is not None or "rest" in record.args:
        return None
    given = {name.removeprefix(_KEY): ref for name, ref in record.args.items()}
    maps = [(key, source) for key in lists.keys if key in given and (source := _map(given[key], graph)) is not None]
    if not maps:
        return None
    key, source = maps[-1]  # the others have to be there before it starts
    return MadeEach(source, p, key, {name: ref for name, ref in given.items() if name != key})


def _map(ref: Ref, graph: Graph) -> Primitive | None:
    """Returns the map whose list a reference reads as a whole."""
    p = graph.by_name.get(ref.name)
    return p if p is not None and p.op is Op.MAP and ref.key is None and not ref.stream else None
