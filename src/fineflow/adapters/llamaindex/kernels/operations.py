"""How each operation of a plan for LlamaIndex runs ahead of stock."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from llama_index.core.query_engine import RouterQueryEngine, SubQuestionQueryEngine
from llama_index.core.retrievers import QueryFusionRetriever

from fineflow.adapters.llamaindex.ingestion.text_vectors import BATCHES, embed_texts
from fineflow.adapters.llamaindex.kernels.answers import answers
from fineflow.adapters.llamaindex.lowering.choice_retrievers import SELECTING, choices
from fineflow.adapters.llamaindex.lowering.direct_retrievers import retrieve
from fineflow.adapters.llamaindex.lowering.fusion import Queries, query_prompt
from fineflow.adapters.llamaindex.lowering.node_prompts import NODES, node_answers
from fineflow.adapters.llamaindex.lowering.prompts import beginning, reader_of
from fineflow.adapters.llamaindex.lowering.routers import Choice, choice_request, chosen
from fineflow.adapters.llamaindex.lowering.subquestions import Questions, Tool, question_request, texts_of
from fineflow.adapters.llamaindex.lowering.vector_search import search
from fineflow.adapters.llamaindex.models.embeddings import embed
from fineflow.adapters.llamaindex.models.llms import ask, completion, text_of
from fineflow.ir import Op, Primitive
from fineflow.runtime.call import control_flow
from fineflow.runtime.call.executor import Execution, Kernel, Work
from fineflow.runtime.call.query import LeftToStock
from fineflow.runtime.call.streams import Stream

Args = Mapping[str, Any]


def render(p: Primitive, args: Args, run: Execution) -> Any:
    """What a model is asked for queries, questions or a choice; of a synthesizer, what its prompts are made of."""
    if isinstance(p.component, QueryFusionRetriever):
        return completion(p.component._llm, query_prompt(p.component, args["key:query"]))
    if isinstance(p.component, SubQuestionQueryEngine):
        return question_request(p.component, args["key:query_str"])
    if isinstance(p.component, RouterQueryEngine):
        return choice_request(p.component, args["key:query_str"])
    return next(value for name, value in args.items() if name != "key:query_str")


def prefill(p: Primitive, args: Args, run: Execution) -> Any:
    return args["prompt"]


def partial_prefill(p: Primitive, args: Args, run: Execution) -> Any:
    """Prefills what a prompt begins with; 0 where stock has got to the prompt itself by now."""
    rendered = run.graph[p.meta["until"]]
    if all(ref.name in run.values for ref in rendered.args.values()):
        return 0
    known = {name.removeprefix("key:"): value for name, value in args.items()}
    reader = reader_of(p.component)
    if reader is None:
        raise LeftToStock("the model may not be sent prompts ahead by now")
    text = beginning(p.component, p.meta["templates"][0], known)
    if not text:
        raise LeftToStock("the prompt does not show its late variable")
    return run.spawn(reader.awarm(text), p)


def decode(p: Primitive, args: Args, run: Execution) -> Any:
    """All answers of a synthesizer, or about nodes; or one text of a model."""
    if p.params.get("how") == NODES:
        return node_answers(p, args["prompt"], run)
    if p.params.get("how") == SELECTING:
        return choices(p, args, run)
    if "how" in p.params:
        return answers(p, args, run)
    llm, wanted = p.component, args["cache"]

    async def start(entry: Any) -> Any:
        entry.begun = True
        return await ask(llm, wanted, sync=run.call.sync)

    return Work(run.work(p, wanted.key, start), partial(text_of, wanted.family))


def partial_decode(p: Primitive, args: Args, run: Execution) -> Any:
    """One text of a model on an engine, released while it is written: each time all of it so far."""
    llm, wanted = p.component, args["cache"]
    written: Stream[str] = Stream()
    run.release(p, None, written)

    async def start(entry: Any) -> Any:
        entry.begun = True
        return await llm.written(wanted.family, wanted.prompt, wanted.formatted, written.put)

    entry = run.work(p, wanted.key, start)

    def ended(done: Any) -> None:
        error = None if done.cancelled() else done.exception()
        if error is None and not done.cancelled():
            written.put(text_of(wanted.family, done.result()))
        written.close(error)

    entry.done.add_done_callback(ended)
    return Work(entry, partial(text_of, wanted.family))


def parse(p: Primitive, args: Args, run: Execution) -> Any:
    """The queries or questions in what a model has written, each released when it is final; what a search has found."""
    if isinstance(p.component, Choice):
        return chosen(p, args, run)
    if "found" in args:
        return texts_of(p.component, args["query"], args["found"])
    reader = Questions(p.component) if isinstance(p.component, Tool) else Queries(p.component)
    source = args["text"]
    if isinstance(source, str):
        return reader.all(source)
    items: Stream[str] = Stream()
    run.release(p, None, items)
    return run.spawn(_read(reader, source, items), p)


def vectors(p: Primitive, args: Args, run: Execution) -> Any:
    """The vector of a query, or those of texts of documents."""
    return embed_texts(p, args, run) if p.params["of"] == BATCHES else embed(p, args, run)


async def _read(reader: Questions | Queries, source: Stream[str], items: Stream[str]) -> list[str]:
    text, found = "", list[str]()
    try:
        async for text in source.read():
            final = list(reader.so_far(text))
            for query in final[len(found) :]:
                items.put(query)
            found = final
        whole = reader.all(text)
        if whole[: len(found)] != found:
            raise LeftToStock("the whole text says something else than its beginning did")
        for query in whole[len(found) :]:
            items.put(query)
    except BaseException as error:
        items.close(error)
        raise
    items.close()
    return whole


def each(p: Primitive, args: Args, run: Execution) -> object:
    return control_flow.each(run, p, args)


def find(p: Primitive, args: Args, run: Execution) -> Any:
    """What a vector store finds, or a retriever that searches by one method."""
    return retrieve(p, args, run) if p.meta.get("direct") else search(p, args, run)


KERNELS: dict[Op, Kernel] = {
    Op.RENDER: render,
    Op.PREFILL: prefill,
    Op.PARTIAL_PREFILL: partial_prefill,
    Op.DECODE: decode,
    Op.PARTIAL_DECODE: partial_decode,
    Op.PARSE: parse,
    Op.EMBED: vectors,
    Op.SEARCH: find,
    Op.MAP: each,
}
