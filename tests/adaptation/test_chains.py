"""Adaptive retrieval chains of LangChain: knobs, interface, and what is said of each query."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from adaptive_kit import HARD, PROMPT, QUESTION, SEVERAL, SINGLE, Asked, Model, Passages, adaptive, chain_of, joined
from langchain_classic.chains import RetrievalQA, create_retrieval_chain
from langchain_classic.chains.combine_documents import create_stuff_documents_chain
from langchain_core.messages import AIMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePassthrough

import fineflow
from fineflow.adaptation import Configuration
from fineflow.adaptation.langchain import most_confident, with_chunks
from fineflow.errors import PlanningError
from fineflow.testing import virtual

AS_DICT = {"num_chunks": 6, "synthesis": "stuff", "intermediate_length": 0}


def retrieval_chain(model: Model) -> Any:
    prompt = ChatPromptTemplate.from_template("Context:\n{context}\n\nQuestion: {input}")
    return create_retrieval_chain(Passages(), create_stuff_documents_chain(model.chat, prompt))


@pytest.mark.parametrize(
    ("configuration", "answer", "requests"),
    [
        (Configuration(3), "saw 3 passages and 0 notes", 1),
        (Configuration(5, "map_rerank"), "saw 1 passages and 0 notes", 5),
        (Configuration(4, "map_reduce", 20), "saw 0 passages and 80 notes", 5),
    ],
)
def test_knobs_change_what_the_model_reads(configuration: Configuration, answer: str, requests: int) -> None:
    chain, model = adaptive(Asked(SINGLE))
    fixed = chain.configured(configuration)
    assert fixed.invoke(QUESTION) == answer
    assert len(model.prompts) == requests
    assert asyncio.run(fixed.ainvoke(QUESTION)) == answer
    assert "".join(fixed.stream(QUESTION)) == answer


def test_stuff_is_the_users_own_chain() -> None:
    model = Model()
    chain = chain_of(model)  # with four chunks
    fixed = fineflow.adaptive(chain, profiler=Asked(SINGLE)).configured(Configuration(4))
    assert fixed.invoke(QUESTION) == chain.invoke(QUESTION)
    assert model.prompts[0] == model.prompts[1]


def test_summaries_and_answers_of_chunks_are_made_side_by_side() -> None:
    chain, _ = adaptive(Asked(SINGLE))
    one = virtual.run(chain.configured(Configuration(1, "map_rerank")).ainvoke(QUESTION)).seconds
    several = virtual.run(chain.configured(Configuration(8, "map_rerank")).ainvoke(QUESTION)).seconds
    assert several < 2 * one


@pytest.mark.parametrize("entry", ["invoke", "ainvoke", "stream", "astream", "batch", "abatch"])
def test_every_entry_answers_in_the_configuration_of_the_query(entry: str) -> None:
    chain, _ = adaptive(Asked(SEVERAL))

    async def pieces() -> list[str]:
        return [piece async for piece in chain.astream(QUESTION)]

    calls: dict[str, Any] = {
        "invoke": lambda: chain.invoke(QUESTION),
        "ainvoke": lambda: asyncio.run(chain.ainvoke(QUESTION)),
        "stream": lambda: "".join(chain.stream(QUESTION)),
        "astream": lambda: "".join(asyncio.run(pieces())),
        "batch": lambda: chain.batch([QUESTION])[0],
        "abatch": lambda: asyncio.run(chain.abatch([QUESTION]))[0],
    }
    assert calls[entry]() == "saw 6 passages and 0 notes"
    assert chain.last.configuration == Configuration(6)
    assert chain.last.seconds is not None


def test_streams_come_in_pieces() -> None:
    chain, _ = adaptive(Asked(SEVERAL))
    assert len(list(chain.stream(QUESTION))) > 3


def test_a_dict_of_the_chain_says_which_configuration_was_used() -> None:
    model = Model()
    chain = fineflow.adaptive(retrieval_chain(model), profiler=Asked(SEVERAL))
    found = chain.invoke({"input": QUESTION, "user": "u"})
    assert found["answer"] == "saw 6 passages and 0 notes"
    assert [document.metadata["i"] for document in found["context"]] == list(range(6))
    assert (found["input"], found["user"], found["configuration"]) == (QUESTION, "u", AS_DICT)
    merged: dict[str, Any] = {}
    for piece in chain.stream({"input": QUESTION}):
        for key, value in piece.items():
            merged[key] = merged[key] + value if key == "answer" and key in merged else value
    assert (merged["answer"], merged["configuration"]) == (found["answer"], AS_DICT)


def test_retrieval_qa_takes_a_text_or_a_dict() -> None:
    model = Model()
    qa = RetrievalQA.from_chain_type(model.chat, retriever=Passages(), return_source_documents=True)
    chain = fineflow.adaptive(qa, profiler=Asked(SEVERAL))
    for given in (QUESTION, {"query": QUESTION}):
        found = chain.invoke(given)
        assert found["result"] == "saw 6 passages and 0 notes"
        assert (found["query"], len(found["source_documents"]), found["configuration"]) == (QUESTION, 6, AS_DICT)
    assert "configuration" not in chain.configured(Configuration(2)).invoke(QUESTION)


def test_a_message_has_it_in_its_metadata_and_a_dict_of_the_user_stays() -> None:
    model = Model()
    steps = {"context": Passages() | joined, "question": RunnablePassthrough()} | PROMPT | model.chat
    message = fineflow.adaptive(steps, profiler=Asked(SEVERAL)).invoke(QUESTION)
    assert isinstance(message, AIMessage)
    assert message.response_metadata["configuration"] == AS_DICT
    parsed = steps | StrOutputParser() | RunnableLambda(lambda text: {"text": text})
    assert fineflow.adaptive(parsed, profiler=Asked(SEVERAL)).invoke(QUESTION) == {"text": "saw 6 passages and 0 notes"}


def test_variables_beside_the_context_reach_every_prompt() -> None:
    model = Model()
    prompt = ChatPromptTemplate.from_template("Answer in {language}.\n{context}\n\nQuestion: {question}")
    first: Runnable[Any, Any] = RunnablePassthrough.assign(context=(lambda x: x["question"]) | Passages() | joined)
    chain = fineflow.adaptive(first | prompt | model.chat | StrOutputParser(), profiler=Asked(SINGLE))
    chain.invoke({"question": QUESTION, "language": "Welsh"})
    assert len(model.prompts) == 3  # map_rerank
    assert all("Answer in Welsh." in prompt for prompt in model.prompts)


def test_last_is_that_of_the_context() -> None:
    chain, _ = adaptive(Asked(SINGLE))

    async def ask(question: str) -> str:
        await chain.ainvoke(question)
        await asyncio.sleep(0.01)
        return str(chain.last.question)

    async def both() -> list[str]:
        return list(await asyncio.gather(ask("One?"), ask("Two?")))

    assert virtual.run(both()).value == ["One?", "Two?"]


def test_one_search_serves_profile_and_answer() -> None:
    searches: list[int] = []
    chain, _ = adaptive(Asked(SEVERAL), searches=searches)
    chain.invoke(QUESTION)
    assert searches == [18]  # the largest range: three times six pieces


def test_runs_are_nested_and_named() -> None:
    chain, _ = adaptive(Asked(SEVERAL))

    async def events() -> list[Any]:
        return [event async for event in chain.astream_events(QUESTION)]

    found = asyncio.run(events())
    starts = [event for event in found if event["event"].endswith("_start")]
    assert starts[0]["name"] == "adaptive"
    assert all(starts[0]["run_id"] in event["parent_ids"] for event in starts[1:])
    models = [event for event in starts if event["event"] == "on_chat_model_start"]
    assert [event["metadata"]["fineflow_configuration"] for event in models] == ["stuff, 6 chunks"]


def test_objects_with_knobs_of_their_own() -> None:
    class Own:
        def configure(self, configuration: Configuration) -> Runnable[Any, Any]:
            return RunnableLambda(lambda given: f"{given['question']} {configuration}")

    chain = fineflow.adaptive(Own(), profiler=Asked(HARD), chunk_size=100, room=1200)
    answer = chain.invoke({"question": QUESTION})
    assert answer == f"{QUESTION} {chain.last.configuration}"
    assert chain.last.configuration.synthesis == "map_reduce"
    assert 600 < chain.last.need.at_once <= 1200
    with pytest.raises(ValueError, match="expected a question"):
        chain.invoke({"other": 1})


def test_what_it_cannot_configure_is_refused() -> None:
    model = Model()
    two = {"context": Passages() | joined, "more": Passages() | joined, "question": RunnablePassthrough()}
    for chain, why in (
        (PROMPT | model.chat, "its first step is ChatPromptTemplate"),
        (two | PROMPT | model.chat, "2 retrievers"),
        ({"context": Passages() | joined, "question": RunnablePassthrough()} | model.chat, "do not follow"),
    ):
        with pytest.raises(PlanningError, match=why):
            fineflow.adaptive(chain, profiler=Asked(SINGLE))
    with pytest.raises(TypeError, match="profiler is int"):
        fineflow.adaptive(chain_of(model), profiler=3)
    with pytest.raises(ValueError, match="deadline"):
        fineflow.adaptive(chain_of(model), profiler=Asked(SINGLE), deadline=0)


def test_the_number_of_chunks_of_retrievers() -> None:
    assert with_chunks(Passages(k=4), 9).k == 9  # type: ignore[attr-defined]


def test_an_answer_that_knows_nothing_comes_last() -> None:
    def answer(text: str, logprob: float) -> AIMessage:
        return AIMessage(text, response_metadata={"logprobs": {"content": [{"logprob": logprob}]}})

    sure, surer, nothing = answer("blue", -0.5), answer("red", -0.1), answer("I don't know.", 0.0)
    assert most_confident([sure, nothing, surer]) is surer
    assert most_confident(["unknown", "first", "second"]) == "first"
    assert most_confident([nothing]) is nothing
