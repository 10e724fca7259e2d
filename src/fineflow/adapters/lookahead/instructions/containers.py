"""Containers: making them, their items, and changes of them."""

from __future__ import annotations

from collections.abc import Sequence
from enum import EnumMeta
from typing import TYPE_CHECKING, Any

from fineflow.adapters.analysis.data_models import plain_enum
from fineflow.adapters.lookahead import data_calls, iteration
from fineflow.adapters.lookahead.aliases import special_of
from fineflow.adapters.lookahead.instructions.table import rule
from fineflow.adapters.lookahead.surroundings import as_data
from fineflow.adapters.lookahead.values import INERT, SCALARS, UNKNOWN, Stop, unknown
from fineflow.adapters.python.bytecode import Instruction

if TYPE_CHECKING:
    from fineflow.adapters.lookahead.frame import Frame

_BUILT: dict[str, Any] = {"BUILD_LIST": list, "BUILD_TUPLE": tuple, "BUILD_SET": set}
_COPIES = frozenset({list, tuple, dict, set, frozenset, str, range})


@rule("BUILD_LIST BUILD_TUPLE BUILD_SET")
def _build(f: Frame, ins: Instruction) -> None:
    kind = _BUILT[ins.name]
    parts = f.pops(ins.arg)
    if kind is set and not all(map(f.walk.plain, parts)):
        raise Stop("makes a set of something that is not plain data")
    f.stack.append(f.walk.own(kind(parts)))


@rule("BUILD_MAP")
def _build_dict(f: Frame, ins: Instruction) -> None:
    parts = f.pops(2 * ins.arg)
    _push_dict(f, parts[::2], parts[1::2])


@rule("BUILD_CONST_KEY_MAP")
def _build_constant_dict(f: Frame, ins: Instruction) -> None:
    keys = f.pop()
    _push_dict(f, keys, f.pops(ins.arg))


def _push_dict(f: Frame, keys: Any, values: list[Any]) -> None:
    if not all(map(f.walk.plain, keys)):
        raise Stop("makes a dict with keys that are not plain data")
    f.stack.append(f.walk.own(dict(zip(keys, values, strict=True))))


@rule("BUILD_SLICE")
def _build_slice(f: Frame, ins: Instruction) -> None:
    parts = f.pops(ins.arg)
    if not all(type(part) in (int, type(None)) for part in parts):
        f.walk.touch(*parts)
    f.push(UNKNOWN if any(map(unknown, parts)) else slice(*parts))


@rule("LIST_APPEND SET_ADD LIST_EXTEND SET_UPDATE DICT_UPDATE DICT_MERGE")
def _add(f: Frame, ins: Instruction) -> None:
    name = {"LIST_APPEND": "append", "SET_ADD": "add", "LIST_EXTEND": "extend"}.get(ins.name, "update")
    value = f.pop()
    data_calls.change(f.walk, f.stack[-ins.arg], name, [value], {})


@rule("MAP_ADD")
def _add_item(f: Frame, ins: Instruction) -> None:
    key, value = f.pops(2)
    _store(f, f.stack[-ins.arg], key, value)


@rule("STORE_SUBSCR")
def _store_item(f: Frame, ins: Instruction) -> None:
    value, container, key = f.pops(3)
    _store(f, container, key, value)


def _store(f: Frame, container: Any, key: Any, value: Any) -> None:
    walk = f.walk
    if unknown(container) or container is INERT:
        walk.touch(container, key)
        walk.aliases.store(value)
        walk.aliases.change(container, "[]")
        return
    if type(container) not in (list, dict):
        raise Stop(f"stores into a {type(container).__name__}")
    parts = type(key) is slice and type(container) is list
    container = (walk.changes.target if parts or walk.plain(key) else walk.changes.seen)(container)
    certain = walk.owns(container) and walk.certain(container)
    if not certain or not walk.known(key) or not walk.whole(container):
        walk.touch(key)
        walk.aliases.add(value)
        walk.changes.replaces(container, key)
        if parts:
            walk.changes.taint(container, moves=True)
    elif not parts and not walk.plain(key):
        raise Stop("stores under a key that is not plain data")
    elif parts and (found := iteration.elements(walk, value)) is None:
        walk.aliases.add(value)
        walk.changes.taint(container, moves=True)
    else:
        value = found if parts else value
        walk.tries.changes(container, *(value if parts else (value,)))
        container[key] = value
        walk.changes.renew(container)


