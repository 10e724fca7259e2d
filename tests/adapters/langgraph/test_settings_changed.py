"""Another branch changes what a component is set to, after its call began ahead and before stock makes it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from functools import cached_property, partial
from typing import Any, TypedDict

import pytest
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda, RunnableParallel
from langchain_core.vectorstores import InMemoryVectorStore
from langgraph.graph import END, START, StateGraph
from llama_index.core import VectorStoreIndex
from llama_index.core.schema import TextNode
from llama_index.core.vector_stores import MetadataFilter, MetadataFilters
from pydantic import ConfigDict, Field, PrivateAttr

import fineflow
from fineflow.adapters.inner_calls.component_settings import settings
from fineflow.testing import virtual
from fineflow.testing.gates import Gate
from fineflow.testing.langchain import FakeChat, FakeEmbeddings
from fineflow.testing.llamaindex.fakes import FakeEmbedding, FakeLLM

TEXTS = ["tower", "bridge", "castle", "harbour"]
Change = Callable[[Any], Any]


def embeddings() -> FakeEmbeddings:
    return FakeEmbeddings(latency=0.2)


def retriever() -> Any:
    return InMemoryVectorStore.from_texts(TEXTS, embeddings()).as_retriever(search_kwargs={"k": 3})


def fewer(found: Any) -> None:
    found.search_kwargs = {"k": 1}


def fewer_in_place(found: Any) -> None:
    found.search_kwargs["k"] = 1


def all_of_them(found: Any) -> None:
    found.search_type = "mmr"


def elsewhere(found: Any) -> None:
    found.vectorstore = InMemoryVectorStore.from_texts(["lighthouse"], embeddings())


def model() -> FakeChat:
    return FakeChat(answers={"human": "one two"}, step=0.1)


def other_answer(found: Any) -> None:
    found.answers = {"human": "three"}


def other_answer_in_place(found: Any) -> None:
    found.answers["human"] = "three"


@fineflow.external
class Deep(BaseRetriever):
    """Has settings in settings."""

    settings: dict[str, dict[str, int]] = Field(default_factory=lambda: {"search": {"k": 3}})

    def narrow_to(self, k: int) -> None:
        self.settings = {"search": {"k": k}}

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        raise NotImplementedError

    async def _aget_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        await asyncio.sleep(0.2)
        return [Document(query)] * self.settings["search"]["k"]


def deep_in_place(found: Any) -> None:
    found.settings["search"]["k"] = 1


def by_a_method(found: Any) -> None:
    found.narrow_to(1)


def primary() -> Any:
    return model().with_fallbacks([FakeChat()])


def other_primary(found: Any) -> None:
    found.runnable = FakeChat(answers={"human": "three"}, step=0.1)


CHANGES: dict[str, tuple[Callable[[], Any], Change]] = {
    "replaced": (retriever, fewer),
    "in place": (retriever, fewer_in_place),
    "text": (retriever, all_of_them),
    "store": (retriever, elsewhere),
    "model": (model, other_answer),
    "model in place": (model, other_answer_in_place),
    "deep in place": (Deep, deep_in_place),
    "method": (Deep, by_a_method),
}


def slow() -> Any:
    return ChatPromptTemplate.from_template("{question}") | FakeChat(prefill=0.5) | StrOutputParser()


def changing(component: Any, change: Change) -> Callable[[Any], Any]:
    async def changes(value: Any) -> Any:
        await asyncio.sleep(0.3)
        change(component)
        return {}

    return changes


def in_function(component: Any, change: Change) -> Any:
    first = slow()

    async def calls(value: dict[str, str]) -> Any:
        await first.ainvoke(value)
        return await component.ainvoke(value["question"])

    return RunnableParallel(found=RunnableLambda(calls), said=RunnableLambda(changing(component, change)))


def in_chain(component: Any, change: Change) -> Any:
    both = RunnableParallel(said=slow(), question=RunnableLambda(lambda value: value["question"]))
    found = both | RunnableLambda(lambda value: value["question"]) | component
    return RunnableParallel(found=found, said=RunnableLambda(changing(component, change)))


class State(TypedDict, total=False):
    question: str
    found: Any


def in_node(component: Any, change: Change) -> Any:
    first = slow()

    async def calls(state: State) -> State:
        await first.ainvoke({"question": state["question"]})
        return {"found": await component.ainvoke(state["question"])}

    graph = StateGraph(State)
    graph.add_node("calls", calls)
    graph.add_node("changes", changing(component, change))
    for node in ("calls", "changes"):
        graph.add_edge(START, node)
        graph.add_edge(node, END)
    return graph.compile()


def same(run: Callable[[Callable[[Any], Any], Change], Awaitable[Any]], change: Change) -> None:
    """run: makes an app, optimizes it, and calls it while its component changes."""
    for change_it in (change, lambda component: None):
        stock = virtual.run(run(lambda app: app, change_it))
        ahead = virtual.run(run(partial(fineflow.optimize, strict=True), change_it))
        assert found(ahead.value) == found(stock.value)
    assert ahead.seconds < stock.seconds  # where nothing changes, the call went ahead


def found(value: Any) -> Any:
    """What the component has answered."""
    return [getattr(each, "page_content", each) for each in value] if isinstance(value, list) else value.content


@pytest.mark.parametrize("changed", CHANGES)
@pytest.mark.parametrize("app", [in_function, in_chain, in_node])
def test_stock_makes_a_call_with_the_settings_of_that_moment(app: Callable[..., Any], changed: str) -> None:
    component, change = CHANGES[changed]

    async def run(optimized: Callable[[Any], Any], change: Change) -> Any:
        return (await optimized(app(component(), change)).ainvoke({"question": "tower"}))["found"]

    same(run, change)


@pytest.mark.parametrize("app", [in_function, in_node])
def test_stock_calls_the_model_of_that_moment(app: Callable[..., Any]) -> None:
    async def run(optimized: Callable[[Any], Any], change: Change) -> Any:
        return (await optimized(app(primary(), change)).ainvoke({"question": "tower"}))["found"]

    same(run, other_primary)


@pytest.mark.parametrize("app", [in_function, in_node, in_chain])
def test_a_setting_that_is_changed_and_changed_back(app: Callable[..., Any]) -> None:
    """The call that began ahead has seen the other one; stock's call does not."""

    async def run(optimized: Callable[[Any], Any]) -> Any:
        component = Deep()

        async def there_and_back() -> None:
            await asyncio.sleep(0.1)
            component.narrow_to(1)
            await asyncio.sleep(0.2)
            component.narrow_to(3)

        made = optimized(app(component, lambda component: None))
        return (await asyncio.gather(made.ainvoke({"question": "tower"}), there_and_back()))[0]["found"]

    stock = virtual.run(run(lambda app: app)).value
    assert len(stock) == 3
    assert virtual.run(run(partial(fineflow.optimize, strict=True))).value == stock


