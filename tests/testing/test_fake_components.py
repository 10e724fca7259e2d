from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.messages import AIMessageChunk, HumanMessage, SystemMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate

from fineflow.testing.gates import Gate
from fineflow.testing.langchain import FakeChat, FakeEmbeddings, FakeReranker, FakeRetriever, FakeVectorStore, tokens_of

TEXTS = ["cats purr", "dogs bark loudly", "cats and dogs", "fish swim"]
DOCUMENTS = [Document(page_content=text) for text in TEXTS]


@given(st.text())
def test_tokens_concatenate_exactly(text: str) -> None:
    assert "".join(tokens_of(text)) == text


def test_tokens_are_words_with_the_space_behind() -> None:
    assert tokens_of(" one two\n three") == [" ", "one ", "two\n ", "three"]


@pytest.mark.parametrize("said", ["", "one", "one two\nthree \n"])
async def test_a_result_is_the_assembly_of_its_stream(said: str) -> None:
    chat = FakeChat(default=said)
    messages = [HumanMessage("hello")]
    result = chat._generate(messages)
    assert result == chat.assemble(list(chat._stream(messages)))
    assert result == await chat._agenerate(messages)
    assert result == chat.assemble([chunk async for chunk in chat._astream(messages)])
    assert result.generations[0].text == said
    assert result.generations[0].message.usage_metadata is not None


async def test_every_entry_point_says_the_same() -> None:
    chain = (
        ChatPromptTemplate.from_template("What of {x}?") | FakeChat(answers={"of b": "It is b."}) | StrOutputParser()
    )
    assert chain.invoke({"x": "b"}) == await chain.ainvoke({"x": "b"}) == "It is b."
    assert list(chain.stream({"x": "b"})) == [c async for c in chain.astream({"x": "b"})] == ["It ", "is ", "b."]
    assert chain.batch([{"x": "a"}, {"x": "b"}]) == ["ok", "It is b."]


def test_the_first_key_in_the_prompt_decides() -> None:
    chat = FakeChat(answers={"red": "1", "blue": "2"}, default="3")
    said = [chat.invoke(text).content for text in ("blue and red", "a blue one", "green")]
    assert said == ["1", "2", "3"]
    assert chat.invoke([SystemMessage("red"), HumanMessage("x")]).content == "1"
    assert FakeChat(answers=lambda messages: messages[-1].text.upper()).invoke("hi").content == "HI"


def test_stop_strings_end_the_answer() -> None:
    assert FakeChat(default="one two three").invoke("x", stop=["three", "two"]).content == "one "


def test_a_scripted_exception_is_raised_as_a_fresh_object() -> None:
    error = ValueError("no")
    chat = FakeChat(answers={"bad": error})
    with pytest.raises(ValueError, match="no") as caught:
        chat.invoke("a bad prompt")
    assert caught.value is not error
    assert chat.meter.in_flight == 0


async def test_two_calls_in_flight_at_once() -> None:
    chat = FakeChat(gate=Gate())
    tasks = [asyncio.create_task(chat.ainvoke("a")), asyncio.create_task(chat.ainvoke("b"))]
    await chat.gate.arrived(2)
    assert chat.meter.in_flight == 2
    chat.gate.open()
    await asyncio.gather(*tasks)
    assert (chat.meter.peak, chat.meter.in_flight, chat.meter.calls) == (2, 0, 2)


def test_threads_meet_at_the_gate_too() -> None:
    chat = FakeChat(gate=Gate())
    with ThreadPoolExecutor(2) as pool:
        done = [pool.submit(chat.invoke, text) for text in "ab"]
        chat.gate.wait_arrived(2)
        chat.gate.open()
        assert [d.result(10).content for d in done] == ["ok", "ok"]


async def test_an_answer_is_released_token_by_token() -> None:
    chat = FakeChat(default="one two", token_gate=Gate())
    stream = chat.astream("x")
    chat.token_gate.let(1)
    first = await anext(stream)
    assert isinstance(first, AIMessageChunk) and first.content == "one "
    rest = asyncio.create_task(anext(stream))
    await chat.token_gate.arrived(2)
    assert not rest.done()
    chat.token_gate.open()
    assert (await rest).content == "two"
    await stream.aclose()
    await chat.meter.idle()


