from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from langchain_core.callbacks import Callbacks
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.exceptions import OutputParserException
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.runnables import Runnable
from langchain_core.vectorstores import InMemoryVectorStore
from pydantic import Field

from fineflow.demo import app

QUESTION = {"question": "Who planned Dunwen Tower?"}
ANSWERS = ['{"complexity": "low"}', "Dunwen Tower architect\nTower Dunwen", "Helen", '["Who designed it?"]']


class FirstOnly(BaseDocumentCompressor):
    """Keeps one document, and remembers what it was given."""

    seen: list[tuple[str, list[str]]] = Field(default_factory=list)

    def compress_documents(self, documents: Any, query: str, callbacks: Callbacks | None = None) -> list[Document]:
        self.seen.append((query, [document.page_content for document in documents]))
        return list(documents)[:1]


def build(answers: list[str], top_k: int = 1) -> tuple[Runnable[Any, Any], FirstOnly]:
    store = InMemoryVectorStore(DeterministicFakeEmbedding(size=16))
    store.add_texts([f"passage {number}" for number in range(8)], [{"source": f"{n}.txt"} for n in range(8)])
    llm = GenericFakeChatModel(messages=iter(AIMessage(content=answer) for answer in answers))
    reranker = FirstOnly()
    return app.build(llm, store, reranker, top_k=top_k), reranker


def test_the_steps_run_in_program_order_and_fill_the_record() -> None:
    chain, reranker = build(ANSWERS)
    result = chain.invoke(QUESTION)
    assert list(result) == ["question", "category", "documents", "answer", "related"]
    assert result["category"] == {"complexity": "low"}
    assert result["answer"] == "Helen"
    assert result["related"] == ["Who designed it?"]
    [(query, found)] = reranker.seen
    assert query == QUESTION["question"]
    assert [document.page_content for document in result["documents"]] == found[:1]
    assert 1 <= len(found) == len(set(found)) <= 3  # two generated queries and the original one, one passage each


async def test_ainvoke_gives_the_same() -> None:
    expected = build(ANSWERS)[0].invoke(QUESTION)
    found = await build(ANSWERS)[0].ainvoke(QUESTION)
    # The stores of the two chains gave their documents different ids.
    assert [d.page_content for d in found.pop("documents")] == [d.page_content for d in expected.pop("documents")]
    assert found == expected


def test_an_answer_that_is_not_json_raises_as_the_stock_parser_does() -> None:
    with pytest.raises(OutputParserException):
        build(["low, I should say", *ANSWERS[1:]])[0].invoke(QUESTION)


def test_documents_are_text_files_below_the_folder(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "b.txt").write_text("second")
    (tmp_path / "a.MD").write_text("first")
    (tmp_path / "deep" / "c.markdown").write_bytes(b"third \xff")
    (tmp_path / "blank.txt").write_text(" \n")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    (tmp_path / "folder.txt").mkdir()
    found = {document.metadata["source"]: document.page_content for document in app.load_documents(tmp_path)}
    assert found == {"a.MD": "first", "b.txt": "second", "deep/c.markdown": "third \ufffd"}


def test_indexing_finds_every_passage_and_reports_each_batch() -> None:
    passages = app.split_documents([Document("\n\n".join(f"{n} " + "word " * 50 for n in range(7)))])
    steps: list[int] = []

    def progress(starts: Any) -> Any:
        for start in starts:
            steps.append(start)
            yield start

    store = app.index(passages, DeterministicFakeEmbedding(size=16), progress, batch_size=3)
    assert steps == [0, 3, 6]
    assert sorted(d.page_content for d in store.similarity_search("x", k=10)) == sorted(
        p.page_content for p in passages
    )


def test_two_indexes_are_separate() -> None:
    embedding = DeterministicFakeEmbedding(size=16)
    first = app.index([Document("one")], embedding)
    second = app.index([Document("two")], embedding)
    assert [d.page_content for d in first.similarity_search("x")] == ["one"]
    assert [d.page_content for d in second.similarity_search("x")] == ["two"]


def test_the_app_runs_without_fineflow() -> None:
    source = Path(app.__file__).read_text(encoding="utf-8")
    code = "import sys; sys.modules['fineflow'] = None; exec(sys.stdin.read(), {'__name__': 'app'})"
    done = subprocess.run([sys.executable, "-c", code], input=source, text=True, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
