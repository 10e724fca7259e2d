"""Whether a plan is expected to pay, for async and for sync calls."""

from __future__ import annotations

import threading
from operator import itemgetter
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePassthrough, RunnablePick
from pass_shapes import (
    CHAINS,
    QUESTION,
    ask,
    assistant,
    chat,
    compressed,
    engine_chat,
    multi_query,
    two_models,
    without,
)

import fineflow
from fineflow.adapters.core.plan import Plan
from fineflow.adapters.langchain.planning import decide, lower
from fineflow.declare import external
from fineflow.ir import Graph, Op, Primitive, Ref
from fineflow.ir.weights import critical_path
from fineflow.options import Options
from fineflow.passes import PASSES, decode, prefill, prune, rewrite, stages
from fineflow.testing.gates import Gate


@external
class Foreign(BaseChatModel):
    """A chat model that fineflow knows nothing about."""

    gate: Any = None

    @property
    def _llm_type(self) -> str:
        return "foreign"

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=AIMessage("capital\nFrance"))])


def plan(chain: Runnable[Any, Any], passes: Any = PASSES) -> Plan:
    p_graph, lowered = lower(chain, Options(), text_input=True)
    return decide(p_graph, rewrite(p_graph, passes, check=True), lowered)


def question(retriever: Any) -> Runnable[Any, Any]:
    return RunnableLambda(itemgetter("question")) | retriever


@pytest.mark.parametrize(
    ("chain", "expected"),
    [
        (CHAINS["nothing to gain"], (False, False)),
        (lambda: ask("Answer {question}") | chat() | CHAINS["nothing to gain"](), (False, False)),
        (two_models, (True, True)),
        (assistant, (True, True)),
        (lambda: RunnablePassthrough.assign(d=question(compressed())), (True, True)),
        (lambda: question(multi_query(Foreign(), original=False)), (False, True)),
        (lambda: question(multi_query(Foreign())), (False, True)),
        (lambda: question(compressed(Foreign(), original=False)), (True, True)),
        (lambda: RunnablePassthrough.assign(a=RunnableLambda(print)) | ask("{question}") | chat(), (False, False)),
        (lambda: RunnableLambda(print), (False, False)),
    ],
    ids=[
        "one model",
        "two models in a row",
        "two models side by side",
        "assistant",
        "expansion and reranking",
        "foreign model: only stock's sync searches are one by one",
        "foreign model: the original question is searched at once, and waited for with the others",
        "foreign model: each search is reranked when it is back",
        "opaque step first",
        "nothing but an opaque step",
    ],
)
def test_gain(chain: Any, expected: tuple[bool, bool]) -> None:
    made = plan(chain())
    assert (("ainvoke" in made.pays), ("invoke" in made.pays)) == expected


def test_a_prompt_that_can_be_prefilled_is_a_gain() -> None:
    chain = (
        RunnablePassthrough.assign(
            context=RunnablePick("question") | ask("classify {question}") | chat() | StrOutputParser()
        )
        | ask("Answer briefly and only from what is given: {context} {question}")
        | engine_chat()
    )
    assert "ainvoke" in plan(chain).pays
    assert "ainvoke" not in plan(chain, without(prefill)).pays


def test_without_passes_there_is_no_gain_for_async_calls() -> None:
    for name in ("assistant", "two models", "multi query", "two retrievers"):
        assert "ainvoke" not in plan(CHAINS[name](), ()).pays, name


@pytest.mark.parametrize("passes", [(prune,), (stages,), (prefill,), (decode,)], ids=lambda p: p[0].__name__)
def test_every_pass_is_a_gain_by_itself(passes: Any) -> None:
    expected = {prune: assistant(), stages: question(compressed(original=False)), decode: assistant()}
    chain = expected.get(passes[0])
    if chain is None:  # program order leaves a split prefill nothing to do: what it waits for ends with the context
        assert "ainvoke" not in plan(assistant(engine_chat()), passes).pays
    else:
        assert "ainvoke" in plan(chain, passes).pays


def test_with_nothing_to_gain_the_users_own_object_runs() -> None:
    chain = CHAINS["nothing to gain"]()
    mine = fineflow.optimize(chain)
    assert mine.invoke(QUESTION) == chain.invoke(QUESTION)
    assert mine._self_last is None  # no call was started
    gainful = fineflow.optimize(two_models())
    gainful.invoke(QUESTION)
    assert gainful._self_last is not None and gainful._self_last.claimed == 2


def test_sync_searches_overlap_even_where_async_has_nothing_to_gain() -> None:
    gate = Gate()
    retriever = multi_query(Foreign(), original=False)
    retriever.retriever.vectorstore.gate = gate
    thread = threading.Thread(target=fineflow.optimize(retriever).invoke, args=("France",))
    thread.start()
    gate.wait_arrived(2)
    gate.open()
    thread.join(10)
    assert not thread.is_alive()


def test_weights_of_the_critical_path() -> None:
    find = Primitive("find", Op.SEARCH, {"query": Ref("item")})
    graph = Graph(
        (
            Primitive("llm", Op.DECODE, {"prompt": Ref("input")}),
            Primitive("each", Op.MAP, {"items": Ref("llm")}, body=Graph((find,), Ref("find"), ("item",))),
            Primitive("rank", Op.RERANK, {"query": Ref("input"), "documents": Ref("each")}),
            Primitive("aside", Op.SEARCH, {"query": Ref("input")}),
        ),
        Ref("rank"),
    )
    assert critical_path(graph) == (15.0, ("llm", "each", "rank"))
    assert critical_path(Graph((), Ref("input"))) == (0.0, ())
    ordered = graph.with_primitives([*graph.primitives[:3], graph["aside"].with_(after=("rank",))])
    assert critical_path(ordered) == (17.0, ("llm", "each", "rank", "aside"))
