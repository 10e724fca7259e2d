"""RouterQueryEngine: the engines that its selector chooses run ahead of stock, concurrently.

Stock's sync method calls the chosen engines one after the other; its async method calls them concurrently anyway. So in
sync calls, if all engines are fully recognised, search and answers of each start as soon as the selector chooses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from llama_index.core.output_parsers.selection import SelectionOutputParser
from llama_index.core.selectors import LLMMultiSelector, LLMSingleSelector
from llama_index.core.selectors.llm_selectors import _build_choices_text

from fineflow.adapters.core.builder import TEXT, Leaf, Symbol
from fineflow.adapters.core.trust import NotLowered
from fineflow.adapters.llamaindex.builder import IndexBuilder, asked_for, query_in
from fineflow.adapters.llamaindex.lowering.containers import ROUTER, SUMMARIZER
from fineflow.adapters.llamaindex.lowering.retrieval.vector_search import is_search
from fineflow.adapters.llamaindex.lowering.subquestions import TOOL, lower_tool, shadow_with_tools
from fineflow.adapters.llamaindex.methods import as_written, method
from fineflow.adapters.llamaindex.models.embeddings import lower_vector, query_text
from fineflow.adapters.llamaindex.models.llms import Request, lower_asking, request
from fineflow.ir import Op, Primitive, Ref
from fineflow.runtime.call.executor import Execution
from fineflow.runtime.call.query import LeftToStock

SELECTS = "_selector"
_SELECTORS = (LLMSingleSelector, LLMMultiSelector)


@dataclass(frozen=True, slots=True)
class Choice:
    """One engine of a router: its index, and the number of engines."""

    index: int
    count: int


class _Format:
    """Formats prompts like ``SelectionOutputParser``, without its span."""

    def format(self, text: str) -> str:
        found = method(SelectionOutputParser, "format")
        assert found is not None
        return str(found.function(SelectionOutputParser(), text))


def _lower_router(router: Any, value: Symbol, b: IndexBuilder) -> Symbol:
    """Appends the chosen engines, if they can run ahead, and the summarizer."""
    query = query_in(value)
    found = _lower_choices(router, query, b)
    if found is None:
        found = b.left_to_stock(router, {"query": query.ref}, "its parts run ahead by themselves")
    with b.inside(SUMMARIZER):
        return b.lower(router._summarizer, asked_for(query, found))


def _lower_choices(router: Any, query: Leaf, b: IndexBuilder) -> Leaf | None:
    mark = len(b.primitives)
    try:
        vector = _vector(router, query, b)
        written = _selected(router, query, b)
        found: dict[str, Ref] = {}
        for i, part in enumerate(router._query_engines):
            with b.inside(f"{TOOL}{i}"):
                b.objects[b.leaf] = part
                args = {"text": written.ref, "query": query.ref}
                choice = Choice(i, len(router._query_engines))
                question = b.add(Op.PARSE, args, name="chosen", component=choice, kind=TEXT, kernel=_chosen)
                found[str(i)] = lower_tool(part, question, vector, b).ref
    except NotLowered as why:
        del b.primitives[mark:]
        b.note(b.leaf, False, f"{why}; chosen engines run when stock calls them")
        return None
    return b.add(Op.AGGREGATE, found, component=router, kind=TEXT, how="chosen")


def _vector(router: Any, query: Leaf, b: IndexBuilder) -> Leaf | None:
    """Appends the query's vector, which stock stores in the query: later engines search by that of the first one."""
    if not b.sync:
        raise NotLowered("stock's async method calls the chosen engines concurrently anyway")
    retrievers = [getattr(part, "_retriever", None) for part in router._query_engines]
    if not retrievers or not all(map(is_search, retrievers)):
        raise NotLowered("an engine is not fully recognised")
    models: list[Any] = [each._embed_model for each in retrievers if each is not None and each._needs_embedding()]
    if not models:
        return None
    if len(models) != len(retrievers) or any(model is not models[0] for model in models):
        raise NotLowered("its engines search by vectors of different models")
    with b.inside(f"{TOOL}0"), b.inside("retriever"):
        return lower_vector(models[0], query, b)


def _selected(router: Any, query: Leaf, b: IndexBuilder) -> Leaf:
    """Appends the selector's model."""
    selector = router._selector
    base = next((each for each in _SELECTORS if isinstance(selector, each)), None)
    if base is None or not as_written(selector, base, "select", "_select"):
        raise NotLowered(f"{type(selector).__name__} is not recognised: its choice is known when it returns")
    return lower_asking(selector, SELECTS, _request, SelectionOutputParser, query, router, b, "the selector's")


# Running ahead


def _request(p: Primitive, args: Mapping[str, Any], run: Execution) -> Request:
    """Returns the request that stock will send to the selector's model."""
    router, query = p.component, args["key:query_str"]
    selector, choices = router._selector, router._metadatas
    arguments: dict[str, Any] = {
        "num_choices": len(choices),
        "context_list": _build_choices_text(choices),
        "query_str": query,
    }
    if isinstance(selector, LLMMultiSelector):
        arguments["max_outputs"] = selector._max_outputs or len(choices)
    prompt = selector._prompt.model_copy(update={"output_parser": _Format()})
    return request(selector._llm, prompt, arguments)


def _chosen(p: Primitive, args: Mapping[str, Any], run: Execution) -> str:
    """Returns the query if the engine is chosen. Raises LeftToStock if not; also what the parser raises."""
    query, choice = query_text(p, "query", args, run), p.component
    parse = method(SelectionOutputParser, "parse")
    assert parse is not None
    answers = parse.function(SelectionOutputParser(), args["text"]).parsed_output
    for answer in answers:
        if range(choice.count)[answer.choice - 1] == choice.index:  # choice 0 is the last one, as in stock's list
            return query
    raise LeftToStock("it is not chosen")


ROWS = (replace(ROUTER, lower=_lower_router, shadow=partial(shadow_with_tools, SELECTS)),)