@fineflow.external
class Counting(BaseRetriever):
    """Keeps state of its own: no setting, so a search that began ahead is not made again."""

    asked: list[str] = Field(default_factory=list)
    seen: dict[str, int] = Field(default_factory=dict)
    searches: int = 0

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        raise NotImplementedError

    async def _aget_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        self.searches += 1
        self.asked.append(query)
        self.seen[query] = self.searches
        await asyncio.sleep(0.2)
        return [Document(query)]


@pytest.mark.parametrize("app", [in_function, in_chain, in_node])
def test_what_a_component_changes_itself_is_no_setting(app: Callable[..., Any]) -> None:
    made = []

    async def run(optimized: Callable[[Any], Any], change: Change) -> Any:
        made.append(Counting())
        return (await optimized(app(made[-1], change)).ainvoke({"question": "tower"}))["found"]

    same(run, lambda component: None)
    assert [each.asked for each in made] == [["tower"]] * 4


def note(retriever: Any) -> None:
    retriever.noted += 1


class Keeping(Counting):
    """Keeps more, of texts that are objects of LangChain, too."""

    noted: int = 0
    _last: str = PrivateAttr(default="")
    model_config = ConfigDict(ignored_types=(cached_property,))

    @cached_property
    def made_once(self) -> str:
        return "made"

    @property
    def kept(self) -> str:
        self._last = self._last or "kept"
        return self._last

    async def _aget_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        note(self)
        self.asked.append(HumanMessage(query).text)
        return [Document(self.made_once + self.kept)]


