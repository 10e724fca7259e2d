"""What code blocks of the documentation find defined: fakes of the chain, index, … that a page takes for granted."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_FENCE = re.compile(
    r"(?:^<!-- (?P<why>[^\n]+) -->\n)?^```(?P<language>\w+)[^\n]*\n(?P<code>.*?)^```", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page. why: the comment in front of it ("not run: …", "needs: …"), or ""."""

    page: Path
    line: int
    language: str
    code: str
    why: str

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks(page: Path, *languages: str) -> list[Block]:
    """Returns the blocks of a page in these languages, in its order."""
    text = page.read_text(encoding="utf-8")
    found = (
        Block(page, text.count("\n", 0, match.start("code")) + 1, match["language"], match["code"], match["why"] or "")
        for match in _FENCE.finditer(text)
    )
    return [block for block in found if block.language in languages]


APP = '''"""An app as the pages name it: my_app.chain, my_app.rag.chain, my_app.rag.engine."""
from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from fineflow.testing.langchain import FakeChat
from fineflow.testing.retrieval import FakeRetriever

def given(value):
    return value if isinstance(value, dict) else {"question": value}

ask = ChatPromptTemplate.from_template
retriever = FakeRetriever(documents=[Document("Helen Kormar founded the firm.")], latency=0.02)
classify = ask("Classify: {question}") | FakeChat(prefill=0.02) | StrOutputParser()
answer = ask("{category} {context} {question}") | FakeChat(prefill=0.02) | StrOutputParser()
chain = (
    RunnableLambda(given)
    | RunnablePassthrough.assign(category=classify)
    | RunnablePassthrough.assign(context=(lambda values: values["question"]) | retriever)
    | answer
)

def engine():
    from llama_index.core import VectorStoreIndex
    from llama_index.core.schema import TextNode
    from fineflow.testing.llamaindex.fakes import FakeEmbedding, FakeLLM

    nodes = [TextNode(text=f"text {n}", id_=str(n)) for n in range(4)]
    index = VectorStoreIndex(nodes, embed_model=FakeEmbedding())
    return index.as_query_engine(llm=FakeLLM(), response_mode="tree_summarize")
'''
PROGRAM = 'from my_app import chain\nprint(chain.invoke("Who founded the firm?"))\n'


def write_app(folder: Path) -> None:
    """Writes the app, and the programs that the pages run."""
    for package in ("my_app", "package"):
        (folder / package).mkdir()
    (folder / "my_app" / "rag.py").write_text(APP, encoding="utf-8")
    (folder / "my_app" / "__init__.py").write_text("from my_app.rag import *\n", encoding="utf-8")
    (folder / "app.py").write_text(PROGRAM, encoding="utf-8")
    (folder / "package" / "__init__.py").touch()
    (folder / "package" / "module.py").write_text(PROGRAM, encoding="utf-8")


def _chains() -> Iterator[tuple[str, Any]]:
    """Yields what pages about LangChain take for granted."""
    import my_app
    from langchain_core.documents import Document
    from langchain_core.output_parsers import StrOutputParser
    from langchain_core.prompts import ChatPromptTemplate
    from langchain_core.runnables import RunnableLambda, RunnablePassthrough

    import fineflow
    from fineflow.testing.langchain import FakeChat
    from fineflow.testing.retrieval import FakeEmbeddings, FakeReranker, FakeVectorStore

    yield from (("fineflow", fineflow), ("itemgetter", itemgetter), ("Document", Document))
    yield from (("RunnablePassthrough", RunnablePassthrough), ("StrOutputParser", StrOutputParser))
    yield from (("chain", my_app.chain), ("fast", fineflow.optimize(my_app.chain)), ("rag", my_app.chain))
    yield from ((name, getattr(my_app, name)) for name in ("classify", "retriever"))
    yield from (("question", "Who founded the firm?"), ("questions", ["Who?", "Where?"]), ("value", "Who?"))
    ask, chat = ChatPromptTemplate.from_template, FakeChat()
    grader = ask("Is {document} about {question}?") | FakeChat() | StrOutputParser()
    text = RunnableLambda(str) | ask("{text}") | chat | StrOutputParser()
    yield from (("answer", text), ("suggest", text), ("grader", grader), ("llm", chat), ("chat_model", chat))
    yield from (("rewrite_prompt", ask("{question}")), ("answer_prompt", ask("{context} {question}")))
    yield from (("prompt_and_so_on", ask("{question}")), ("embeddings", FakeEmbeddings()), ("store", FakeVectorStore()))
    yield from (("reranker", FakeReranker()), ("format_docs", lambda docs: "\n".join(d.page_content for d in docs)))
    yield "join", lambda docs: "\n".join(d.page_content for d in docs)
    yield "audit", lambda values: print("asked") or values
    yield "PyPDFLoader", lambda name: type("Loader", (), {"load": lambda self: [Document("Much has changed.")]})()


