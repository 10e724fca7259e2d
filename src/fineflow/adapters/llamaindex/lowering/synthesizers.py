"""Response synthesizers: their prompts and answers as primitives, and their shadows."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from llama_index.core.response_synthesizers import (
    Accumulate,
    BaseSynthesizer,
    CompactAndRefine,
    Generation,
    Refine,
    SimpleSummarize,
    TreeSummarize,
)
from llama_index.core.response_synthesizers.compact_and_accumulate import CompactAndAccumulate

from fineflow.adapters.core.builder import UNKNOWN, Leaf, Symbol
from fineflow.adapters.core.recognition import Row
from fineflow.adapters.core.shadows import Site
from fineflow.adapters.core.trust import NotLowered
from fineflow.adapters.llamaindex.builder import IndexBuilder, nodes_in, query_in, unlowered
from fineflow.adapters.llamaindex.lowering.prompts import (
    check_packing,
    check_template,
    prefix_cache,
    quick,
    segments,
    selected,
)
from fineflow.adapters.llamaindex.methods import as_written, believed_class, preceded
from fineflow.adapters.llamaindex.models.llms import (
    in_turn,
    lane,
    lower_requests,
    model_effects,
    model_known,
    shadow_llm,
)
from fineflow.adapters.llamaindex.stores.searches import check_store
from fineflow.adapters.llamaindex.thread_affinity import off_loop
from fineflow.ir import Effect, Op, Primitive, Ref
from fineflow.ir.meta import CORES

ACCUMULATE, TREE, REFINE, SIMPLE = "accumulate", "tree", "refine", "simple"
_RESPONDING = ("synthesize", "asynthesize", "get_response", "aget_response", "_prepare_response_output")
_ACCUMULATING = (*_RESPONDING, "_give_responses", "_make_prompt_kwargs", "_format_response", "flatten_list")
_REFINING = (
    *(*_RESPONDING, "_default_program_factory", "_update_response", "_aupdate_response"),
    *("_run_refine_loop", "_arun_refine_loop"),
)


_DONE = {
    ACCUMULATE: "all requests run at once, where stock's sync methods send them one by one",
    TREE: "each summary starts once its own inputs are ready, not once a whole level is",
    REFINE: "refine prompts are prefilled while the answer before is written",
}


@dataclass(frozen=True, slots=True)
class Given:
    """Input of a synthesizer: the query, the texts of the nodes, and keyword arguments for its prompts.

    by: the synthesizer that stock runs, if stock does; chat engines make one for each turn, or set it to stream.
    """

    query: str
    texts: tuple[str, ...]
    arguments: Mapping[str, Any]
    by: Any = None


def is_synthesizer(obj: Any) -> bool:
    """Returns True if an object is a response synthesizer."""
    return isinstance(obj, BaseSynthesizer)


def kind_of(synthesizer: Any) -> Kind | None:
    """Returns the row of a synthesizer; None if it is not recognised."""
    return next((row for row in KINDS if row.matches(synthesizer)), None)


# Lowering


def _lower_synthesizer(synthesizer: Any, value: Symbol, b: IndexBuilder) -> Leaf:
    """Appends the texts that stock feeds, the prompt made from them, and one step for all answers of the model.

    Raises NotLowered.
    """
    query, nodes = query_in(value), nodes_in(value)
    args = {"query": query.ref, "nodes": nodes.ref}
    kind = kind_of(synthesizer)
    assert kind is not None
    llm = synthesizer._llm
    _check(synthesizer, kind)
    effects = model_effects(llm, b, "predict")
    engine, known = lane(llm), prefix_cache(llm)
    texts = b.fed(synthesizer, args, "texts")
    template = selected(getattr(synthesizer, kind.templates[0]), llm)
    cache = _prompt(template, query, texts, llm, engine, effects, known, b)
    beside = known.get("device") == CORES  # the answer before is written there: a prefill would only slow it down
    ahead = kind.how in (ACCUMULATE, TREE) or (kind.how == REFINE and "block" in known and not beside)
    several = kind.how in (ACCUMULATE, TREE) and not synthesizer._use_async
    more = {"how": kind.how, "several": several, "by_stock": not ahead}
    made = lower_requests(synthesizer, llm, {"cache": cache.ref}, b, "answers", effects, **more)
    if ahead:
        b.note(made.ref.name, True, _DONE[kind.how])
    return made


def lower_answers(synthesizer: Any, kind: Kind, texts: Leaf, b: IndexBuilder) -> Leaf:
    """Appends one step for all answers about texts that are known ahead of stock. Raises NotLowered."""
    llm = synthesizer._llm
    _check(synthesizer, kind)
    effects = model_effects(llm, b, "predict")
    b.objects[b.leaf] = synthesizer
    return lower_requests(synthesizer, llm, {"prompt": texts.ref}, b, "answers", effects, how=kind.how)


def _prompt(
    template: Any, query: Leaf, texts: Leaf, llm: Any, engine: str, effects: Any, known: Any, b: IndexBuilder
) -> Leaf:
    parts = segments(template)
    late = {name: Ref(texts.ref.name) for kind, name in parts if kind == "variable" and name != "query_str"}
    args = {f"key:{name}": ref for name, ref in late.items()} or {"key:context_str": texts.ref}
    args["key:query_str"] = query.ref
    params: dict[str, Any] = {"segments": parts} if parts else {}
    prompt = b.add(Op.RENDER, args, component=template, kind=UNKNOWN, **params)
    if known.get("remote"):
        guards = [p.name for p in b.primitives if p.by_stock and not _is_library(p, b)]
        if guards:
            known = {"whole_prompts": f"{guards[0]} may be user code, which no beginning of a prompt overtakes"}
    return b.add(Op.PREFILL, {"prompt": prompt.ref}, component=llm, engine=engine, effects=effects, **known)


def _is_library(p: Primitive, b: IndexBuilder) -> bool:
    """Returns True if a step that stock runs consists of LlamaIndex's classes, or of declared ones."""
    if p.effects.kind is Effect.OPAQUE:
        return False
    component = p.component
    try:
        for each in (component, *(getattr(component, name, None) for name in ("_vector_store", "_memory"))):
            believed_class(each, b)
            check_store(each, b)
    except NotLowered:
        return False
    return True


