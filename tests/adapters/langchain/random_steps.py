"""Steps of random LCEL chains: specifications (plain data) and how they are built.

A specification can be built any number of times, so that stock and optimized each get a fresh, equal pipeline. Its
first part names a builder, the others are the builder's arguments: ``("sequence", ("pick", "k1"), ("split", "ends"))``.
"""

from __future__ import annotations

import asyncio
import json
import time
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from langchain_classic.retrievers import ContextualCompressionRetriever, MultiQueryRetriever
from langchain_core.documents import Document
from langchain_core.messages import BaseMessage, HumanMessage
from langchain_core.output_parsers import CommaSeparatedListOutputParser, JsonOutputParser, StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables import RunnableBranch, RunnableLambda, RunnableParallel, RunnablePassthrough, RunnablePick
from random_functions import (
    CONDITIONS,
    CONDITIONS_OF_TEXT,
    FAILING_OF_DICT,
    PURE_OF_DICT,
    PURE_OF_DOCS,
    PURE_OF_MESSAGE,
    PURE_OF_TEXT,
    PURE_OF_TEXTS,
    SPLITTING,
)

from fineflow.testing.differential import PROBE
from fineflow.testing.gates import Gate
from fineflow.testing.langchain import FakeChat, FakeReranker, FakeRetriever, FakeVectorStore, prompt_text

Spec = tuple[Any, ...]

WORDS = (
    "Paris is the capital of France",
    "Lyon is a town in France",
    "Rome is the capital of Italy",
    "cheese comes from France",
    "a town is smaller than a city",
)


class Turns(Gate):
    """What makes a step slow: it lets others go first, some turns of the event loop or of the threads."""

    def __init__(self, turns: int) -> None:
        super().__init__(opened=True)
        self.turns = turns

    def wait_sync(self, timeout: float = 10.0) -> None:
        for _ in range(self.turns):
            time.sleep(0)

    async def wait(self, timeout: float = 10.0) -> None:
        for _ in range(self.turns):
            await asyncio.sleep(0)


@dataclass
class World:
    """What one built chain logs to, how often its flaky steps were tried, and whose calls it counts."""

    log: list[Any] = field(default_factory=list)
    tried: Counter[str] = field(default_factory=Counter)
    models: list[FakeChat] = field(default_factory=list)
    stores: list[FakeVectorStore] = field(default_factory=list)

    @property
    def calls(self) -> int:
        return sum(model.meter.calls for model in self.models)

    @property
    def searches(self) -> int:
        return sum(store.meter.calls for store in self.stores)

    def first_try(self, what: str) -> bool:
        self.tried[what] += 1
        return self.tried[what] == 1

    def model(self, shared: bool, turns: int) -> FakeChat:
        if shared and self.models:
            return self.models[0]
        self.models.append(FakeChat(answers=self.answer, gate=Turns(turns)))
        return self.models[-1]

    def answer(self, messages: list[BaseMessage]) -> str | BaseException:
        """A text that depends on the whole prompt."""
        text = prompt_text(messages)
        number = zlib.crc32(text.encode()) % 1000
        if "FAIL" in text:
            return ValueError(f"the model failed at {number}")
        if "FLAKY" in text and self.first_try(text):
            return ConnectionError(f"the model was away at {number}")
        if "JSON" in text:
            return json.dumps({"n": number, "parts": [number % 7]})
        if "LIST" in text:
            return f"red {number}, green, blue"
        if "different versions" in text:
            return f"capital of France {number}\n\nwhich town\ncapital of France {number}\n"
        return f"answer {number} about the capital"


def build(spec: Spec, world: World) -> Any:
    """The runnable of a specification."""
    return BUILDERS[spec[0]](world, *spec[1:])


# --- structure ------------------------------------------------------------------------------------------------------


def _sequence(world: World, *parts: Spec) -> Any:
    found = [build(part, world) for part in parts]
    chain = found[0]
    for part in found[1:]:
        chain = chain | part
    return chain


