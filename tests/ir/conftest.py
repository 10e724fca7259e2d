"""Graphs that the tests of the intermediate representation share: one LangChain RAG app, as written and rewritten."""

from __future__ import annotations

from itertools import pairwise

import pytest

from fineflow.ir import Effect, Effects, Graph, Note, Op, Primitive, Ref
from fineflow.ir.spec import bodies, longest_paths

LLM = Effects(Effect.EXTERNAL, reason="a remote chat model")
STORE = Effects(Effect.READ, "chroma", "searching does not change the store")


def _llm(path: str, prompt: dict[str, Ref], *, record: bool = False) -> list[Primitive]:
    return [
        Primitive(f"{path}/prompt.render", Op.RENDER, prompt, {"template": "chat"}),
        Primitive(f"{path}/llm.prefill", Op.PREFILL, {"prompt": Ref(f"{path}/prompt.render")}, engine="llm"),
        Primitive(
            f"{path}/llm.decode",
            Op.DECODE,
            {"cache": Ref(f"{path}/llm.prefill")},
            {"max_tokens": 256},
            LLM,
            engine="llm",
        ),
        Primitive(f"{path}/parser.parse", Op.PARSE, {"text": Ref(f"{path}/llm.decode")}),
    ]


def _search_body() -> Graph:
    return Graph(
        (
            Primitive("documents/search.embed", Op.EMBED, {"text": Ref("item")}, engine="minilm"),
            Primitive(
                "documents/search.search",
                Op.SEARCH,
                {"query": Ref("item"), "vector": Ref("documents/search.embed")},
                {"k": 4},
                STORE,
                engine="chroma",
            ),
        ),
        Ref("documents/search.search"),
        ("item",),
    )


def _documents(decode: Op) -> list[Primitive]:
    stream = decode is Op.PARTIAL_DECODE
    lines = f"documents/queries/llm.{decode}"
    return [
        Primitive("documents/pick", Op.PICK, {"record": Ref("input", "question")}),
        Primitive("documents/queries/prompt.render", Op.RENDER, {"question": Ref("documents/pick")}),
        Primitive(
            "documents/queries/llm.prefill",
            Op.PREFILL,
            {"prompt": Ref("documents/queries/prompt.render")},
            engine="llm",
        ),
        Primitive(
            lines,
            decode,
            {"cache": Ref("documents/queries/llm.prefill")},
            {"pieces": "lines"} if stream else {},
            LLM,
            engine="llm",
        ),
        Primitive("documents/queries/lines.parse", Op.PARSE, {"text": Ref(lines, stream=stream)}),
        Primitive(
            "documents/search",
            Op.MAP,
            {"items": Ref("documents/queries/lines.parse", stream=stream)},
            body=_search_body(),
        ),
        Primitive("documents/unique", Op.AGGREGATE, {"documents": Ref("documents/search")}, {"unique": True}),
        Primitive(
            "documents/rerank",
            Op.RERANK,
            {"query": Ref("documents/pick"), "documents": Ref("documents/unique")},
            {"top_n": 3},
            engine="reranker",
        ),
    ]


def _record(path: str = "record") -> Primitive:
    keys = {"category": "category/parser.parse", "documents": "documents/rerank"}
    keys |= {"answer": "answer/parser.parse", "related": "related/parser.parse"}
    return Primitive(path, Op.RECORD, {key: Ref(name) for key, name in keys.items()})


def rag_as_written() -> Graph:
    """The app in program order: every primitive waits for the one before."""
    question = {"question": Ref("input", "question")}
    primitives = [
        *_llm("category", question),
        *_documents(Op.DECODE),
        *_llm("answer", {"context": Ref("documents/rerank"), **question}),
        *_llm("related", question),
        _record(),
    ]
    chained = [p.with_(after=(before.name,)) for before, p in pairwise(primitives)]
    return Graph((primitives[0], *chained), Ref("record"))


def rag_rewritten() -> Graph:
    """The same app after the passes, bound."""
    question = {"question": Ref("input", "question")}
    answer = _llm("answer", {"context": Ref("documents/rerank"), **question})
    partial = Primitive("answer/llm.partial_prefill", Op.PARTIAL_PREFILL, {}, {"tokens": 212}, engine="llm")
    answer[1] = answer[1].with_(args={**answer[1].args, "cache": Ref(partial.name)})
    graph = Graph(
        (
            *_llm("category", question),
            *_documents(Op.PARTIAL_DECODE),
            answer[0],
            partial,
            *answer[1:],
            *_llm("related", question),
            _record(),
        ),
        Ref("record"),
    )
    return bound(graph).noted(
        Note(
            "prune", "documents/queries/llm.prefill", True, "reads only the question, so it need not wait for category"
        ),
        Note("decode", "documents/queries/llm.partial_decode", True, "each line is searched as soon as it is complete"),
        Note("prefill", "related/llm.prefill", False, "its prompt is known at once: nothing to split"),
    )


def bound(graph: Graph) -> Graph:
    depth = longest_paths(graph)
    return graph.with_primitives(p.with_(depth=depth[p.name], body=bound(p.body) if bodies(p) else None) for p in graph)


@pytest.fixture
def as_written() -> Graph:
    return rag_as_written()


@pytest.fixture
def rewritten() -> Graph:
    return rag_rewritten()
