"""Lowers example selectors of few-shot prompts: those over a store are a search, claimed by the prompt's rendering.

A prompt with such a selector becomes a CALL that makes the query of its variables, the SEARCH, and a RENDER that waits
for it. Stock renders the prompt with a copy of the selector whose search claims.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from langchain_core.documents import Document
from langchain_core.example_selectors import (
    LengthBasedExampleSelector,
    MaxMarginalRelevanceExampleSelector,
    SemanticSimilarityExampleSelector,
)
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.vectorstores import VectorStoreRetriever

from fineflow.adapters.analysis import analyse, is_plain
from fineflow.adapters.core.builder import TEXT, Leaf, Record, Symbol
from fineflow.adapters.core.recognition import Row, find
from fineflow.adapters.core.shadows import Site
from fineflow.adapters.core.trust import NotLowered
from fineflow.adapters.langchain.builder import ChainBuilder
from fineflow.adapters.langchain.claims import aclaim, claim
from fineflow.adapters.langchain.kernels.common import Args, LeftToStock, fields, plain
from fineflow.adapters.langchain.lowering.retrieval.retrievers import held_by, lower_vectorstore
from fineflow.adapters.langchain.stores.facts import EMBEDS
from fineflow.adapters.langchain.stores.known_stores import SEARCHES
from fineflow.ir import PURE, Effects, Op, Primitive, Ref
from fineflow.runtime.call.executor import Execution

_PURE = Effects(PURE.kind, "", "joins the variables that examples are searched by")
_SELECT = ("select_examples", "aselect_examples")


def selectors_of(template: Any) -> Mapping[str, Any]:
    """Returns the selectors of a prompt that search a store, by the name of their part."""
    parts = template.messages if isinstance(template, ChatPromptTemplate) else [template]
    found = {f"examples {i}": getattr(part, "example_selector", None) for i, part in enumerate(parts)}
    return {name: each for name, each in found.items() if isinstance(each, _SEARCHING)}


def check_selector(selector: Any) -> None:
    """Raises NotLowered for a selector that could run user code, or that is not recognised."""
    if isinstance(selector, LengthBasedExampleSelector) and _LENGTHS.matches(selector):
        if not analyse(selector.get_text_length).pure:
            raise NotLowered("its example selector measures lengths by a function that is not known to be pure")
    elif selector is not None and find(ROWS, selector) is None:
        raise NotLowered(f"its example selector {type(selector).__name__} is not recognised")


def lower_selectors(template: Any, value: Symbol, b: ChainBuilder) -> dict[str, Ref]:
    """Appends the searches of a prompt's selectors; returns what they find, as arguments of the RENDER."""
    found: dict[str, Ref] = {}
    for name, selector in selectors_of(template).items():
        keys = selector.input_keys
        if isinstance(value, Record) and keys and not set(keys) & template.partial_variables.keys():
            given = {f"key:{key}": b.whole(b.pick(value, key)).ref for key in keys}
        else:  # any variable may be part of the query
            given = {"value": b.whole(value).ref}
        with b.inside(name, "examples"):
            kernel = partial(_query, template, selector)
            query = b.add(Op.CALL, given, name="query", effects=_PURE, kind=TEXT, kernel=kernel)
            b.objects[b.leaf] = selector
            docs = b.whole(lower_vectorstore(_retriever(selector), query, b))
        found[name] = docs.ref
    return found


def _query(template: Any, selector: Any, p: Primitive, args: Args, run: Execution) -> str:
    value = args["value"] if "value" in args else fields(args)
    plain(value)
    if "value" in args:
        value = template._merge_partial_and_user_variables(**template._validate_input(value))
    text: str = selector._example_to_text(value, selector.input_keys)
    return text


def _retriever(selector: Any) -> VectorStoreRetriever:
    """Returns the retriever that makes the same searches as a selector."""
    if isinstance(selector, MaxMarginalRelevanceExampleSelector):
        given = {"k": selector.k, "fetch_k": selector.fetch_k}
        return VectorStoreRetriever(vectorstore=selector.vectorstore, search_type="mmr", search_kwargs=given)
    given = {"k": selector.k, **(selector.vectorstore_kwargs or {})}
    return VectorStoreRetriever(vectorstore=selector.vectorstore, search_kwargs=given)