def _branches(world: World, branches: tuple[tuple[str, Spec], ...]) -> dict[str, Any]:
    return {key: build(spec, world) for key, spec in branches}


def _branch(world: World, arms: tuple[tuple[Spec, Spec], ...], otherwise: Spec) -> Any:
    return RunnableBranch(*((build(test, world), build(arm, world)) for test, arm in arms), build(otherwise, world))


def _fallbacks(world: World, inner: Spec, *others: Spec) -> Any:
    return build(inner, world).with_fallbacks([build(other, world) for other in others])


def _retry(world: World, inner: Spec, attempts: int) -> Any:
    return build(inner, world).with_retry(stop_after_attempt=attempts, wait_exponential_jitter=False)


def _config(world: World, inner: Spec) -> Any:
    return build(inner, world).with_config(tags=["w"], metadata={"wrapped": 1})


# --- components -----------------------------------------------------------------------------------------------------


def _ask(world: World, kind: str, keys: tuple[str, ...], shared: bool, wrap: str, parser: str, turns: int = 0) -> Any:
    template = " ".join([kind, *("{" + key + "}" for key in keys)])
    prompt: Any = ChatPromptTemplate.from_messages([("system", "be kind"), ("human", template)])
    model: Any = world.model(shared, turns)
    if wrap == "bind":
        model = model.bind(stop=["about"])
    elif wrap == "config":
        model = model.with_config(tags=["m"], metadata={"where": "model"}, run_name="named")
    elif wrap == "retry":
        model = model.with_retry(stop_after_attempt=2, wait_exponential_jitter=False)
    elif wrap == "fallbacks":
        model = model.with_fallbacks([world.model(False, turns)])
    if wrap == "chain fallbacks":
        spare = ChatPromptTemplate.from_template("spare " + "{" + keys[0] + "}") | world.model(False, 0)
        return (prompt | model).with_fallbacks([spare]) | _parser(parser)
    return prompt | model | _parser(parser)


def _parser(kind: str) -> Any:
    return {
        "text": StrOutputParser(),
        "json": JsonOutputParser(),
        "list": CommaSeparatedListOutputParser(),
        "pure": RunnableLambda(PURE_OF_MESSAGE["content"]),
        "split": RunnableLambda(PURE_OF_MESSAGE["split"]),
    }[kind]


def _retriever(world: World, kind: str, k: int, turns: int = 0) -> Any:
    store = FakeVectorStore.from_texts(list(WORDS), FakeVectorStore().embedding, gate=Turns(turns))
    world.stores.append(store)
    base: Any = store.as_retriever(search_kwargs={"k": k})
    if kind == "custom":
        base = FakeRetriever(documents=[Document(page_content=text) for text in WORDS], k=k, gate=Turns(turns))
    if kind.startswith("multi"):
        base = MultiQueryRetriever.from_llm(base, world.model(False, turns), include_original="o" in kind[5:])
    if kind.endswith("compressed"):
        reranker = FakeReranker(top_n=2, gate=Turns(turns))
        base = ContextualCompressionRetriever(base_retriever=base, base_compressor=reranker)
    return base


def _history(world: World, key: str, optional: bool) -> Any:
    prompt = ChatPromptTemplate.from_messages(
        [MessagesPlaceholder("history", optional=optional), ("human", "{" + key + "}")]
    )
    history = RunnableLambda(lambda x: [HumanMessage("earlier " + x["question"])])
    chain: Any = prompt | world.model(False, 0) | StrOutputParser()
    return chain if optional else RunnablePassthrough.assign(history=history) | chain


# --- functions ------------------------------------------------------------------------------------------------------


