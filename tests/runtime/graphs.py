"""Hand-made graphs and kernels for tests of the graph scheduler: what a primitive does is in its ``meta``."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Mapping
from typing import Any

from fineflow.ir import PURE, Graph, Op, Primitive, Ref
from fineflow.runtime.call import control_flow
from fineflow.runtime.call.executor import Call, Execution
from fineflow.runtime.call.work import Work

Does = Callable[..., Any]


def ref(text: str) -> Ref:
    """``"name"``, ``"name[key]"``, either with ``...`` behind it for a stream."""
    name, stream = text.removesuffix("..."), text.endswith("...")
    name, _, key = name.removesuffix("]").partition("[")
    return Ref(name, key or None, stream)


def step(
    name: str,
    *inputs: str,
    does: Does | None = None,
    op: Op = Op.RENDER,
    after: tuple[str, ...] = (),
    depth: int = 0,
    body: Graph | Mapping[str, Graph] | None = None,
    **args: str,
) -> Primitive:
    """A primitive that does ``does(*inputs)``: a function, whose result may be a coroutine, a future or ``Work``."""
    refs = {**{f"arg{i}": ref(text) for i, text in enumerate(inputs)}, **{key: ref(text) for key, text in args.items()}}
    return Primitive(name, op, refs, {}, PURE, depth=depth, after=after, body=body, leaf=name, meta={"does": does})


def by_stock(name: str, *inputs: str) -> Primitive:
    """An opaque step: nobody runs it here; ``Call.feed(name, value)`` says that stock has."""
    args = {f"arg{i}": ref(text) for i, text in enumerate(inputs)}
    return Primitive(name, Op.CALL, args, {}, PURE, leaf=name, by_stock=True)


def graph(*primitives: Primitive, output: str = "", inputs: tuple[str, ...] = ("input",)) -> Graph:
    return Graph(primitives, ref(output or primitives[-1].name), inputs)


def _does(p: Primitive, args: Mapping[str, Any], run: Execution) -> Any:
    return p.meta["does"](*args.values())


def _claimable(p: Primitive, args: Mapping[str, Any], run: Execution) -> Work:
    async def start(entry: Any) -> Any:
        return await p.meta["does"](*args.values())

    return Work(run.work(p, tuple(args.values()), start, shared=p.op is Op.SEARCH), lambda value: value)


KERNELS: dict[Op, Any] = {
    Op.RENDER: _does,
    Op.DECODE: _claimable,  # one call of the graph for one of stock
    Op.SEARCH: _claimable,  # shared
    Op.MAP: lambda p, args, run: control_flow.each(run, p, args),
    Op.CONDITION: lambda p, args, run: control_flow.choose(run, p, bool),
}


def new_call(*, limit: int = 0, sync: bool = False) -> Call:
    return Call(
        asyncio.get_running_loop(),
        KERNELS,
        entry="invoke" if sync else "ainvoke",
        sync=sync,
        context=contextvars.copy_context(),
        label="query-1",
        limit=asyncio.Semaphore(limit) if limit else None,
    )


async def run(made: Graph, input: Any = None, call: Call | None = None) -> Any:
    """The value of the graph's output (``Failed`` if it failed); the call is closed afterwards."""
    call = call or new_call()
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    Execution(made, call, {"input": input}, done.set_result).start()
    try:
        async with asyncio.timeout(10):
            return await done
    finally:
        await call.aclose()