def test_what_getters_and_helpers_change_is_no_setting() -> None:
    found = Keeping()
    before = settings(found)
    asyncio.run(found.ainvoke("tower"))
    assert (found.noted, found._last) == (1, "kept")
    assert settings(found) == before


def index() -> VectorStoreIndex:
    nodes = [TextNode(text=text, id_=text) for text in TEXTS]
    return VectorStoreIndex(nodes, embed_model=FakeEmbedding(latency=0.2))


def index_retriever() -> Any:
    return index().as_retriever(similarity_top_k=3)


def index_engine() -> Any:
    return index().as_query_engine(llm=FakeLLM(latency=0.1, answers=str.upper), similarity_top_k=3)


def fewer_nodes(found: Any) -> None:
    found.similarity_top_k = 1


def only_some(found: Any) -> None:
    found._node_ids = ["castle"]


def filtered(found: Any) -> None:
    found._filters = MetadataFilters(filters=[MetadataFilter(key="kind", value="none")])


def fewer_nodes_of_its_retriever(found: Any) -> None:
    found.retriever.similarity_top_k = 1


def other_model(found: Any) -> None:
    found._response_synthesizer._llm = FakeLLM(latency=0.1)


def other_answers(found: Any) -> None:
    found._response_synthesizer._llm.answers = str.lower


OF_INDEXES: list[tuple[Callable[[], Any], Change]] = [
    *((index_retriever, change) for change in (fewer_nodes, only_some, filtered)),
    *((index_engine, change) for change in (fewer_nodes_of_its_retriever, other_model, other_answers)),
]


@pytest.mark.parametrize(("component", "change"), OF_INDEXES, ids=lambda each: str(each.__name__))
def test_stock_asks_an_index_with_the_settings_of_that_moment(component: Callable[[], Any], change: Change) -> None:
    async def run(optimized: Callable[[Any], Any], change: Change) -> Any:
        asked, llm = component(), FakeLLM(latency=0.5)

        async def calls(question: str) -> Any:
            await llm.acomplete(question)
            if asked.__class__.__name__ == "VectorIndexRetriever":
                return [each.text for each in await asked.aretrieve(question)]
            return AIMessage(str(await asked.aquery(question)))

        return (await asyncio.gather(optimized(calls)("tower"), changing(asked, change)(None)))[0]

    same(run, change)


def meanwhile(sync: bool) -> list[str]:
    """An app whose model is set otherwise while its call is under way, ahead of stock; what the model was asked."""
    first, asked = Gate(), Gate()
    opening = FakeChat(gate=first)
    model = FakeChat(answers={"human": "one"}, gate=asked)

    def calls(question: str) -> str:
        opening.invoke("first")
        return str(model.invoke(question).content)

    async def acalls(question: str) -> str:
        await opening.ainvoke("first")
        return str((await model.ainvoke(question)).content)

    async def changes(_: str) -> None:
        await asked.arrived(1)
        model.answers = {"human": "three"}
        first.open()
        await asked.arrived(2)
        asked.open()

    async def run() -> Any:
        app = fineflow.optimize(RunnableLambda(calls if sync else acalls), strict=True, eager=True)
        called = asyncio.to_thread(app.invoke, "tower") if sync else app.ainvoke("tower")
        return (await asyncio.gather(called, changes("tower")))[0]

    return [asyncio.run(run()), *model.meter.labels]


@pytest.mark.parametrize("sync", [True, False])
def test_stock_waits_for_nothing_that_it_makes_itself(sync: bool) -> None:
    """What began ahead still runs: stock makes its call without waiting for the end of that one, on the same loop."""
    found = list[str]()
    thread = threading.Thread(target=lambda: found.extend(meanwhile(sync)), daemon=True)
    thread.start()
    thread.join(20)
    assert found == ["three", "human: tower", "human: tower"]
