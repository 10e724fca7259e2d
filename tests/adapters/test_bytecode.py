"""Instructions are read alike on every Python: 3.13 has one for two local variables."""

from __future__ import annotations

import argparse
import ast
import asyncio.base_events
import dataclasses
import dis
import inspect
import json.decoder
import tarfile
import typing
import unittest.mock
from types import CodeType, FunctionType
from typing import Any

import pytest

from fineflow.adapters.analysis import bytecode
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


@pytest.mark.skipif(not bytecode._VALUES, reason="dis decodes on this version")
def test_what_is_decoded_without_dis_is_what_dis_decodes() -> None:
    modules = (argparse, asyncio.base_events, ast, dataclasses, inspect, json.decoder, tarfile, typing, unittest.mock)
    held = [each for module in modules for each in vars(module).values()]
    held += [each for kind in held if isinstance(kind, type) for each in vars(kind).values()]
    todo = [each.__code__ for each in held if isinstance(each, FunctionType)]
    names: set[str] = set()
    while todo:
        code = todo.pop()
        made, expected = bytecode._plainly(code), bytecode.by_dis(code)
        assert made == expected
        names |= {each.name for each in made}
        todo += [each for each in code.co_consts if isinstance(each, CodeType)]
    assert names >= {"EXTENDED_ARG", "FORMAT_VALUE", "COMPARE_OP", "LOAD_CLOSURE", "JUMP_BACKWARD", "SEND", "KW_NAMES"}
