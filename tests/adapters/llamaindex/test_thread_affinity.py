"""Which objects may run in threads in async calls: those all of whose code is known, wherever it is in them."""

from __future__ import annotations

import asyncio
import functools
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import pytest

pytest.importorskip("llama_index.core")

from index_shapes import QUESTION, answer, index
from llama_index.core import KeywordTableIndex, StorageContext, SummaryIndex
from llama_index.core.indices.query.query_transform import HyDEQueryTransform
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.postprocessor import LLMRerank
from llama_index.core.prompts import PromptTemplate
from llama_index.core.query_engine import RetrieverQueryEngine, TransformQueryEngine
from llama_index.core.retrievers import BaseRetriever, TransformRetriever
from llama_index.core.schema import Document, NodeWithScore, QueryBundle, TextNode, TransformComponent
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.core.storage.docstore.keyval_docstore import KVDocumentStore
from llama_index.core.storage.kvstore import SimpleKVStore
from llama_index.core.utils import get_tokenizer

import fineflow
from fineflow.adapters.core.snapshot import MOST
from fineflow.adapters.llamaindex.thread_affinity import may_leave, undeclared_code
from fineflow.testing.llamaindex.differential import assert_same_index
from fineflow.testing.llamaindex.fakes import FakeEmbedding, FakeLLM


def own(text: str) -> list[str]:
    return text.split()


@functools.wraps(get_tokenizer)
def disguised(text: str) -> list[str]:
    return text.split()


@fineflow.pure
def declared(text: str) -> list[str]:
    return text.split()


class Own:
    def run(self, text: str) -> list[str]:
        return text.split()


def holding(part: Any) -> Any:
    """Returns an object of LlamaIndex's that holds something."""
    made = TransformRetriever.__new__(TransformRetriever)
    vars(made)["part"] = part
    return made


PLACES: dict[str, Callable[[Any], Any]] = {
    "attribute": lambda part: part,
    "list in a list": lambda part: [[part]],
    "list in a dict": lambda part: {"a": [part]},
    "tuple": lambda part: (1, part),
    "set": lambda part: {part},
    "ordered": lambda part: OrderedDict(a=part),
    "default": lambda part: defaultdict(list, a=[part]),
    "deque": lambda part: deque([part]),
    "argument of a partial": lambda part: functools.partial(max, part),
    "far down": lambda part: functools.reduce(lambda held, _: holding(held), range(30), part),
    "tokenizer": lambda part: SentenceSplitter(tokenizer=part),
    "mapping of a prompt": lambda part: PromptTemplate("{a}", function_mappings={"a": part}),
    "format of a reranker": lambda part: LLMRerank(llm=FakeLLM(), format_node_batch_fn=part),
    "model of a transform": lambda part: HyDEQueryTransform(llm=FakeLLM(completion_to_prompt=part)),
}
UNKNOWN = {"function": own, "wraps": disguised, "lambda": lambda text: [text], "bound": Own().run}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("unknown", UNKNOWN)
def test_undeclared_code_keeps_an_object_on_the_event_loop_wherever_it_is(place: str, unknown: str) -> None:
    obj = holding(PLACES[place](UNKNOWN[unknown]))
    assert not may_leave(obj, False)
    assert may_leave(obj, True)
    assert may_leave(holding(PLACES[place](declared)), False)


def test_says_what_is_not_declared() -> None:
    assert {*undeclared_code(holding([own, Own()]))} == {own, Own}


class Size(Enum):
    BIG = 1


@dataclass
class Config:
    size: Size = Size.BIG


class Pair(NamedTuple):
    left: int = 1


class Table(dict[str, Any]):
    __getattr__ = dict.__getitem__


class Connects:
    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"asked for {name}")


@fineflow.external
class Known(BaseRetriever):
    """A class that is declared: so is what it holds."""

    def __init__(self, part: Any) -> None:
        super().__init__()
        self.part = part

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return [NodeWithScore(node=TextNode(text="one", id_="1"), score=1.0)]


DATA = [Config, lambda: Size.BIG, Pair, Table, lambda: [TextNode(text="x")], lambda: [own] * (MOST + 1)]


@pytest.mark.parametrize("make", DATA)
def test_data_does_not(make: Callable[[], Any]) -> None:
    assert may_leave(holding(make()), False)


class Renamed(TransformRetriever):
    """A class of the user's without code."""


