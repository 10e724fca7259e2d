"""Retrieval chains of LangChain, taken apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from langchain_core.documents import Document
from langchain_core.language_models import BaseLanguageModel
from langchain_core.prompts import BasePromptTemplate, format_document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import (
    Runnable,
    RunnableBinding,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
    RunnableSequence,
)
from langchain_core.runnables.passthrough import RunnableAssign

from fineflow.adapters.registry import is_optimized
from fineflow.errors import PlanningError

_EXPECTED = (
    'fineflow.adaptive expected {"context": retriever | format, ...} | prompt | model (or with '
    "RunnablePassthrough.assign), create_retrieval_chain(...), RetrievalQA, a RetrieverQueryEngine of LlamaIndex, or "
    "an object with configure(configuration)"
)


def refused(obj: Any, why: str) -> PlanningError:
    """Returns the error for an object whose knobs are not found."""
    return PlanningError(f"{_EXPECTED}; got {type(obj).__name__}: {why}")


@dataclass(frozen=True)
class Shape:
    """Parts of a retrieval chain.

    query: of the chain's input, what is searched for. retriever, prompt, model, parsers: its components. context: name
    of the variable that gets the chunks. format: makes it of documents; None leaves them as they are. others: further
    variables, of the chain's input. whole_input: the input is a dict, and belongs to the variables and the output.
    output: key of the answer in what the chain returns; None if that is the answer itself. documents_key: key of the
    documents there, if it returns them. input_key: key under which an input is put that is given alone.
    """

    query: Runnable[Any, Any]
    retriever: BaseRetriever
    prompt: BasePromptTemplate[Any]
    model: Runnable[Any, Any]
    parsers: Sequence[Runnable[Any, Any]]
    context: str
    format: Runnable[Any, Any] | None = None
    others: Mapping[str, Runnable[Any, Any]] = field(default_factory=dict)
    whole_input: bool = False
    output: str | None = None
    documents_key: str | None = None
    input_key: str | None = None

    def given(self, input: Any) -> Any:
        """Returns an input in the form that the other parts read."""
        return input if self.input_key is None or isinstance(input, Mapping) else {self.input_key: input}

    def values(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the variables of the prompt."""
        given = state["input"]
        found = dict(given) if self.whole_input and isinstance(given, Mapping) else {}
        for name, branch in self.others.items():
            found[name] = given if type(branch) is RunnablePassthrough and not branch.func else branch.invoke(given)
        documents = list(state["documents"])
        found[self.context] = documents if self.format is None else self.format.invoke(documents)
        return found


def shape_of(chain: Any) -> Shape:
    """Takes a chain apart. Raises PlanningError if its retriever, prompt or model is not found."""
    own = _bare(chain)
    if hasattr(own, "combine_documents_chain") and hasattr(own, "retriever"):
        return _retrieval_qa(own)
    steps = _steps(own)
    first = _bare(steps[0])
    mapper = first.mapper if isinstance(first, RunnableAssign) else first
    if not isinstance(mapper, RunnableParallel):
        raise refused(chain, f"its first step is {type(first).__name__}, which finds nothing under a name")
    last = _bare(steps[-1])
    if isinstance(first, RunnableAssign) and isinstance(last, RunnableAssign) and len(steps) == 2:
        return _retrieval_chain(chain, mapper, last)
    prompt, model, parsers = _generation(chain, steps[1:])
    name, before, retriever, after = _retrieval(chain, mapper)
    others = {key: branch for key, branch in mapper.steps__.items() if key != name}
    return Shape(
        query=_together(before),
        retriever=retriever,
        prompt=prompt,
        model=model,
        parsers=parsers,
        context=name,
        format=_together(after) if after else None,
        others=others,
        whole_input=isinstance(first, RunnableAssign),
    )