def _check(synthesizer: Any, kind: Kind) -> None:
    """Raises NotLowered unless each answer is simply ``llm.predict`` of a prompt with packed texts."""
    if synthesizer._multimodal:
        raise NotLowered("it is multimodal")
    if synthesizer._output_cls is not None:
        raise NotLowered("its answers are objects of a class")
    if kind.how == REFINE and (synthesizer._structured_answer_filtering or not _default_program(synthesizer)):
        raise NotLowered("its answers are filtered by a program")
    for name in kind.templates:
        check_template(getattr(synthesizer, name))
    check_packing(synthesizer._prompt_helper)


def _default_program(synthesizer: Any) -> bool:
    return bool(synthesizer._program_factory == synthesizer._default_program_factory)


# Shadows


def _shadow_synthesizer(synthesizer: Any, site: Site) -> Any:
    """Returns a copy of a synthesizer whose model claims, and which feeds the graph the texts that it gets."""
    kind = kind_of(synthesizer)
    if kind is None or not model_known(synthesizer._llm):
        return _shadow_other(synthesizer, site)
    made = copy.copy(synthesizer)
    made._llm = shadow_llm(synthesizer._llm, site.part("llm"))
    with suppress(NotLowered):
        check_packing(synthesizer._prompt_helper)
        made._prompt_helper = quick(synthesizer._prompt_helper)
    if kind.how == REFINE and _default_program(synthesizer):
        made._program_factory = made._default_program_factory
    for name in ("get_response", "aget_response"):
        made.__dict__[name] = preceded(getattr(made, name), partial(_feed, site, made))
    return made


def _shadow_other(synthesizer: Any, site: Site) -> Any:
    """Returns the shadow of any other synthesizer; in async calls it does not block the event loop."""
    found = in_turn(synthesizer, site)
    if site.sync:
        return found
    if not as_written(found, Generation, *_RESPONDING) or not model_known(found._llm):
        return off_loop(found, "aget_response", site.options.trusting)
    made = copy.copy(found)
    made._llm = shadow_llm(found._llm, site.part("llm"))
    return made


def _feed(site: Site, by: Any, query_str: str, text_chunks: Any, **arguments: Any) -> None:
    """Feeds the graph the arguments of a synthesizer's method, of the first call only: a tree recurses."""
    site.feed(Given(query_str, tuple(text_chunks), arguments, by), once=True)


def _components(synthesizer: Any) -> Iterator[Any]:
    yield from (synthesizer, synthesizer._llm)


@dataclass(frozen=True, slots=True)
class Kind(Row):
    """A class of synthesizers, recognised by its methods.

    how: the way in which its answers depend on each other. templates: attributes with prompts.
    """

    how: str = ""
    templates: tuple[str, ...] = ()


def _kind(base: type, how: str, methods: tuple[str, ...], templates: tuple[str, ...]) -> Kind:
    return Kind(
        base,
        methods,
        _lower_synthesizer,
        _shadow_synthesizer,
        components=_components,
        how=how,
        templates=templates,
    )


_TWO = ("_text_qa_template", "_refine_template")
KINDS = (
    _kind(CompactAndRefine, REFINE, (*_REFINING, "_make_compact_text_chunks"), _TWO),
    _kind(Refine, REFINE, _REFINING, _TWO),
    _kind(TreeSummarize, TREE, _RESPONDING, ("_summary_template",)),
    _kind(SimpleSummarize, SIMPLE, _RESPONDING, ("_text_qa_template",)),
    _kind(CompactAndAccumulate, ACCUMULATE, _ACCUMULATING, ("_text_qa_template",)),
    _kind(Accumulate, ACCUMULATE, _ACCUMULATING, ("_text_qa_template",)),
)
ROWS: tuple[Row, ...] = (
    *KINDS,
    Row(BaseSynthesizer, (), unlowered(), _shadow_other, components=_components),
)
