"""``fineflow check``: what it compares, what it says, and what it refuses."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("llama_index.core")

import fineflow
from fineflow import checking, cli

APP = """
    import itertools
    from langchain_core.messages import AIMessage
    from langchain_core.runnables import RunnableLambda, RunnablePassthrough
    from llama_index.core import VectorStoreIndex
    from llama_index.core.chat_engine import ContextChatEngine
    from llama_index.core.response_synthesizers import get_response_synthesizer
    from llama_index.core.schema import TextNode
    from fineflow.testing.llamaindex.fakes import FakeEmbedding, FakeLLM

    nodes = [TextNode(id_=str(i), text=f"text {i} of bridges") for i in range(4)]
    index = VectorStoreIndex(nodes, embed_model=FakeEmbedding())
    calls = itertools.count()

    def engine(**settings):
        return index.as_query_engine(llm=FakeLLM(**settings), response_mode="accumulate", similarity_top_k=3)

    class Holder:
        engine = engine()

    failing = engine(answers={"": ValueError("no")})
    sampling = engine(answers=lambda prompt: f"answer {next(calls)}")
    retriever = index.as_retriever()
    synthesizer = get_response_synthesizer(llm=FakeLLM())
    chat = ContextChatEngine.from_defaults(retriever=retriever, llm=FakeLLM())
    chain = RunnablePassthrough.assign(size=lambda x: len(x["q"])) | (lambda x: x["size"])
    number = 5

    def of_provider(text):
        def answer(_):
            about = {"id": f"chatcmpl-{next(calls)}", "queue_time": next(calls) / 7, "model": "m"}
            return {"said": AIMessage(text, response_metadata=about)}

        return RunnableLambda(answer)

    provider, other = of_provider("salt"), of_provider("fish")

    def sizes(first, second="x"):
        return chain.invoke({"q": first}) + chain.invoke({"q": second})

    async def asizes(first):
        yield await chain.ainvoke({"q": first})
        yield await chain.ainvoke({"q": first * 2})
"""


@pytest.fixture(autouse=True)
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "checked_app.py").write_text(textwrap.dedent(APP))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("checked_app", None)


def check(name: str, *args: str) -> int:
    return cli.main(["check", f"checked_app:{name}", *args])


@pytest.mark.parametrize(
    ("name", "entries"),
    [
        ("engine", ["query", "aquery", "retrieve", "aretrieve"]),
        ("Holder.engine", ["query", "aquery", "retrieve", "aretrieve"]),
        ("retriever", ["retrieve", "aretrieve"]),
        ("chat", ["chat", "achat", "stream_chat", "astream_chat"]),
    ],
)
def test_equal_by_every_entry_point(name: str, entries: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert check(name, "--input", "where is text 2") == 0
    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.splitlines() if " ms " in line] == entries
    assert out.count(" equal ") == len(entries)
    assert "not compared" not in out
    assert f"{len(entries)} calls, all equal" in out


def test_runnables_take_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert check("chain", "--input", '{"q": "abc"}', "--entry", "invoke", "--entry", "abatch") == 0
    out = capsys.readouterr().out
    assert "invoke           equal" in out and "abatch           equal" in out
    assert "2 calls, all equal" in out


@pytest.mark.parametrize(
    ("name", "given"), [("sizes", "abc"), ("sizes", '{"first": "abc", "second": "de"}'), ("asizes", "a")]
)
def test_functions_that_need_arguments_are_called(name: str, given: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(name, "--input", given) == 0
    out = capsys.readouterr().out
    assert "__call__         equal" in out and "1 call, all equal" in out


def spoil(monkeypatch: pytest.MonkeyPatch, optimize: Any) -> None:
    monkeypatch.setattr(fineflow, "optimize", optimize)


def test_a_difference_is_printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    sys.path.insert(0, str(Path.cwd()))
    import checked_app  # type: ignore[import-not-found]

    spoil(monkeypatch, lambda obj, strict: checked_app.engine(default="other"))
    assert check("engine", "--input", "where", "--entry", "query") == 1
    out = capsys.readouterr().out
    assert "query            DIFFERENT" in out
    assert "text differs" in out
    assert '-"Response 1: ok' in out and '+"Response 1: other' in out
    assert "1 call compared, 1 different" in out


def test_planning_that_fails_is_a_difference(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(obj: Any, strict: bool) -> Any:
        raise fineflow.PlanningError("no plan")

    spoil(monkeypatch, fail)
    assert check("engine", "--input", "where", "--entry", "query") == 1
    assert "PlanningError: no plan" in capsys.readouterr().out


def test_what_stock_says_differently_each_time_is_not_compared(capsys: pytest.CaptureFixture[str]) -> None:
    assert check("sampling", "--input", "where", "--entry", "query") == 0
    out = " ".join(capsys.readouterr().out.split())  # lines are as long as what differs
    assert re.search(r"two calls of stock differ in .*\btext\b.*: not compared", out)
    assert re.search(r"1 call, all equal but for what two calls of stock differ in: .*\btext\b", out)
    assert "have models answer alike" in out


def test_ids_and_times_of_a_provider_are_left_out_and_the_rest_is_compared(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check("provider", "--input", "where", "--entry", "invoke") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "two calls of stock differ in id, queue_time: not compared" in out
    assert "1 call, all equal but for what two calls of stock differ in: id, queue_time" in out
    assert "have models answer alike" not in out
    import checked_app

    spoil(monkeypatch, lambda obj, strict: checked_app.other)
    assert check("provider", "--input", "where", "--entry", "invoke") == 1
    out = capsys.readouterr().out
    assert "value differs" in out and "runs differs" in out
    assert '"fish"' in out and "chatcmpl" not in out


def test_an_exception_is_an_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert check("failing", "--input", "where", "--entry", "query") == 0
    out = capsys.readouterr().out
    assert "query            raises alike" in out and "ValueError" in out


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nothing", "has no attribute 'nothing'"),
        ("number", "is of class int; expected a LangChain Runnable"),
        ("synthesizer", "expected a LangChain Runnable"),
        ("VectorStoreIndex", "is the class VectorStoreIndex; expected a LangChain Runnable"),
        ("VectorStoreIndex", "to check document ingestion, use fineflow.testing.llamaindex.ingestion_differential"),
        ("index", "to check document ingestion, use fineflow.testing.llamaindex.ingestion_differential"),
    ],
)
def test_what_cannot_be_checked_is_refused(name: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(name, "--input", "where") == 2
    assert said in capsys.readouterr().err
    assert cli.main(["check", "checked_app", "--input", "x"]) == 2
    assert "is not like module:name" in capsys.readouterr().err
    assert cli.main(["check", "no_such_app.rag:engine", "--input", "x"]) == 2
    assert f"there is no module 'no_such_app' in {Path.cwd()}" in capsys.readouterr().err
    assert check("engine", "--input", "x", "--entry", "chat") == 2
    assert "--entry chat: expected one of query, aquery" in capsys.readouterr().err
    assert check("chain", "--input", "{x") == 2
    assert "looks like JSON" in capsys.readouterr().err


def test_the_handlers_of_a_check_are_taken_off_again() -> None:
    target = checking.find("checked_app:retriever")
    retriever = target.make()
    before = len(retriever.callback_manager.handlers)
    seen = target.see(lambda obj: obj, "retrieve", "where")
    assert seen.callbacks[1:], "the user's own callback managers were listened to"
    assert len(retriever.callback_manager.handlers) == before
