"""RouterQueryEngine: what its selector chooses runs ahead of stock, all of it at once.

Stock's sync method calls the chosen engines one after the other, its async one side by side. So for sync calls each
engine that is known from end to end is searched and answered ahead, as soon as the selector has chosen it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llama_index.core.output_parsers.selection import SelectionOutputParser
from llama_index.core.prompts import PromptTemplate
from llama_index.core.selectors import LLMMultiSelector, LLMSingleSelector
from llama_index.core.selectors.llm_selectors import _build_choices_text

from fineflow.adapters.core.builder import TEXT, VALUE, Leaf
from fineflow.adapters.core.recognition import NotLowered
from fineflow.adapters.llamaindex.lowering.containers import SUMMARIZER
from fineflow.adapters.llamaindex.lowering.context import Seen, part_of
from fineflow.adapters.llamaindex.lowering.subquestions import TOOL, lower_tool
from fineflow.adapters.llamaindex.lowering.synthesizers import lower_synthesizer
from fineflow.adapters.llamaindex.lowering.vector_search import is_search
from fineflow.adapters.llamaindex.methods import as_written, method
from fineflow.adapters.llamaindex.models.embeddings import lower_vector, query_text
from fineflow.adapters.llamaindex.models.llms import Request, lower_answer, model_effects, request
from fineflow.ir import Op, Primitive, Ref
from fineflow.runtime.call.executor import Execution
from fineflow.runtime.call.query import LeftToStock

SELECTS = "_selector"
_SELECTORS = (LLMSingleSelector, LLMMultiSelector)


@dataclass(frozen=True, slots=True)
class Choice:
    """One of so many engines of a router."""

    index: int
    count: int


class _Format:
    """What ``SelectionOutputParser`` adds to a prompt, without its span."""

    def format(self, text: str) -> str:
        found = method(SelectionOutputParser, "format")
        assert found is not None
        return str(found.function(SelectionOutputParser(), text))


def lower_router(router: Any, query: Leaf, seen: Seen, around: Sequence[str]) -> Leaf:
    """The primitives of what is chosen, as far as it can be run ahead, and of what sums it up. around: methods of a
    query engine.
    """
    found = _lower_choices(router, query, seen, around)
    if found is None:
        found = seen.opaque(router, {"query": query.ref}, "its parts run sooner by themselves")
    with seen.b.inside(SUMMARIZER):
        return lower_synthesizer(router._summarizer, found, query, seen)


def _lower_choices(router: Any, query: Leaf, seen: Seen, around: Sequence[str]) -> Leaf | None:
    b = seen.b
    mark = len(b.primitives)
    try:
        vector = _vector(router, query, seen)
        written = _selected(router, query, seen)
        found: dict[str, Ref] = {}
        for i, part in enumerate(router._query_engines):
            with b.inside(f"{TOOL}{i}"):
                seen.objects[b.leaf] = part
                args = {"text": written.ref, "query": query.ref}
                choice = Choice(i, len(router._query_engines))
                question = b.add(Op.PARSE, args, name="chosen", component=choice, kind=TEXT)
                found[str(i)] = lower_tool(part, question, vector, seen, around).ref
    except NotLowered as why:
        del b.primitives[mark:]
        b.note(b.leaf, False, f"{why}; what is chosen runs when stock calls it")
        return None
    return b.add(Op.AGGREGATE, found, component=router, kind=TEXT, how="chosen")


def _vector(router: Any, query: Leaf, seen: Seen) -> Leaf | None:
    """The vector of the query, which stock keeps with it: the engines that are called later search by the first's."""
    if not seen.one_by_one:
        raise NotLowered("stock's async method calls all that is chosen at once")
    retrievers = [getattr(part, "_retriever", None) for part in router._query_engines]
    if not retrievers or not all(map(is_search, retrievers)):
        raise NotLowered("an engine is not known from end to end")
    models: list[Any] = [each._embed_model for each in retrievers if each is not None and each._needs_embedding()]
    if not models:
        return None
    if len(models) != len(retrievers) or any(model is not models[0] for model in models):
        raise NotLowered("its engines search by vectors of different models")
    with seen.b.inside(f"{TOOL}0"), seen.b.inside("retriever"):
        return lower_vector(models[0], query, seen)


def _selected(router: Any, query: Leaf, seen: Seen) -> Leaf:
    """The model that chooses."""
    b, selector = seen.b, router._selector
    base = next((each for each in _SELECTORS if isinstance(selector, each)), None)
    if base is None or not as_written(selector, base, "select", "_select"):
        raise NotLowered(f"{type(selector).__name__} is not recognised: what it chooses is known when it returns")
    prompt = selector._prompt
    if type(prompt) is not PromptTemplate or type(prompt.output_parser) is not SelectionOutputParser:
        raise NotLowered("the selector's prompt has a parser of its own")
    if prompt.function_mappings or prompt.template_var_mappings:
        raise NotLowered("the selector's prompt has mappings of its own")
    llm = selector._llm
    effects = model_effects(llm, b, "predict")
    with b.inside(SELECTS):
        seen.objects[b.leaf] = selector
        made = b.add(Op.RENDER, {"key:query_str": query.ref}, component=router, kind=VALUE)
        written = lower_answer(llm, made, b, effects)
        seen.at(part_of(b.leaf, "llm"))
    return written


# Running ahead


def choice_request(router: Any, query: str) -> Request:
    """What stock will ask the selector's model."""
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


def chosen(p: Primitive, args: Mapping[str, Any], run: Execution) -> str:
    """The query, if the engine is chosen. Raises LeftToStock if it is not, and what the parser raises."""
    query, choice = query_text(p, "query", args, run), p.component
    parse = method(SelectionOutputParser, "parse")
    assert parse is not None
    answers = parse.function(SelectionOutputParser(), args["text"]).parsed_output
    for answer in answers:
        if range(choice.count)[answer.choice - 1] == choice.index:  # which counts from the end where stock's list does
            return query
    raise LeftToStock("it is not chosen")