async def test_latency_is_prefill_plus_a_step_per_token() -> None:
    chat = FakeChat(default="one two three", prefill=0.02, step=0.01)
    await chat.ainvoke("x")
    chat.invoke("x")
    for span in chat.meter.spans:
        assert span.end - span.start >= 0.05


async def test_a_cancelled_call_leaves_nothing_in_flight() -> None:
    chat = FakeChat(gate=Gate())
    task = asyncio.create_task(chat.ainvoke("x"))
    await chat.gate.arrived()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert chat.meter.in_flight == 0


async def test_embeddings_are_deterministic_and_near_for_shared_words() -> None:
    one, other = FakeEmbeddings(), FakeEmbeddings()
    vectors = one.embed_documents(TEXTS)
    assert vectors == await other.aembed_documents(TEXTS)
    assert one.embed_query(TEXTS[0]) == await one.aembed_query(TEXTS[0]) == vectors[0]
    assert {len(v) for v in vectors} == {32}
    assert sum(x * x for x in one.embed_query("")) == pytest.approx(1.0)

    def near(a: int, b: int) -> float:
        return sum(x * y for x, y in zip(vectors[a], vectors[b], strict=True))

    assert near(0, 2) > near(0, 3)
    assert near(0, 0) == pytest.approx(1.0)


async def test_the_store_finds_the_nearest() -> None:
    store = FakeVectorStore.from_texts(TEXTS, FakeEmbeddings(), ids=list("abcd"))
    retriever = store.as_retriever(search_kwargs={"k": 1})
    assert [d.id for d in retriever.invoke("dogs bark")] == ["b"]
    found = await retriever.ainvoke("fish swim")
    assert [d.id for d in found] == ["d"]
    found[0].metadata["touched"] = True
    assert "touched" not in (await retriever.ainvoke("fish swim"))[0].metadata
    assert store.meter.calls == 3


async def test_the_retriever_prefers_shared_words_and_can_fail() -> None:
    retriever = FakeRetriever(documents=DOCUMENTS, k=2, failing={"broken": ConnectionError("down")})
    assert [d.page_content for d in retriever.invoke("cats purr")] == ["cats purr", "cats and dogs"]
    assert await retriever.ainvoke("cats purr") == retriever.invoke("cats purr")
    with pytest.raises(ConnectionError, match="down"):
        await retriever.ainvoke("broken")
    with pytest.raises(ConnectionError, match="down"):
        retriever.invoke("broken")


async def test_reranking_is_scoring_and_selecting() -> None:
    reranker = FakeReranker(top_n=2)
    scores = reranker.score("cats and dogs", TEXTS)
    assert scores == await reranker.ascore("cats and dogs", TEXTS)
    assert scores == [s for text in TEXTS for s in reranker.score("cats and dogs", [text])]
    best = reranker.compress_documents(DOCUMENTS, "cats and dogs")
    assert best == reranker.select(DOCUMENTS, scores) == await reranker.acompress_documents(DOCUMENTS, "cats and dogs")
    assert [d.page_content for d in best] == ["cats and dogs", "cats purr"]  # equal scores keep their order


async def test_latency_of_the_others() -> None:
    embeddings = FakeEmbeddings(latency=0.01, per_text=0.01)
    reranker = FakeReranker(overhead=0.01, per_document=0.01)
    retriever = FakeRetriever(documents=DOCUMENTS, latency=0.02)
    embeddings.embed_documents(TEXTS)
    await embeddings.aembed_query("x")
    await reranker.acompress_documents(DOCUMENTS, "x")
    retriever.invoke("x")
    took = [s.end - s.start for part in (embeddings, reranker, retriever) for s in part.meter.spans]
    assert all(t >= least for t, least in zip(took, (0.05, 0.02, 0.05, 0.02), strict=True))
