"""What nodes read before their calls: the environment, configuration, context variables, stores, files."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, PromptTemplate
from langchain_core.runnables import ConfigurableField, RunnableConfig, ensure_config
from langgraph.config import get_config, get_store
from langgraph.graph import END, START, StateGraph
from langgraph.runtime import Runtime
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from pydantic import AfterValidator, BaseModel, Field

import fineflow
from fineflow.testing import virtual, virtual_threads
from fineflow.testing.langchain import FakeChat

needs_virtual_threads = pytest.mark.skipif(not virtual_threads.available, reason="needs /proc")
chain = (
    ChatPromptTemplate.from_template("{q}") | FakeChat(answers=lambda m: m[-1].text, prefill=1.0) | StrOutputParser()
)
TENANT: ContextVar[str] = ContextVar("tenant")
PROMPT = Path(__file__).with_name("prompt.tmp")
WORDS = ["a", "b", "c"]
WRITTEN: list[str] = []


class State(TypedDict):
    found: list[str]


@dataclass
class Context:
    style: str


class Configuration(BaseModel):
    """As the templates of LangGraph have it."""

    style: str = Field(default="plain")
    number_of_queries: int = Field(default=2)

    @classmethod
    def from_runnable_config(cls, config: RunnableConfig | None = None) -> Configuration:
        configurable = config["configurable"] if config and "configurable" in config else {}
        raw_values: dict[str, Any] = {
            name: os.environ.get(name.upper(), configurable.get(name))
            for name in cls.model_fields.keys()  # noqa: SIM118
        }
        return cls(**{name: value for name, value in raw_values.items() if value is not None})


@dataclass(kw_only=True)
class Settings:
    style: str = "plain"

    @classmethod
    def from_runnable_config(cls, config: RunnableConfig | None = None) -> Settings:
        configurable = ensure_config(config).get("configurable") or {}
        known = {each.name for each in fields(cls) if each.init}
        return cls(**{name: value for name, value in configurable.items() if name in known})


def ask(style: str) -> dict[str, list[str]]:
    return {"found": [chain.invoke({"q": f"{style} {word}"}) for word in WORDS]}


def environment(state: State) -> Any:
    return ask(os.environ["STYLE_OF_TEST"] if "STYLE_OF_TEST" in os.environ else os.getenv("HOME", "none"))


def defaults(state: State) -> Any:
    return ask(os.environ.get("NOT_SET_ANYWHERE", "plain") + os.getenv("STYLE_OF_TEST", ""))


def configuration(state: State, config: RunnableConfig) -> Any:
    found = Configuration.from_runnable_config(config)
    return ask(f"{found.style} {found.number_of_queries}")


def settings(state: State, config: RunnableConfig) -> Any:
    return ask(Settings.from_runnable_config(config).style)


def settings_around(state: State) -> Any:
    return ask(f"{Settings.from_runnable_config().style} {get_config()['configurable']['style']}")


def passes_config_on(state: State, config: RunnableConfig) -> Any:
    style = config["configurable"].get("style", "plain")
    return {"found": [chain.invoke({"q": f"{style} {word}"}, config) for word in WORDS]}


def context(state: State, runtime: Runtime[Context]) -> Any:
    runtime.stream_writer({"at": "context"})
    return ask(runtime.context.style)


def stored(state: State, *, store: BaseStore) -> Any:
    item = store.get(("users",), "u1")
    more = store.search(("users",))
    return ask(f"{item.value['style'] if item else 'plain'} {len(more)}")


def stored_around(state: State) -> Any:
    return ask(get_store().get(("users",), "u1").value["style"])


def variable(state: State) -> Any:
    return ask(TENANT.get())


def file(state: State) -> Any:
    with open(str(PROMPT), encoding="utf-8") as opened:
        text = opened.read()
    with open(str(PROMPT)) as opened:
        return ask(f"{text} {json.load(opened)['style']}")


def path(state: State) -> Any:
    text = PROMPT.read_text(encoding="utf-8")
    there = Path(str(PROMPT.parent)) / f"{PROMPT.stem}.json"
    more = json.loads(there.read_bytes().decode())["style"]
    with there.open() as opened:
        return ask(f"{there.name} {text} {more} {len(opened.readlines())}")


def binary(state: State) -> Any:
    with open(PROMPT, "rb") as opened:
        return ask(opened.read().decode("utf-8"))


make = ChatPromptTemplate.from_template


def aliased(state: State) -> Any:
    prompt = make("as {style}: {q}")
    return {"found": [(prompt | chain.steps[1]).invoke({"style": "x", "q": word}).text for word in WORDS]}


NODES: dict[str, Callable[..., Any]] = {
    each.__name__: each
    for each in (
        *(environment, defaults, configuration, settings, settings_around, passes_config_on, context, stored),
        *(stored_around, variable, file, path, binary, aliased),
    )
}


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("STYLE_OF_TEST", "terse")
    monkeypatch.setitem(globals(), "PROMPT", tmp_path / "prompt.json")
    PROMPT.write_text('{"style": "from a file"}')
    token = TENANT.set("t1")
    yield
    TENANT.reset(token)


def graph(node: Any, store: Any = None) -> Any:
    builder = StateGraph(State, context_schema=Context)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    builder.add_edge("node", END)
    store = store or InMemoryStore()
    store.put(("users",), "u1", {"style": "kept"})
    return builder.compile(store=store)


CONFIG: Any = {"configurable": {"style": "configured", "number_of_queries": 3}}


@needs_virtual_threads
@pytest.mark.parametrize("name", NODES)
def test_calls_start_together_behind_what_is_read(name: str) -> None:
    def call(app: Any) -> Any:
        return virtual_threads.run(lambda: app.invoke({"found": []}, CONFIG, context=Context("of context")))

    app = graph(NODES[name])
    stock, fast = call(app), call(fineflow.optimize(app, strict=True))
    assert fast.value == stock.value
    assert (stock.seconds, fast.seconds) == (3.0, 1.0)


def test_async_reads_of_a_store() -> None:
    async def node(state: State, *, store: BaseStore) -> Any:
        item = await store.aget(("users",), "u1")
        await asyncio.sleep(0)
        style = item.value["style"]
        return {"found": [await chain.ainvoke({"q": f"{style} {word}"}) for word in WORDS]}

    app = graph(node)
    stock = virtual.run(app.ainvoke({"found": []}, CONFIG))
    fast = virtual.run(fineflow.optimize(app, strict=True).ainvoke({"found": []}, CONFIG))
    assert (fast.value, stock.seconds, fast.seconds) == (stock.value, 3.0, 1.0)


def test_a_sleep_between_calls_stays_one() -> None:
    async def node(state: State) -> Any:
        found = []
        for word in WORDS:
            found.append(await chain.ainvoke({"q": word}))
            await asyncio.sleep(0.5)
        return {"found": found}

    app = graph(node)
    assert virtual.run(fineflow.optimize(app).ainvoke({"found": []})).seconds == 4.5


class Loud(BaseModel):
    """Making one runs code of the user's."""

    style: Annotated[str, AfterValidator(lambda value: WRITTEN.append(value) or value)] = "x"


