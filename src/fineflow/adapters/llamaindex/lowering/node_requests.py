"""LLM requests of postprocessors about nodes: the recognised classes, and their requests exactly as stock sends them.

Written against llama-index-core 0.14.25, llama-index-llms-openai 0.8.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FunctionType, SimpleNamespace
from typing import Any

from llama_index.core.base.llms.generic_utils import prompt_to_messages
from llama_index.core.llms.llm import LLM
from llama_index.core.output_parsers import PydanticOutputParser
from llama_index.core.postprocessor import (
    AutoPrevNextNodePostprocessor,
    LLMRerank,
    PIINodePostprocessor,
    StructuredLLMRerank,
)
from llama_index.core.postprocessor.rankGPT_rerank import RankGPTRerank
from llama_index.core.postprocessor.structured_llm_rerank import DocumentRelevanceList
from llama_index.core.prompts import PromptTemplate, SelectorPromptTemplate
from llama_index.core.prompts.rich import RichPromptTemplate
from llama_index.core.response_synthesizers import CompactAndRefine, Refine, ResponseMode, get_response_synthesizer
from llama_index.core.schema import MetadataMode
from llama_index.core.types import PydanticProgramMode

from fineflow.adapters.core.installers import module_of
from fineflow.adapters.core.trust import NotLowered, put_on
from fineflow.adapters.llamaindex.builder import IndexBuilder
from fineflow.adapters.llamaindex.kernels.answers import refined
from fineflow.adapters.llamaindex.lowering.prompts import check_packing, check_template
from fineflow.adapters.llamaindex.lowering.synthesizers import Given
from fineflow.adapters.llamaindex.methods import exactly, method, same
from fineflow.adapters.llamaindex.models.llms import Request, asked, model_known, request
from fineflow.declare import Declaration, declared
from fineflow.runtime.call.query import LeftToStock

POSTPROCESSING = ("postprocess_nodes", "apostprocess_nodes", "_postprocess_nodes", "_apostprocess_nodes")
_BATCHED = (*POSTPROCESSING, "_get_node_batches", "_get_predict_kwargs")
_STRUCTURED = ("structured_predict", "astructured_predict")


@dataclass(frozen=True, slots=True)
class Handed:
    """Arguments that stock passes to a postprocessor."""

    query: str
    nodes: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Asker:
    """A class of postprocessors that call ``llm``, recognised by its methods.

    check: raises NotLowered if user code makes prompts, or parses answers between two requests. requests: yields all
    requests; None if there is only one. by_async: True if its async method uses the LLM's async methods.
    """

    base: type
    methods: tuple[str, ...]
    check: Callable[[Any, IndexBuilder], None]
    requests: Callable[[Any, Handed], Iterator[Request]] | None
    by_async: bool


def can_ask(processor: Any) -> bool:
    """Returns True if the LLM of a postprocessor can be called ahead."""
    return isinstance(processor.llm, LLM) and model_known(processor.llm)


# LLMRerank


def _choices(processor: Any, handed: Handed) -> Iterator[Request]:
    for batch in processor._get_node_batches(list(handed.nodes)):
        arguments = processor._get_predict_kwargs(batch, handed.query)
        yield request(processor.llm, processor.choice_select_prompt, arguments)


def _check_choices(processor: Any, b: IndexBuilder) -> None:
    _check_functions(processor, b)
    template = processor.choice_select_prompt
    parts = [template]
    if exactly(template, SelectorPromptTemplate):
        if not all(_library(condition) for condition, _ in template.conditionals or ()):
            raise NotLowered("which prompt is used is decided by user code")
        parts = [template.default_template, *(part for _, part in template.conditionals or ())]
    for part in parts:
        if not exactly(part, RichPromptTemplate):
            check_template(part)
        elif part.output_parser is not None or part.function_mappings or part.template_var_mappings or part.kwargs:
            raise NotLowered("a prompt template has an output parser, mappings or values of its own")
        elif "completion" in part.template_str:  # a block of the template language that calls a model
            raise NotLowered("a prompt template may do more than format a prompt")


def _check_functions(processor: Any, b: IndexBuilder) -> None:
    if not _known(processor._format_node_batch_fn, b):
        raise NotLowered("user code formats nodes for prompts")
    if b.sync and not _known(processor._parse_choice_select_answer_fn, b):
        raise NotLowered("user code parses each answer before the next request")


def _known(function: Any, b: IndexBuilder) -> bool:
    return b.assume_pure or declared(function) == Declaration().effects() or _library(function)


def _library(function: Any) -> bool:
    return module_of(function).partition(".")[0] == "llama_index"


# StructuredLLMRerank


def _structured(processor: Any, handed: Handed) -> Iterator[Request]:
    llm, template = processor.llm, processor.choice_select_prompt
    own = _own_predict(llm)
    if own is not None and template.output_parser is not None:
        raise LeftToStock("another model has left its output parser in the prompt template")
    for batch in processor._get_node_batches(list(handed.nodes)):
        arguments = processor._get_predict_kwargs(batch, handed.query)
        yield _by_text(llm, template, arguments) if own is None else _noted(llm, own, arguments)


def _by_text(llm: LLM, template: Any, arguments: dict[str, Any]) -> Request:
    """Returns the request of ``LLMTextCompletionProgram``: ``structured_predict`` of LLMs without function calling."""
    bare = template.model_copy(update={"output_parser": None})  # the parser opens a span
    form = PydanticOutputParser.get_format_string(PydanticOutputParser(arguments["output_cls"]), escape_json=True)
    written = {name: value for name, value in arguments.items() if name not in ("output_cls", "prompt")}
    text = f"{bare.format(llm=llm, **written)}\n\n{form}"
    if not llm.metadata.is_chat_model:
        return Request("complete", text, formatted=False)
    messages = llm._extend_messages(prompt_to_messages(text))
    if asked(type(llm), "chat") == "complete":
        assert llm.messages_to_prompt is not None  # set by LLM's own validator
        return Request("complete", llm.messages_to_prompt(messages))
    return Request("chat", messages)


def _own_predict(llm: LLM) -> FunctionType | None:
    """Returns the ``structured_predict`` of a class that overrides it; None otherwise."""
    found = method(type(llm), "structured_predict")
    return None if found is None or same(type(llm), LLM, *_STRUCTURED) else found.function


def _check_structured(processor: Any, b: IndexBuilder) -> None:
    _check_functions(processor, b)
    llm, template = processor.llm, processor.choice_select_prompt
    if put_on(llm, _STRUCTURED):
        raise NotLowered("a method has been put on the model")
    if _own_predict(llm) is not None:
        schema = getattr(llm, "_should_use_structure_outputs", None)  # as OpenAI has it
        if schema is None or not schema():
            raise NotLowered(f"it is not known how {type(llm).__name__} is called for structured output")
    elif llm.pydantic_program_mode is not PydanticProgramMode.LLM and (
        llm.pydantic_program_mode is not PydanticProgramMode.DEFAULT or llm.metadata.is_function_calling_model
    ):
        raise NotLowered("its model is called with function calling")
    if processor._document_relevance_list_cls is not DocumentRelevanceList and not b.assume_pure:
        raise NotLowered("its answers are objects of a class of your own")
    if type(template) is not PromptTemplate or type(template.output_parser) not in (type(None), PydanticOutputParser):
        raise NotLowered("its prompt template is not recognised")
    check_template(template.model_copy(update={"output_parser": None}))  # the parser is set by stock


# PIINodePostprocessor


def _masked(processor: Any, handed: Handed) -> Iterator[Request]:
    for each in handed.nodes:
        text = each.node.get_content(metadata_mode=MetadataMode.LLM)
        stand_in = SimpleNamespace(llm=_Noting(processor.llm), pii_str_tmpl=processor.pii_str_tmpl)
        yield _noted(stand_in, PIINodePostprocessor.mask_pii, {"text": text})


# AutoPrevNextNodePostprocessor


def _directions(processor: Any, handed: Handed) -> Iterator[Request]:
    synthesizer = _synthesizer(processor)
    template = synthesizer._text_qa_template.partial_format(query_str=handed.query)
    for each in handed.nodes:
        chunks = refined(synthesizer, Given(handed.query, (each.node.get_content(),), {}))
        yield request(processor.llm, template, {"context_str": chunks[0]})  # later chunks need the answer before


def _check_directions(processor: Any, b: IndexBuilder) -> None:
    if not _library(type(processor.docstore)):
        raise NotLowered("nodes are read from a class of your own before the next request")
    if processor.response_mode not in (ResponseMode.COMPACT, ResponseMode.REFINE):
        raise NotLowered("it requests more than one answer about a node")
    synthesizer = _synthesizer(processor)
    if not isinstance(synthesizer, Refine | CompactAndRefine):
        raise NotLowered("its prompts are not known")
    check_packing(synthesizer._prompt_helper)


def _synthesizer(processor: Any) -> Any:
    """Returns the synthesizer that stock makes for each node."""
    return get_response_synthesizer(
        llm=processor.llm,
        text_qa_template=PromptTemplate(processor.infer_prev_next_tmpl),
        refine_template=PromptTemplate(processor.refine_prev_next_tmpl),
        response_mode=processor.response_mode,
    )


def _nothing(processor: Any, b: IndexBuilder) -> None:
    """Accepts a class that takes no user code."""


# The request of a method, recorded by calling it


def _noted(holder: Any, function: Any, arguments: dict[str, Any]) -> Request:
    """Returns the first request of a LlamaIndex method, by calling it with a model that records it and raises."""
    try:
        function(_Noting(holder) if isinstance(holder, LLM) else holder, **arguments)
    except _Noted as noted:
        return noted.request
    raise LeftToStock("it calls its model in an unknown way")


class _Noted(Exception):
    """Carries the recorded request."""

    def __init__(self, wanted: Request) -> None:
        self.request = wanted


class _Noting:
    """LLM that raises ``_Noted`` with its request instead of answering."""

    def __init__(self, llm: LLM) -> None:
        self._noting = llm

    def __getattr__(self, name: str) -> Any:
        return getattr(self._noting, name)

    def predict(self, prompt: Any, **arguments: Any) -> Any:
        raise _Noted(request(self._noting, prompt, arguments))

    def chat(self, messages: Any, **settings: Any) -> Any:
        raise _Noted(Request("chat", messages, kwargs=settings))


ASKERS = (
    Asker(LLMRerank, _BATCHED, _check_choices, _choices, by_async=True),
    Asker(StructuredLLMRerank, _BATCHED, _check_structured, _structured, by_async=True),
    Asker(PIINodePostprocessor, (*POSTPROCESSING, "mask_pii"), _nothing, _masked, by_async=False),
    Asker(
        AutoPrevNextNodePostprocessor,
        (*POSTPROCESSING, "_parse_prediction"),
        _check_directions,
        _directions,
        by_async=False,
    ),
    Asker(RankGPTRerank, (*POSTPROCESSING, "run_llm", "arun_llm"), _nothing, None, by_async=True),
)
