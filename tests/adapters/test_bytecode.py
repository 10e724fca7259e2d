"""Instructions are read alike on every Python: 3.13 has one for two local variables."""

from __future__ import annotations

import dis
from typing import Any

from fineflow.adapters.analysis.bytecode import decode

PAIRS = {"LOAD_FAST_LOAD_FAST", "STORE_FAST_STORE_FAST", "STORE_FAST_LOAD_FAST"}


def stores(self: Any, value: Any) -> None:
    self.kept = value


def swaps(pair: Any) -> Any:
    first, second = pair
    return second, first


def test_a_store_follows_the_load_of_its_object() -> None:
    names = [(each.name, each.value) for each in decode(stores.__code__)]
    at = names.index(("STORE_ATTR", "kept"))
    assert names[at - 2 : at] == [("LOAD_FAST", "value"), ("LOAD_FAST", "self")]


def test_pairs_are_two_instructions_at_offsets_of_their_own() -> None:
    for function in (stores, swaps):
        made = decode(function.__code__)
        assert not PAIRS & {each.name for each in made}
        offsets = [each.offset for each in made]
        assert offsets == sorted(set(offsets))
        pairs = sum(each.opname in PAIRS for each in dis.get_instructions(function.__code__))
        assert len(made) == len(list(dis.get_instructions(function.__code__))) + pairs
    local = [(each.name, each.value) for each in decode(swaps.__code__) if "_FAST" in each.name]
    assert local[1:] == [
        *(("STORE_FAST", "first"), ("STORE_FAST", "second"), ("LOAD_FAST", "second"), ("LOAD_FAST", "first")),
    ]
