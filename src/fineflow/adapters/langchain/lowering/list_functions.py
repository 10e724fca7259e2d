"""What functions of the user's make of a text or of a parsed model, where that is known to the item or field."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from types import MethodDescriptorType
from typing import Any

from fineflow.adapters.analysis import Verdict, analyse
from fineflow.adapters.analysis.idioms import CONTENT, attribute_idiom, list_idiom
from fineflow.adapters.core.builder import MESSAGE, TEXT, Leaf, Symbol
from fineflow.adapters.langchain.builder import ChainBuilder
from fineflow.adapters.text.items import Splitter


def judged(func: Any) -> Verdict:
    """The verdict on a function. Methods of ``str``, which have no bytecode, are known to be pure."""
    if type(func) is MethodDescriptorType and func.__objclass__ is str:
        return Verdict(True, f"is str.{func.__name__}")
    return analyse(func)


def list_made(func: Any, value: Symbol) -> dict[str, Any]:
    """What to tell of a CALL of the function: its items and what takes them out of a text. {} if it makes no list.

    Only where it gets what it expects, a text or a message.
    """
    idiom = list_idiom(func) if isinstance(value, Leaf) and value.kind in (TEXT, MESSAGE) else None
    if idiom is None or (idiom.of == CONTENT) != (isinstance(value, Leaf) and value.kind == MESSAGE):
        return {}
    splitters: dict[str, Callable[[], Splitter[Any]]] = {idiom.items: idiom.splitter}
    return {"items": idiom.items, "splitters": splitters}


def adds_up(value: Symbol, b: ChainBuilder) -> None:
    """Notes that a step, in calls that stream, passes on the pieces of its input, for others to add up.

    An object that is parsed while it comes is streamed as one larger object after the other, and so are the calls of a
    message. Added up they are not what the parser makes of the whole, so in such calls it is left to stock what comes
    behind.
    """
    number = _made(value, b)
    if number is None:
        return
    p = b.primitives[number]
    if "fields" in p.meta.get("splitters", ()) or p.meta.get("cumulative"):
        b.primitives[number] = p.with_(meta={**p.meta, "added": not b.invoked})


def _made(value: Symbol, b: ChainBuilder) -> int | None:
    """The number of the primitive whose whole value it is."""
    if not isinstance(value, Leaf) or value.ref.key is not None:
        return None
    return next((i for i, p in enumerate(b.primitives) if p.name == value.ref.name), None)


def model_field(func: Any, value: Symbol, b: ChainBuilder) -> str:
    """The field that the function reads of a parsed pydantic model; "" if it does anything else."""
    number = _made(value, b)
    model = b.primitives[number].meta.get("model") if number is not None else None
    if model is None:
        return ""
    name = func.__reduce__()[1][0] if type(func) is attrgetter else attribute_idiom(func)
    return name if name in model.model_fields else ""
