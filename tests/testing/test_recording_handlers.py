from __future__ import annotations

import gc
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.messages import AIMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda, RunnableParallel, RunnablePassthrough

from fineflow.testing.langchain import FakeChat, FakeRetriever
from fineflow.testing.recording import AsyncRecordingHandler, RecordingHandler, run_tree
from fineflow.verification.canonical import canonical


def chain() -> Runnable[Any, Any]:
    retriever = FakeRetriever(documents=[Document(page_content="cats purr")])
    found = RunnableParallel(docs=retriever, length=RunnableLambda(len))
    prompt = ChatPromptTemplate.from_template("Use {docs}, {length}.")
    return found | prompt | FakeChat(default="They purr.") | StrOutputParser()


def test_the_tree_has_every_run_with_its_place() -> None:
    handler = RecordingHandler()
    chain().invoke("cats", {"callbacks": [handler], "tags": ["b", "a"], "metadata": {"user": 1, "revision_id": "x"}})
    (root,) = run_tree(handler)
    assert (root.run_type, root.name, root.tags) == ("chain", "RunnableSequence", ("a", "b"))
    assert root.metadata == {"user": 1}
    assert (root.inputs, root.outputs["value"], root.error) == ("cats", "They purr.", None)
    assert root.events == ["on_chain_start", "on_chain_end"]
    assert [(c.run_type, c.tags[-1]) for c in root.children] == [
        ("chain", "seq:step:1"),
        ("prompt", "seq:step:2"),
        ("chat_model", "seq:step:3"),
        ("parser", "seq:step:4"),
    ]
    assert sorted(c.tags[-1] for c in root.children[0].children) == ["map:key:docs", "map:key:length"]
    model = root.children[2]
    assert model.name == "FakeChat"
    assert model.events == ["on_chat_model_start", "on_llm_end"]


async def test_two_runs_of_equal_chains_have_equal_trees() -> None:
    trees = []
    for handler in (RecordingHandler(), AsyncRecordingHandler(), RecordingHandler()):
        await chain().ainvoke("cats", {"callbacks": [handler]})
        trees.append(run_tree(handler))
    assert trees[0] == trees[1] == trees[2]


async def test_tokens_are_seen_only_when_streaming() -> None:
    handler = AsyncRecordingHandler()
    assert [c async for c in chain().astream("cats", {"callbacks": [handler]})] == ["They ", "purr."]
    (root,) = run_tree(handler)
    assert root.children[2].tokens == ["They ", "purr."]
    assert root.children[2].events.count("on_llm_new_token") == 2
    assert root.inputs == "cats"
    handler.clear()
    await chain().ainvoke("cats", {"callbacks": [handler]})
    assert "on_llm_new_token" not in [event.name for event in handler.events]


class Collecting:
    """A value whose text takes so much memory that Python collects what has been abandoned."""

    def __repr__(self) -> str:
        gc.collect()
        return "collecting"


def test_an_abandoned_stream_may_be_collected_while_an_event_is_written_down() -> None:
    handler = RecordingHandler()

    def several(_: Any) -> Iterator[int]:
        yield from (1, 2)

    stream = (RunnableLambda(several) | RunnablePassthrough()).stream("x", {"callbacks": [handler]})
    assert next(stream) == 1
    cycle: list[Any] = [stream]
    cycle.append(cycle)
    del stream, cycle
    writing = threading.Thread(
        target=handler.on_text, args=(Collecting(),), kwargs={"run_id": uuid.uuid4()}, daemon=True
    )
    writing.start()
    writing.join(10.0)
    assert not writing.is_alive()
    assert [event.name for event in handler.events][-4:] == ["on_chain_end"] * 3 + ["on_text"]


def test_an_error_is_type_and_message() -> None:
    handler = RecordingHandler()
    with pytest.raises(KeyError):
        (RunnableLambda(lambda x: x) | RunnableLambda(lambda x: {}[x])).invoke("k", {"callbacks": [handler]})
    (root,) = run_tree(handler)
    assert root.error == root.children[1].error == {"type": "KeyError", "message": "'k'"}
    assert root.children[0].error is None


def test_the_order_of_concurrent_siblings_does_not_show() -> None:
    """A parallel step runs its branches in any order; a sequence does not."""
    trees = []
    for keys in ("ab", "ba"):
        handler = RecordingHandler()
        branches = {key: RunnableLambda(str.upper if key == "a" else str.lower) for key in keys}
        RunnableParallel(branches).invoke("x", {"callbacks": [handler], "run_name": "both"})
        trees.append([(c.tags, c.outputs) for c in run_tree(handler)[0].children])
    assert trees[0] == trees[1]
    assert sorted(trees[0]) == [(("map:key:a",), "X"), (("map:key:b",), "x")]


def test_canonical_forms_hide_what_differs_from_run_to_run() -> None:
    one, other = (AIMessage("x", id=f"lc_run--{uuid.uuid4()}") for _ in range(2))
    assert one != other
    assert canonical([one, uuid.uuid4(), {1: object()}]) == canonical([other, uuid.uuid4(), {1: object()}])
    assert canonical(one)["id"] == "lc_run--<id>"
    assert canonical(AIMessage("x", id="mine"))["id"] == "mine"


@pytest.mark.parametrize(
    ("one", "other"), [(1, "1"), ([1], (1,)), ({"a": 1}, {"a": 2}), (ValueError("a"), KeyError("a")), (b"a", "a")]
)
def test_canonical_forms_keep_what_matters(one: Any, other: Any) -> None:
    assert canonical(one) != canonical(other)


def test_canonical_forms_are_of_the_moment() -> None:
    value = {"a": [1]}
    form = canonical(value)
    value["a"].append(2)
    assert form == {"a": [1]}
    assert canonical({2, 1}) == canonical({1, 2})


class OtherChat(FakeChat):
    """The same answers from another class."""


@pytest.mark.parametrize("name", ["", "mine"])
def test_a_run_of_a_model_has_the_name_of_its_class_unless_it_was_given_one(name: str) -> None:
    names = []
    for kind in (FakeChat, OtherChat):
        handler = RecordingHandler()
        kind(default="so").invoke("?", {"callbacks": [handler], **({"run_name": name} if name else {})})
        names.append(run_tree(handler)[0].name)
    assert names == ([name, name] if name else ["FakeChat", "OtherChat"])
