"""User functions over a text or a parsed model whose result is known item by item or field by field."""

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
    """Returns the verdict on a function. Methods of ``str`` have no bytecode but are known to be pure."""
    if type(func) is MethodDescriptorType and func.__objclass__ is str:
        return Verdict(True, f"is str.{func.__name__}")
    return analyse(func)


def list_made(func: Any, value: Symbol) -> dict[str, Any]:
    """Returns the metadata of a CALL of the function: its items, and their splitter. {} if it makes no list.

    Only if its input is what it expects, a text or a message.
    """
    idiom = list_idiom(func) if isinstance(value, Leaf) and value.kind in (TEXT, MESSAGE) else None
    if idiom is None or (idiom.of == CONTENT) != (isinstance(value, Leaf) and value.kind == MESSAGE):
        return {}
    splitters: dict[str, Callable[[], Splitter[Any]]] = {idiom.items: idiom.splitter}
    return {"items": idiom.items, "splitters": splitters}


def adds_up(value: Symbol, b: ChainBuilder) -> None:
    """Notes that in streaming calls a step passes on the pieces of its input, which later steps add up.

    An object that is parsed while it is written is streamed as ever larger objects, and so are a message's tool calls.
    Their sum is not the parser's value of the whole text, so in streaming calls the later steps are left to stock.
    """
    number = _made(value, b)
    if number is None:
        return
    p = b.primitives[number]
    if "fields" in p.meta.get("splitters", ()) or p.meta.get("cumulative"):
        b.primitives[number] = p.with_(meta={**p.meta, "added": not b.invoked})


def _made(value: Symbol, b: ChainBuilder) -> int | None:
    """Returns the index of the primitive whose whole value it is."""
    if not isinstance(value, Leaf) or value.ref.key is not None:
        return None
    return next((i for i, p in enumerate(b.primitives) if p.name == value.ref.name), None)


def model_field(func: Any, value: Symbol, b: ChainBuilder) -> str:
    """Returns the field of a parsed pydantic model that the function reads; "" if it does anything else."""
    number = _made(value, b)
    model = b.primitives[number].meta.get("model") if number is not None else None
    if model is None:
        return ""
    name = func.__reduce__()[1][0] if type(func) is attrgetter else attribute_idiom(func)
    return name if name in model.model_fields else ""