def _indexes() -> Iterator[tuple[str, Any]]:
    """Yields what pages about LlamaIndex take for granted, in addition."""
    from llama_index.core import VectorStoreIndex
    from llama_index.core.base.base_query_engine import BaseQueryEngine
    from llama_index.core.ingestion import IngestionPipeline
    from llama_index.core.llms import LLM
    from llama_index.core.node_parser import SentenceSplitter
    from llama_index.core.prompts import PromptTemplate
    from llama_index.core.query_engine import CustomQueryEngine
    from llama_index.core.schema import TextNode
    from llama_index.core.vector_stores import SimpleVectorStore

    from fineflow.testing.llamaindex.fakes import FakeEmbedding, FakeLLM

    nodes = [TextNode(text=f"Paris is the capital, text {n}", id_=str(n)) for n in range(4)]
    model, llm = FakeEmbedding(), FakeLLM()
    index = VectorStoreIndex(nodes, embed_model=model)
    kinds = (VectorStoreIndex, BaseQueryEngine, IngestionPipeline, LLM, CustomQueryEngine)
    yield from ((kind.__name__, kind) for kind in kinds)
    yield from (("index", _WithModel(index, llm)), ("nodes", nodes), ("embed_model", model), ("documents", []))
    yield from (("COMBINE", PromptTemplate("{answers}")), ("vector_store", SimpleVectorStore()), ("llm", llm))
    yield "splitter", SentenceSplitter()
    yield "engine", index.as_query_engine(llm=llm)
    yield "query_engine", index.as_query_engine(llm=llm)


class _WithModel:
    """An index whose engines use a fake model: pages rely on the one in LlamaIndex's settings."""

    def __init__(self, index: Any, llm: Any) -> None:
        self._index, self._llm = index, llm

    def as_query_engine(self, **given: Any) -> Any:
        return self._index.as_query_engine(**{"llm": self._llm, **given})

    def as_retriever(self, **given: Any) -> Any:
        return self._index.as_retriever(**given)


def _graph() -> Iterator[tuple[str, Any]]:
    """Yields a graph of LangGraph's, and one of its nodes."""
    from langgraph.graph import StateGraph

    yield from (("graph", StateGraph(dict)), ("grade_documents", lambda state: state))


def _web() -> Iterator[tuple[str, Any]]:
    """Yields parts of a web app, whose framework is not the point of the page."""
    import asyncio
    from contextlib import asynccontextmanager

    class Decorates:
        def get(self, path: str) -> Callable[[Any], Any]:
            return lambda function: function

    yield from (("app", Decorates()), ("Response", dict), ("asyncio", asyncio))
    yield "asynccontextmanager", asynccontextmanager


def _extending() -> Iterator[tuple[str, Any]]:
    """Yields the names of the modules that the excerpts of adding.md belong to."""
    import asyncio
    from collections.abc import Sequence

    from langchain_core.retrievers import BaseRetriever

    from fineflow.adapters import registry
    from fineflow.adapters.core import builder, recognition
    from fineflow.adapters.langchain.lowering.retrieval import retrievers
    from fineflow.adapters.llamaindex.lowering.retrieval import direct_retrievers
    from fineflow.backends import engine_threads
    from fineflow.ir import editor, spec

    for module in (spec, editor, builder, recognition, engine_threads, registry, direct_retrievers, retrievers):
        yield from vars(module).items()
    yield from (("asyncio", asyncio), ("Sequence", Sequence), ("BaseRetriever", BaseRetriever), ("Callable", Callable))


GIVEN: dict[str, tuple[Callable[[], Iterator[tuple[str, Any]]], ...]] = {
    "llamaindex.md": (_chains, _indexes),
    "engines.md": (_chains, _indexes),
    "testing.md": (_chains, _indexes),
    "watching.md": (_chains, _indexes),
    "faq.md": (_chains, _graph),
    "runtime.md": (_indexes, _chains, _web),
    "adding.md": (_chains, _extending),
}
"""What a page finds defined; any other finds ``_chains``."""


def given(page: Path) -> dict[str, Any]:
    """Returns the names that the blocks of a page find defined."""
    return {name: value for part in GIVEN.get(page.name, (_chains,)) for name, value in part()}