def _retrieval_chain(chain: Any, mapper: Any, last: RunnableAssign) -> Shape:
    """Of ``create_retrieval_chain``: documents under one name, then the answer under another one."""
    name, before, retriever, after = _retrieval(chain, mapper)
    if len(last.mapper.steps__) != 1 or len(mapper.steps__) != 1 or after:
        raise refused(chain, "its steps assign more than the documents and the answer")
    (output, combine), *_ = last.mapper.steps__.items()
    steps = _steps(_bare(combine))
    formatting = _bare(steps[0])
    if not isinstance(formatting, RunnableAssign) or list(formatting.mapper.steps__) != [name]:
        raise refused(chain, f"the chain that makes {output!r} is not create_stuff_documents_chain(...)")
    prompt, model, parsers = _generation(chain, steps[1:])
    join = formatting.mapper.steps__[name]
    return Shape(
        query=_together(before),
        retriever=retriever,
        prompt=prompt,
        model=model,
        parsers=parsers,
        context=name,
        format=RunnableLambda(lambda documents: {name: documents}) | join,
        whole_input=True,
        output=output,
        documents_key=name,
    )


def _retrieval_qa(chain: Any) -> Shape:
    combine = chain.combine_documents_chain
    inner = getattr(combine, "llm_chain", None)
    if inner is None or not hasattr(combine, "document_separator"):
        raise refused(chain, f"its combine_documents_chain is {type(combine).__name__}; expected StuffDocumentsChain")

    def joined(documents: list[Document]) -> str:
        texts = [format_document(document, combine.document_prompt) for document in documents]
        return str(combine.document_separator).join(texts)

    given = RunnableLambda(itemgetter(chain.input_key))
    return Shape(
        query=given,
        retriever=chain.retriever,
        prompt=inner.prompt,
        model=inner.llm,
        parsers=[inner.output_parser],
        context=combine.document_variable_name,
        format=RunnableLambda(joined),
        others={"question": given},
        whole_input=True,
        output=chain.output_key,
        documents_key="source_documents" if chain.return_source_documents else None,
        input_key=chain.input_key,
    )


def _retrieval(chain: Any, mapper: Any) -> tuple[str, Sequence[Any], BaseRetriever, Sequence[Any]]:
    """Returns the name of the branch that searches, and its steps before and after the retriever."""
    found = []
    for name, branch in mapper.steps__.items():
        steps = _steps(_bare(branch))
        for at, step in enumerate(steps):
            if isinstance(_bare(step), BaseRetriever):
                found.append((name, steps[:at], _bare(step), steps[at + 1 :]))
    if len(found) != 1:
        raise refused(chain, f"{len(found)} retrievers in its first step; expected one")
    return found[0]


def _generation(chain: Any, steps: Sequence[Any]) -> tuple[Any, Any, Sequence[Any]]:
    """Returns prompt, model, and the steps after it."""
    if len(steps) < 2 or not isinstance(_bare(steps[0]), BasePromptTemplate):
        raise refused(chain, "a prompt and a model do not follow the retrieval")
    if not isinstance(component(steps[1]), BaseLanguageModel):
        raise refused(chain, f"{type(component(steps[1])).__name__} follows the prompt; expected a model")
    return _bare(steps[0]), steps[1], list(steps[2:])


def _together(steps: Sequence[Any]) -> Runnable[Any, Any]:
    if not steps:
        return RunnablePassthrough()
    made = steps[0]
    for step in steps[1:]:
        made = made | step
    return made  # type: ignore[no-any-return]


def component(obj: Any) -> Any:
    """Returns what bindings are around, whatever they bind."""
    while isinstance(obj, RunnableBinding):
        obj = obj.bound
    return obj


def _bare(obj: Any) -> Any:
    """Returns an object without bindings that only name it or set its config."""
    obj = obj.__wrapped__ if is_optimized(obj) else obj
    while isinstance(obj, RunnableBinding) and not obj.kwargs:
        obj = obj.bound
    return obj


def _steps(obj: Any) -> list[Any]:
    return list(obj.steps) if isinstance(obj, RunnableSequence) else [obj]