def test_a_class_without_code_is_looked_into() -> None:
    made = Renamed.__new__(Renamed)
    vars(made)["part"] = 1
    assert may_leave(made, False)
    vars(made)["part"] = own
    assert not may_leave(made, False)


@pytest.mark.parametrize("make", [lambda: own, Own, Connects, lambda: [[own]]])
def test_what_a_declared_object_holds_is_declared(make: Callable[[], Any]) -> None:
    assert may_leave(Known(make()), False)


def test_looks_at_no_attribute_by_code_of_the_users() -> None:
    assert not may_leave(holding(Connects()), False)


class Mine(TransformComponent):
    def __call__(self, nodes: Any, **kwargs: Any) -> Any:
        return nodes


def test_what_an_index_does_with_new_nodes_only_does_not_count() -> None:
    nodes = [TextNode(text="the bridge", id_="1")]
    summary = SummaryIndex(nodes, transformations=[Mine()])
    keywords = KeywordTableIndex(nodes, llm=FakeLLM(default="KEYWORDS: bridge"), transformations=[Mine()])
    assert may_leave(summary.as_retriever(), False)
    assert may_leave(keywords.as_retriever(retriever_mode="simple"), False)


class OfOneThread(SimpleKVStore):
    """A store that may be used by the thread that made it, as connections of SQLite's."""

    def __init__(self) -> None:
        super().__init__()
        self.loops: list[bool] = []

    def get(self, key: str, collection: str = "data") -> Any:
        self.loops.append(asyncio._get_running_loop() is not None)
        return super().get(key, collection)


def test_a_store_of_the_users_in_a_store_of_a_package_stays() -> None:
    store = OfOneThread()
    context = StorageContext.from_defaults(docstore=KVDocumentStore(store))
    made = SummaryIndex([TextNode(text="the bridge", id_="1")], storage_context=context)
    store.loops.clear()
    found = asyncio.run(fineflow.optimize(made.as_retriever(), strict=True).aretrieve(QUESTION))
    assert [each.text for each in found] == ["the bridge"]
    assert store.loops and all(store.loops)
    plain = SummaryIndex([TextNode(text="the bridge", id_="1")], docstore=SimpleDocumentStore())
    assert may_leave(plain.as_retriever(), False)


class Loud(Document):
    """Nodes of the user's, which notice where they are read."""

    def get_content(self, *args: Any, **kwargs: Any) -> str:
        asked.append(asyncio._get_running_loop() is not None)
        return super().get_content(*args, **kwargs)


asked: list[bool] = []


def test_nodes_of_the_users_are_read_as_often_and_where_stock_reads_them() -> None:
    def read(*, optimized: bool) -> list[bool]:
        made: Any = index(FakeEmbedding())
        made = fineflow.optimize(made, strict=True) if optimized else made
        asked.clear()
        asyncio.run(made.ainsert_nodes([Loud(text="a bridge", id_="own")]))
        return asked.copy()

    assert read(optimized=True) == read(optimized=False) != []


def test_a_formatting_function_with_the_name_of_a_packages_is_called_as_often_as_in_stock() -> None:
    from llama_index.core.indices.utils import default_format_node_batch_fn

    calls: list[int] = []

    @functools.wraps(default_format_node_batch_fn)
    def formatted(nodes: Any) -> str:
        calls.append(len(nodes))
        return default_format_node_batch_fn(nodes)

    def asks(*, optimized: bool) -> list[int]:
        llm = FakeLLM(default="Doc: 1, Relevance: 7")
        reranker = LLMRerank(llm=llm, format_node_batch_fn=formatted)
        made: Any = index().as_query_engine(llm=FakeLLM(answers=answer), node_postprocessors=[reranker])
        made = fineflow.optimize(made, strict=True) if optimized else made
        calls.clear()
        made.query(QUESTION)
        return calls.copy()

    assert asks(optimized=True) == asks(optimized=False) != []


def test_a_transform_with_a_model_of_the_users_answers_as_stock() -> None:
    def make(manager: Any) -> Any:
        llm = FakeLLM(answers=answer, callback_manager=manager, completion_to_prompt=lambda text: text)
        return TransformQueryEngine(
            RetrieverQueryEngine.from_args(Known(1), llm=llm), HyDEQueryTransform(llm=llm), callback_manager=manager
        )

    assert_same_index(make, QUESTION, entries=("query", "aquery"))