@rule("DELETE_SUBSCR")
def _delete_item(f: Frame, ins: Instruction) -> None:
    container, key = f.pops(2)
    if unknown(container) or container is INERT:
        f.walk.touch(container, key)
        f.walk.aliases.change(container, "[]")
        return
    if type(container) not in (list, dict):
        raise Stop(f"deletes an item of a {type(container).__name__}")
    walk, container = f.walk, f.walk.changes.target(container)
    certain = walk.owns(container) and walk.certain(container)
    if not certain or not walk.whole(container) or not _has(container, key):
        walk.touch(key)
        walk.changes.taint(container, moves=True)
        return
    walk.tries.changes(container)
    del container[key]
    walk.changes.renew(container)


def _has(container: Any, key: Any) -> bool:
    """Returns True if a list or dict is known to have an item of that number or key. True for parts of lists."""
    if type(container) is list:
        return type(key) is slice or (type(key) is int and -len(container) <= key < len(container))
    return type(key) in SCALARS and key in container


@rule("LIST_TO_TUPLE")
def _to_tuple(f: Frame, ins: Instruction) -> None:
    value = f.pop()
    if not f.walk.whole(value):
        f.push(f.walk.aliases.one_of(UNKNOWN, value))
    else:
        f.push(f.walk.own(tuple(value)))


@rule("BINARY_SUBSCR")
def _subscript(f: Frame, ins: Instruction) -> None:
    container, key = f.pops(2)
    f.push(_item(f, container, key))


def _item(f: Frame, container: Any, key: Any) -> Any:
    walk, container = f.walk, as_data(container)
    if type(container) is EnumMeta and plain_enum(container):
        container = dict(container.__members__)
    if (own := special_of(walk, container, "__getitem__")) is not None and walk.whole(container):
        return walk.call(own, [container, key], {})
    if not walk.known(key) or not walk.whole(container):
        walk.touch(key)
        if container is INERT or not walk.whole(container):
            walk.touch(container)
            walk.tries.raises(KeyError, IndexError, TypeError, seldom=True)
            return walk.aliases.part(container)
        if type(container) not in _COPIES:
            raise Stop(f"reads an item of a {type(container).__name__}")
        walk.tries.raises(KeyError, IndexError, TypeError, seldom=True)
        return walk.aliases.one_of(UNKNOWN, *(container.values() if type(container) is dict else container))
    if type(container) not in _COPIES or not (walk.plain(key) or type(key) is slice):
        raise Stop(f"reads an item of a {type(container).__name__}")
    found = container[key]
    return walk.own(found) if type(key) is slice else found


@rule("UNPACK_SEQUENCE")
def _unpack(f: Frame, ins: Instruction) -> None:
    parts = _popped_parts(f, ins.arg)
    if parts is None:
        return
    if len(parts) != ins.arg:
        raise Stop("may raise an exception")
    for part in reversed(parts):
        f.push(part)


def _popped_parts(f: Frame, count: int) -> Sequence[Any] | None:
    """Returns the elements of a value from the stack; None where that many unknown ones are there in its place."""
    source = f.pop()
    parts = iteration.elements(f.walk, source)
    if parts is None:
        f.walk.tries.raises(ValueError, TypeError)
        f.stack += [f.walk.aliases.part(source)] * count
    return parts


@rule("UNPACK_EX")
def _unpack_rest(f: Frame, ins: Instruction) -> None:
    before, after = ins.arg & 255, ins.arg >> 8
    parts = _popped_parts(f, before + 1 + after)
    if parts is None:
        return
    end = len(parts) - after
    if end < before:
        raise Stop("may raise an exception")
    for part in reversed([*parts[:before], f.walk.own(parts[before:end]), *parts[end:]]):
        f.push(part)
