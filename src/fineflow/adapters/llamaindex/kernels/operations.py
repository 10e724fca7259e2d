"""Kernels that run the operations of a LlamaIndex plan ahead of stock, for constructs without a kernel of their own."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from fineflow.adapters.llamaindex.kernels.answers import answers
from fineflow.adapters.llamaindex.lowering.prompts import beginning, reader_of
from fineflow.adapters.llamaindex.lowering.retrieval.vector_search import search
from fineflow.adapters.llamaindex.models.embeddings import embed
from fineflow.adapters.llamaindex.models.llms import requested, text_of
from fineflow.ir import Op, Primitive
from fineflow.runtime.call import control_flow
from fineflow.runtime.call.executor import Execution, Kernel
from fineflow.runtime.call.query import LeftToStock
from fineflow.runtime.call.streams import Stream
from fineflow.runtime.call.work import Work

Args = Mapping[str, Any]


def render(p: Primitive, args: Args, run: Execution) -> Any:
    """Returns the inputs of a synthesizer's prompts."""
    return next(value for name, value in args.items() if name != "key:query_str")


def prefill(p: Primitive, args: Args, run: Execution) -> Any:
    return args["prompt"]


def partial_prefill(p: Primitive, args: Args, run: Execution) -> Any:
    """Prefills the known beginning of a prompt; returns 0 if the whole prompt is known by now."""
    rendered = run.graph[p.meta["until"]]
    if all(ref.name in run.values for ref in rendered.args.values()):
        return 0
    known = {name.removeprefix("key:"): value for name, value in args.items()}
    reader = reader_of(p.component)
    if reader is None:
        raise LeftToStock("prompts may no longer be sent ahead to the model")
    text = beginning(p.component, p.meta["template"], known)
    if not text:
        raise LeftToStock("the prompt does not show its late variable")
    return run.spawn(reader.awarm(text), p)


def decode(p: Primitive, args: Args, run: Execution) -> Any:
    """Requests all answers of a synthesizer, or one text of a model."""
    if "how" in p.params:
        return answers(p, args, run)
    wanted = args["cache"]
    return Work(requested(p, p.component, wanted, run, sync=run.call.sync), partial(text_of, wanted.family))


def partial_decode(p: Primitive, args: Args, run: Execution) -> Any:
    """Requests one text of a model, and releases it while it is being decoded."""
    llm, wanted, written = p.component, args["cache"], Stream[str]()
    run.release(p, None, written)

    async def start(entry: Any) -> Any:
        entry.running()
        return await llm.written(wanted.family, wanted.prompt, wanted.formatted, written.put)

    entry = run.work(p, wanted.key, start)

    def ended(done: Any) -> None:
        error = None if done.cancelled() else done.exception()
        if error is None and not done.cancelled():
            written.put(text_of(wanted.family, done.result()))
        written.close(error)

    entry.done.add_done_callback(ended)
    return Work(entry, partial(text_of, wanted.family))


def each(p: Primitive, args: Args, run: Execution) -> object:
    return control_flow.each(run, p, args)


KERNELS: dict[Op, Kernel] = {
    Op.RENDER: render,
    Op.PREFILL: prefill,
    Op.PARTIAL_PREFILL: partial_prefill,
    Op.DECODE: decode,
    Op.PARTIAL_DECODE: partial_decode,
    Op.EMBED: embed,
    Op.SEARCH: search,
    Op.MAP: each,
}