def makes_what_runs_code(state: State) -> Any:
    return ask(Loud(style="loud").style)


class OwnStore(InMemoryStore):
    def batch(self, ops: Any) -> Any:
        WRITTEN.append("read")
        return super().batch(ops)


@needs_virtual_threads
def test_a_walk_runs_no_code_of_the_users() -> None:
    for node, store in ((makes_what_runs_code, None), (stored, OwnStore())):
        app, counts = graph(node, store), []
        for each in (app, fineflow.optimize(app, strict=True)):
            WRITTEN.clear()
            virtual_threads.run(lambda each=each: each.invoke({"found": []}, CONFIG))
            counts.append(list(WRITTEN))
        assert counts[0] == counts[1] != []


def changes_the_environment(state: State) -> Any:
    os.environ["STYLE_OF_TEST"] = "changed"
    return ask("x")


def changes_the_config(state: State, config: RunnableConfig) -> Any:
    config["configurable"]["style"] = "changed"
    return ask("x")


def changes_a_copy_of_the_config(state: State, config: RunnableConfig) -> Any:
    config = {**config, "configurable": {**config["configurable"], "style": "changed"}}
    return {"found": [chain.invoke({"q": word}, config) for word in WORDS]}


def writes_a_file(state: State) -> Any:
    with open(str(PROMPT), "w") as opened:
        opened.write("{}")
    return ask("x")


def writes_by_a_path(state: State) -> Any:
    PROMPT.write_text("{}")
    return ask(PROMPT.read_text())


def removes_a_file(state: State) -> Any:
    PROMPT.unlink(missing_ok=True)
    return ask("x" if PROMPT.exists() else "y")


def sets_a_variable(state: State) -> Any:
    TENANT.set("t2")
    return ask(TENANT.get())


def puts_into_the_store(state: State, *, store: BaseStore) -> Any:
    store.put(("users",), "u1", {"style": "changed"})
    return ask(store.get(("users",), "u1").value["style"])


@needs_virtual_threads
@pytest.mark.parametrize(
    "node",
    [
        *(changes_the_environment, changes_the_config, changes_a_copy_of_the_config, writes_a_file),
        *(sets_a_variable, puts_into_the_store, writes_by_a_path, removes_a_file),
    ],
    ids=lambda node: node.__name__,
)
def test_nothing_starts_behind_a_change(node: Any) -> None:
    model = chain.steps[1]
    app = graph(node)
    stock = virtual_threads.run(lambda: app.invoke({"found": []}, CONFIG))
    before, model.meter.peak = model.meter.peak, 0
    fast = virtual_threads.run(lambda: fineflow.optimize(app, strict=True).invoke({"found": []}, CONFIG))
    model.meter.peak, seen = max(before, model.meter.peak), model.meter.peak
    assert fast == stock
    assert seen == 1


@needs_virtual_threads
def test_calls_with_a_config_of_their_own_run_under_it() -> None:
    model = FakeChat(answers=lambda m: m[-1].text, prefill=1.0)
    prompt = PromptTemplate.from_template("say {q}").configurable_fields(template=ConfigurableField(id="template"))
    own_chain = prompt | model

    def node(state: State, config: RunnableConfig) -> Any:
        own = [
            {"configurable": {"template": each}, "callbacks": config.get("callbacks")} for each in ("A {q}", "B {q}")
        ]
        return {"found": [own_chain.invoke({"q": "x"}, each).text for each in own]}

    fast = virtual_threads.run(lambda: fineflow.optimize(graph(node), strict=True).invoke({"found": []}, CONFIG))
    assert fast == ({"found": ["A x", "B x"]}, 1.0)
    assert sorted(model.meter.labels) == ["human: A x", "human: B x"]