def render_with_examples(p: Primitive, args: Args, run: Execution) -> Any:
    """Renders a prompt with the examples that were found."""
    template = p.component
    selectors = selectors_of(template)
    given = {name: ref for name, ref in args.items() if name not in selectors}
    value = given["value"] if "value" in given else fields(given)
    plain(value)
    chosen = {name: each._documents_to_examples(args[name]) for name, each in selectors.items()}
    if not is_plain(list(chosen.values())):
        raise LeftToStock("its examples are no plain data")
    made = {name: {"examples": examples, "example_selector": None} for name, examples in chosen.items()}
    return _changed(template, made)._format_prompt_with_error_handling(value)


def _changed(template: Any, parts: Mapping[str, Mapping[str, Any]]) -> Any:
    """Returns a copy of a prompt with other fields in its few-shot parts."""
    if not isinstance(template, ChatPromptTemplate):
        return template.model_copy(update=parts["examples 0"])
    messages: list[Any] = list(template.messages)
    for name, update in parts.items():
        messages[_number(name)] = messages[_number(name)].model_copy(update=update)
    return template.model_copy(update={"messages": messages})


def _part(template: Any, name: str) -> Any:
    return template.messages[_number(name)] if isinstance(template, ChatPromptTemplate) else template


def _number(name: str) -> int:
    return int(name.rpartition(" ")[2])


def shadow_prompt(template: Any, site: Site) -> Any:
    """Returns a copy of a prompt whose selectors claim; the prompt itself if it has none that search."""
    copies = {name: site.of(selector, name) for name, selector in selectors_of(template).items()}
    if not copies:
        return template
    for name in copies:
        site.reads(_part(template, name))
    template._serialized  # noqa: B018 - computed and kept on the user's prompt, as in stock
    return _changed(template, {name: {"example_selector": copy} for name, copy in copies.items()})


def _shadow_selector(selector: Any, site: Site) -> Any:
    copy = selector.model_copy()

    def select(input_variables: dict[str, str]) -> list[dict[str, Any]]:
        text, retriever = selector._example_to_text(input_variables, selector.input_keys), _retriever(selector)
        own = lambda: retriever._get_relevant_documents(text, run_manager=None)  # type: ignore[arg-type]  # noqa: E731
        found: Sequence[Document] = claim(site, (text, None), own)[1]
        return selector._documents_to_examples(found)  # type: ignore[no-any-return]

    async def aselect(input_variables: dict[str, str]) -> list[dict[str, Any]]:
        text, retriever = selector._example_to_text(input_variables, selector.input_keys), _retriever(selector)
        own = lambda: retriever._aget_relevant_documents(text, run_manager=None)  # type: ignore[arg-type]  # noqa: E731
        found: Sequence[Document] = (await aclaim(site, (text, None), own))[1]
        return selector._documents_to_examples(found)  # type: ignore[no-any-return]

    copy.__dict__.update(select_examples=select, aselect_examples=aselect)
    return copy


def _part_of_a_prompt(selector: Any, value: Symbol, b: ChainBuilder) -> Leaf:
    raise NotLowered("an example selector is lowered with its prompt")


_SEARCHING = (SemanticSimilarityExampleSelector, MaxMarginalRelevanceExampleSelector)
_LENGTHS = Row(LengthBasedExampleSelector, _SELECT, _part_of_a_prompt)
ROWS = tuple(
    Row(
        kind,
        (*_SELECT, "_example_to_text", "_documents_to_examples"),
        _part_of_a_prompt,
        _shadow_selector,
        reads=None,
        components=held_by,
        calls=(*SEARCHES, *EMBEDS),
    )
    for kind in _SEARCHING
)
"""Selectors that search a store. They are no steps: prompts lower them."""
