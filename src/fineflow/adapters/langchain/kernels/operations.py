"""Kernels of all operations: they run ahead of stock, by the inner methods of the user's components.

A kernel gets the primitive, its argument values and the execution. It returns the value, a coroutine, or ``Work`` that
stock may claim. Sync entry points call sync methods (in worker threads), async ones async methods; fineflow's own
components may be awaited on any event loop.
"""

from __future__ import annotations

from time import thread_time
from typing import Any

from langchain_core.runnables import Runnable

from fineflow.adapters.core.durations import computed
from fineflow.adapters.core.prefills import note_parts
from fineflow.adapters.langchain.kernels.common import Args, LeftToStock, current, fields, plain
from fineflow.adapters.langchain.kernels.growing import growing_prefill
from fineflow.adapters.langchain.kernels.models import decode, partial_decode, prefill
from fineflow.adapters.langchain.kernels.parsing import own_failures, parse, pieces
from fineflow.adapters.langchain.kernels.prefilling import partial_prefill
from fineflow.adapters.langchain.kernels.reranking import aggregate, rerank
from fineflow.adapters.langchain.kernels.searches import search
from fineflow.adapters.langchain.kernels.vectors import embed
from fineflow.adapters.langchain.lowering import tools
from fineflow.adapters.langchain.lowering.function_claims import read
from fineflow.adapters.langchain.lowering.package_functions import value_of
from fineflow.adapters.langchain.lowering.routing import chosen_routes
from fineflow.ir import Op, Primitive
from fineflow.ir.primitive import NUMBER
from fineflow.runtime.call import control_flow
from fineflow.runtime.call.executor import Execution, Kernel
from fineflow.runtime.call.streams import Stream
from fineflow.runtime.queues.prompts import INPUT, TEXT, Part

_ABSENT: Any = object()


def render(p: Primitive, args: Args, run: Execution) -> Any:
    value = args["value"] if "value" in args else fields(args)
    plain(value)
    note_parts(p, _parts(p, value), run)
    return p.component._format_prompt_with_error_handling(value)


def _parts(p: Primitive, value: Any) -> tuple[Part, ...]:
    """Returns the parts of a prompt: constant texts, and values as they stand in it. Other values are left out."""
    named = value if isinstance(value, dict) else dict.fromkeys(p.component.input_variables, value)
    found = []
    for kind, text in p.meta.get("segments", ()):
        if kind == "text":
            found.append(Part(TEXT, text))
        elif isinstance(given := named.get(text), str):
            found.append(Part(INPUT, given))
    return tuple(found)


def call(p: Primitive, args: Args, run: Execution) -> Any:
    """Runs a user function that was found, or declared, to be pure or to read only."""
    if p.meta.get("claimed"):
        return read(p, args, run)
    verdict = p.meta.get("verdict")
    if verdict is not None and not verdict.still_holds():
        raise LeftToStock("something that the function's purity depends on has changed")
    if p.params.get("stage") == "one":
        return _one_item(p, args)

    def called(given: Any) -> Any:
        if p.meta.get("packaged"):
            return value_of(p.component, given, sync=run.call.sync)
        plain(given)
        if p.meta.get("through"):
            return value_of(p.component, given, sync=run.call.sync)
        start = thread_time()
        value = p.component.func(given)
        computed(p.component.func, thread_time() - start, brief=False)
        routes = p.meta.get("routes")
        found = chosen_routes(value, routes) if routes else value
        if (routes and found is None) or isinstance(found, Runnable):
            raise LeftToStock("the function returned a runnable that was not known before")
        return found

    return own_failures(run, lambda: pieces(p, args["value"], called, run))


def _one_item(p: Primitive, args: Args) -> Any:
    """Calls a function that makes a list item by item for one item, before the others are there.

    Returns what it makes of ``item`` and of what is at its place in the other lists. Raises LeftToStock if these are no
    lists, or too short, and for what is not plain data.
    """
    given: Any = [args["item"]]
    how = p.meta["itemwise"]
    lists = how.keys
    if lists is not None:
        given = fields(args)
        for key in lists:
            given[key] = [args["item"] if key == p.params["of"] else _at(given[key], args[NUMBER])]
    plain(given)
    found = how.at(p.component.func, args[NUMBER])(given)
    if type(found) is not list or len(found) != 1:
        raise LeftToStock("the function did not make one item of one")
    return found[0]


def _at(given: Any, place: int) -> Any:
    if type(given) not in (list, tuple) or place >= len(given):
        raise LeftToStock("one of the lists that it goes through is none, or too short")
    return given[place]


def warm(p: Primitive, args: Args, run: Execution) -> Any:
    return growing_prefill(p, args, run) if "grows" in p.meta else partial_prefill(p, args, run)


def record(p: Primitive, args: Args, run: Execution) -> Any:
    return fields(args)


def pick(p: Primitive, args: Args, run: Execution) -> Any:
    record, key = args["record"], p.params["key"]
    found = dict.get(record, key, _ABSENT) if isinstance(record, dict) else _ABSENT
    if found is _ABSENT:
        raise LeftToStock(f"its input is not a dict with the key {key!r}")
    return found


def choose(p: Primitive, args: Args, run: Execution) -> object:
    current(run)
    return control_flow.choose(run, p, _holds)


def _holds(value: Any) -> bool:
    plain(value)  # refuses values that could notice the truth test
    return bool(value)


def each(p: Primitive, args: Args, run: Execution) -> object:
    if type(args["items"]) not in (list, tuple, Stream):
        raise LeftToStock("its input is not a list")  # and can perhaps be read only once
    return control_flow.each(run, p, args)


KERNELS: dict[Op, Kernel] = {
    Op.RENDER: render,
    Op.PREFILL: prefill,
    Op.PARTIAL_PREFILL: warm,
    Op.DECODE: decode,
    Op.PARTIAL_DECODE: partial_decode,
    Op.PARSE: parse,
    Op.CALL: call,
    Op.RECORD: record,
    Op.PICK: pick,
    Op.EMBED: embed,
    Op.SEARCH: search,
    Op.RERANK: rerank,
    Op.AGGREGATE: aggregate,
    Op.MAP: each,
    Op.CONDITION: choose,
    Op.TOOL: tools.call,
}
