"""A stream that stock reads from its own component is one call, which ends once, however it ends."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, closing, nullcontext, suppress
from types import SimpleNamespace
from typing import Any

import pytest

from fineflow.adapters.core.paced_streams import apaced, paced
from fineflow.runtime.queues.rate_limits import ModelCalls, calls_of

FAILS = {"to its end": 9, "fails at once": 0, "fails later": 1, "left": 9}  # at which chunk, of two
way = pytest.mark.parametrize("how", FAILS)


class Model:
    pass


def side(model: Model) -> Any:
    async def for_stock(make: Any) -> Any:
        return await make()

    bridge, call = SimpleNamespace(slot=nullcontext), SimpleNamespace(for_stock=for_stock)
    return SimpleNamespace(component=lambda leaf: model, bridge=bridge, call=call)


def chunks(how: str) -> Iterator[str]:
    for number, chunk in enumerate(["Paris", "."]):
        if number == FAILS[how]:
            raise ConnectionError("the model has gone away")
        yield chunk


def after(calls: ModelCalls, read: list[str], how: str) -> None:
    assert (calls.started, calls.running) == (1, 0)
    assert read == {"to its end": ["Paris", "."], "fails at once": []}.get(how, ["Paris"])


@way
def test_sync(how: str) -> None:
    model, read = Model(), list[str]()
    with closing(paced(side(model), "model", (), lambda: chunks(how))) as stream, suppress(ConnectionError):
        for chunk in stream:
            assert calls_of(model).running == 1
            read.append(chunk)
            if how == "left":
                break
    after(calls_of(model), read, how)


@way
async def test_async(how: str) -> None:
    model, read = Model(), list[str]()

    async def achunks() -> AsyncIterator[str]:
        for chunk in chunks(how):
            yield chunk

    async with aclosing(apaced(side(model), "model", (), achunks)) as stream:
        with suppress(ConnectionError):
            async for chunk in stream:
                assert calls_of(model).running == 1
                read.append(chunk)
                if how == "left":
                    break
    after(calls_of(model), read, how)