def _function(step: Callable[[Any], Any], turns: int) -> Any:
    """A user function; a slow one has an async side of its own."""
    if not turns:
        return RunnableLambda(step)
    gate = Turns(turns)

    def slow(value: Any) -> Any:
        gate.wait_sync()
        return step(value)

    async def aslow(value: Any) -> Any:
        await gate.wait()
        return step(value)

    return RunnableLambda(slow, afunc=aslow)


def _act(world: World, number: int, action: str, value: Any) -> Any:
    """Logs, and does something that only a user would."""
    world.log.append((number, action, PROBE.get()))
    if action == "set a context variable":
        PROBE.set(f"changed by {number}")
    elif action == "raise":
        raise RuntimeError(f"step {number}")
    elif action == "raise at first" and world.first_try(f"{number} {value}"):
        raise ConnectionError(f"step {number} is not there yet")
    elif action == "raise at times" and zlib.crc32(str(value).encode()) % 3 == 0:
        raise LookupError(f"step {number} does not know {value}")
    elif action == "add a key":
        value[f"added{number}"] = "added"
    elif action == "change a key":
        value["topic"] = f"topic of {number}"
    elif action == "change documents":
        for doc in (doc for part in value.values() if isinstance(part, list) for doc in part):
            if isinstance(doc, Document):
                doc.page_content += f" changed by {number}"
    elif action == "new dict":
        return {**value, "topic": "new"}
    return value


def _opaque(world: World, number: int, action: str, turns: int = 0) -> Any:
    """From anything to the same."""
    return _function(lambda value: _act(world, number, action, value), turns)


def _note(world: World, number: int, action: str, turns: int = 0) -> Any:
    """From a dict to text."""
    return _function(lambda x: f"note {number} on {_act(world, number, action, x)['question']}", turns)


def _remark(world: World, number: int, action: str, turns: int = 0) -> Any:
    """From text to text."""
    return _function(lambda text: f"{_act(world, number, action, text)} ({number})", turns)


def _asks_user(world: World, number: int, action: str, result: bool) -> Any:
    """An opaque condition."""

    def test(value: Any) -> bool:
        _act(world, number, action, value)
        return result

    return RunnableLambda(test)


BUILDERS: dict[str, Callable[..., Any]] = {
    "sequence": _sequence,
    "assign": lambda world, branches: RunnablePassthrough.assign(**_branches(world, branches)),
    "parallel": lambda world, branches: RunnableParallel(**_branches(world, branches)),
    "branch": _branch,
    "fallbacks": _fallbacks,
    "retry": _retry,
    "config": _config,
    "map": lambda world, inner: build(inner, world).map(),
    # from a dict
    "ask": _ask,
    "history": _history,
    "pure": lambda world, name: RunnableLambda(PURE_OF_DICT[name]),
    "failing": lambda world, name: RunnableLambda(FAILING_OF_DICT[name]),
    "if": lambda world, name: RunnableLambda(CONDITIONS[name]),
    "note": _note,
    "pick": lambda world, key: RunnablePick(key),
    "picks": lambda world, keys: RunnablePick(list(keys)),
    "getter": lambda world, key: RunnableLambda(itemgetter(key)),
    # from text, or a list of it, or documents
    "of text": lambda world, name: RunnableLambda(PURE_OF_TEXT[name]),
    "of texts": lambda world, name: RunnableLambda(PURE_OF_TEXTS[name]),
    "of docs": lambda world, name: RunnableLambda(PURE_OF_DOCS[name]),
    "content of doc": lambda world: RunnableLambda(lambda doc: doc.page_content),
    "split": lambda world, how: RunnableLambda(SPLITTING[how]),
    "if text": lambda world, name: RunnableLambda(CONDITIONS_OF_TEXT[name]),
    "named": lambda world: RunnableParallel(item=RunnablePassthrough(), length=RunnableLambda(lambda s: str(len(s)))),
    "retriever": _retriever,
    "remark": _remark,
    # from anything
    "opaque": _opaque,
    "asks user": _asks_user,
    "same": lambda world: RunnablePassthrough(),
}
