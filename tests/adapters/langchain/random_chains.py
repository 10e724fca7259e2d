"""Random LCEL chains: a hypothesis strategy of specifications (plain data), and their construction.

A specification can be built any number of times, so that stock and optimized each get a fresh, equal pipeline.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from hypothesis import strategies as st
from langchain_classic.retrievers import ContextualCompressionRetriever, MultiQueryRetriever
from langchain_core.documents import Document
from langchain_core.messages import BaseMessage, HumanMessage
from langchain_core.output_parsers import CommaSeparatedListOutputParser, JsonOutputParser, StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables import (
    RunnableBranch,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
    RunnablePick,
)

from fineflow.testing.differential import PROBE
from fineflow.testing.langchain import FakeChat, FakeReranker, FakeRetriever, FakeVectorStore, prompt_text

INPUT = {"question": "which town is the capital of France", "topic": "towns"}
WORDS = (
    "Paris is the capital of France",
    "Lyon is a town in France",
    "Rome is the capital of Italy",
    "cheese comes from France",
    "a town is smaller than a city",
)
MULTI_QUERY = ("multi", "multi o", "multi compressed", "multi o compressed")
TEXT, DOCS, DATA = "text", "docs", "data"

Spec = tuple[Any, ...]
Keys = dict[str, str]  # name -> TEXT, DOCS or DATA

PURE_OF_DICT: dict[str, Callable[[Any], Any]] = {
    "upper": lambda x: x["question"].upper(),
    "both": lambda x: f"{x['topic']}: {x['question']}",
    "length": lambda x: str(len(x["question"])),
    "get": lambda x: x.get("topic", "nothing"),
}
PURE_OF_TEXT: dict[str, Callable[[Any], Any]] = {
    "title": lambda s: s.title(),
    "first": lambda s: s.split()[0],
    "twice": lambda s: s + " " + s,
}
PURE_OF_DOCS: dict[str, Callable[[Any], Any]] = {
    "joined": lambda docs: "\n".join(d.page_content for d in docs),
    "count": lambda docs: str(len(docs)),
}
PURE_OF_MESSAGE: dict[str, Callable[[Any], Any]] = {"content": lambda m: m.content}


@dataclass
class World:
    """What one built chain logs to, and whose calls it counts."""

    log: list[Any] = field(default_factory=list)
    models: list[FakeChat] = field(default_factory=list)
    stores: list[FakeVectorStore] = field(default_factory=list)

    @property
    def calls(self) -> int:
        return sum(model.meter.calls for model in self.models)


def answer(messages: list[BaseMessage]) -> str | BaseException:
    """A text that depends on the whole prompt."""
    text = prompt_text(messages)
    number = zlib.crc32(text.encode()) % 1000
    if "FAIL" in text:
        return ValueError(f"the model failed at {number}")
    if "JSON" in text:
        return json.dumps({"n": number, "parts": [number % 7]})
    if "LIST" in text:
        return f"red {number}, green, blue"
    if "different versions" in text:
        return f"capital of France {number}\n\nwhich town\ncapital of France {number}\n"
    return f"answer {number} about the capital"


def shared_or_new(world: World, shared: bool) -> FakeChat:
    if shared and world.models:
        return world.models[0]
    world.models.append(FakeChat(answers=answer))
    return world.models[-1]


# --- building -------------------------------------------------------------------------------------------------------


def build(spec: Spec, world: World) -> Any:
    """The runnable of a specification."""
    return BUILDERS[spec[0]](world, *spec[1:])


def _sequence(world: World, *parts: Spec) -> Any:
    found = [build(part, world) for part in parts]
    chain = found[0]
    for part in found[1:]:
        chain = chain | part
    return chain


def _ask(world: World, kind: str, keys: tuple[str, ...], shared: bool, wrap: str, parser: str) -> Any:
    template = " ".join([kind, *("{" + key + "}" for key in keys)])
    prompt: Any = ChatPromptTemplate.from_messages([("system", "be kind"), ("human", template)])
    model: Any = shared_or_new(world, shared)
    if wrap == "bind":
        model = model.bind(stop=["about"])
    elif wrap == "config":
        model = model.with_config(tags=["m"], metadata={"where": "model"}, run_name="named")
    elif wrap == "retry":
        model = model.with_retry(stop_after_attempt=2, wait_exponential_jitter=False)
    elif wrap == "fallbacks":
        model = model.with_fallbacks([shared_or_new(world, shared=False)])
    if wrap == "chain fallbacks":
        spare = ChatPromptTemplate.from_template("spare {topic}") | shared_or_new(world, shared=False)
        return (prompt | model).with_fallbacks([spare]) | _parser(parser)
    return prompt | model | _parser(parser)


def _parser(kind: str) -> Any:
    return {
        "text": StrOutputParser(),
        "json": JsonOutputParser(),
        "list": CommaSeparatedListOutputParser(),
        "pure": RunnableLambda(PURE_OF_MESSAGE["content"]),
    }[kind]


def _retrieve(world: World, key: str, kind: str, k: int) -> Any:
    store = FakeVectorStore.from_texts(list(WORDS), FakeVectorStore().embedding)
    world.stores.append(store)
    base: Any = store.as_retriever(search_kwargs={"k": k})
    if kind == "custom":
        base = FakeRetriever(documents=[Document(page_content=text) for text in WORDS], k=k)
    if kind.startswith("multi"):
        base = MultiQueryRetriever.from_llm(base, shared_or_new(world, shared=False), include_original="o" in kind[5:])
    if kind.endswith("compressed"):
        base = ContextualCompressionRetriever(base_retriever=base, base_compressor=FakeReranker(top_n=2))
    return RunnablePick(key) | base


def _pure(world: World, name: str) -> Any:
    return RunnableLambda(PURE_OF_DICT[name])


def _of_text(world: World, key: str, name: str) -> Any:
    return RunnableLambda(itemgetter(key)) | RunnableLambda(PURE_OF_TEXT[name])


def _of_docs(world: World, key: str, name: str) -> Any:
    return RunnablePick(key) | RunnableLambda(PURE_OF_DOCS[name])


def _each_doc(world: World, key: str) -> Any:
    return RunnablePick(key) | RunnableLambda(lambda doc: doc.page_content.lower()).map()


def _opaque(world: World, number: int, action: str) -> Any:
    """A step that logs, and does something that only a user would."""

    def step(value: Any) -> Any:
        world.log.append((number, action, PROBE.get()))
        if action == "set a context variable":
            PROBE.set(f"changed by {number}")
        elif action == "raise":
            raise RuntimeError(f"step {number}")
        elif action == "add a key":
            value[f"added{number}"] = "added"
        elif action == "change a key":
            value["topic"] = f"topic of {number}"
        elif action == "change documents":
            for part in value.values():
                for doc in part if isinstance(part, list) else ():
                    if isinstance(doc, Document):
                        doc.page_content += f" changed by {number}"
        elif action == "new dict":
            return {**value, "topic": "new"}
        return value

    return RunnableLambda(step)


def _note(world: World, number: int, action: str) -> Any:
    """An opaque branch: from a dict to text."""

    def step(value: Any) -> Any:
        world.log.append((number, action, PROBE.get()))
        if action == "raise":
            raise RuntimeError(f"branch {number}")
        if action == "change a key":
            value["topic"] = f"topic of {number}"
        return f"note {number} on {value['question']}"

    return RunnableLambda(step)


def _branch(world: World, one: Spec, other: Spec) -> Any:
    return RunnableBranch((lambda x: "France" in x["topic"], build(one, world)), build(other, world))


def _wrapped(world: World, kind: str, inner: Spec) -> Any:
    made: Any = build(inner, world)
    if kind == "config":
        return made.with_config(tags=["w"], metadata={"wrapped": 1})
    if kind == "retry":
        return made.with_retry(stop_after_attempt=2, wait_exponential_jitter=False)
    return made.with_fallbacks([RunnableLambda(lambda x: {**x, "fell": "back"})])


def _history(world: World, key: str, optional: bool) -> Any:
    prompt = ChatPromptTemplate.from_messages(
        [MessagesPlaceholder("history", optional=optional), ("human", "{" + key + "}")]
    )
    history = RunnableLambda(lambda x: [HumanMessage("earlier " + x["question"])])
    chain: Any = prompt | shared_or_new(world, shared=False) | StrOutputParser()
    return chain if optional else RunnablePassthrough.assign(history=history) | chain


def _branches(world: World, branches: tuple[tuple[str, Spec], ...]) -> dict[str, Any]:
    return {key: build(spec, world) for key, spec in branches}


BUILDERS: dict[str, Callable[..., Any]] = {
    "sequence": _sequence,
    "assign": lambda world, branches: RunnablePassthrough.assign(**_branches(world, branches)),
    "parallel": lambda world, branches: RunnableParallel(**_branches(world, branches)),
    "ask": _ask,
    "history": _history,
    "retrieve": _retrieve,
    "pure": _pure,
    "of text": _of_text,
    "of docs": _of_docs,
    "each doc": _each_doc,
    "opaque": _opaque,
    "note": _note,
    "branch": _branch,
    "wrapped": _wrapped,
    "pick": lambda world, key: RunnablePick(key),
    "picks": lambda world, keys: RunnablePick(list(keys)),
    "getter": lambda world, key: RunnableLambda(itemgetter(key)),
    "same": lambda world: RunnablePassthrough(),
}


# --- generating -----------------------------------------------------------------------------------------------------


@dataclass
class Chain:
    """A specification, and what is known of it.

    concurrent: stock runs user code of it side by side. changes: user code changes in place what others read.
    chance: streams of it are a matter of chance in stock. Chunks of JSON cannot be added, so each replaces the dict
    that is there so far, and which keys are left of branches side by side is a race.
    """

    spec: Spec
    concurrent: bool

    branches: bool = False

    @property
    def chance(self) -> bool:
        return self.branches and "json" in repr(self.spec)

    @property
    def changes(self) -> bool:
        return any(word in repr(self.spec) for word in ("change a key", "change documents", "add a key"))


class _Drawing:
    """One chain being drawn: how much more it may grow, whether it fails already, what runs side by side."""

    def __init__(self, draw: Any, size: int) -> None:
        self.draw = draw
        self.left = size
        self.fails = False
        self.number = 0
        self.concurrent = False
        self.several = False
        self.side_by_side = False  # whether what is drawn now is one of several branches

    def pick(self, *options: Any) -> Any:
        return self.draw(st.sampled_from(options))

    def next(self) -> int:
        self.number += 1
        return self.number

    def failing(self) -> bool:
        """Whether to let this step fail: at most one of a chain, or it would be a race which one is seen."""
        if self.fails or self.draw(st.integers(0, 14)):
            return False
        self.fails = True
        return True

    def stages(self, keys: Keys, count: int) -> tuple[Spec, Keys]:
        """Several steps from dict to dict, and the keys behind them."""
        parts: list[Spec] = []
        for _ in range(count):
            part, keys = self.stage(keys)
            parts.append(part)
        return (parts[0] if len(parts) == 1 else ("sequence", *parts)), keys

    def stage(self, keys: Keys) -> tuple[Spec, Keys]:
        self.left -= 1
        if self.left <= 0:
            return ("same",), keys
        kind = self.pick(*["assign"] * 4, "parallel", *["opaque"] * 2, "picks", "branch", "wrapped")
        if kind == "assign":
            branches, made = self.branches(keys)
            return ("assign", branches), {**keys, **made}
        if kind == "parallel":
            branches, made = self.branches(keys, beside=True)
            kept = (("question", ("pick", "question")), ("topic", ("getter", "topic")))
            return ("parallel", kept + branches), {"question": TEXT, "topic": TEXT, **made}
        if kind == "opaque":
            return ("opaque", self.next(), self.action()), keys
        if kind == "picks":
            kept_keys = [key for key in keys if key in ("question", "topic") or self.draw(st.booleans())]
            return ("picks", tuple(kept_keys)), {key: keys[key] for key in kept_keys}
        if kind == "branch":
            one, first = self.stage(keys)
            other, second = self.stage(keys)
            return ("branch", one, other), {k: v for k, v in first.items() if second.get(k) == v}
        inner, found = self.stages(keys, self.pick(1, 2))
        how = self.pick("config", "config", "retry", "fallbacks")
        return ("wrapped", how, inner), (keys if how == "fallbacks" else found)

    def action(self) -> str:
        if not self.side_by_side and self.failing():
            return "raise"
        calm = ("log", "log", "set a context variable", "new dict")
        wild = ("add a key", "change a key", "change documents")
        return str(self.pick(*calm, *(() if self.side_by_side else wild)))

    def branches(self, keys: Keys, *, beside: bool = False) -> tuple[tuple[tuple[str, Spec], ...], Keys]:
        count = self.pick(1, 1, 2, 3)
        beside = beside or count > 1
        self.several |= beside
        outer, self.side_by_side = self.side_by_side, self.side_by_side or beside
        found: list[tuple[str, Spec]] = []
        made: Keys = {}
        for _ in range(count):
            spec, kind = self.branch(keys)
            name = f"k{self.next()}"
            found.append((name, spec))
            made[name] = kind
        self.side_by_side = outer
        return tuple(found), made

    def branch(self, keys: Keys) -> tuple[Spec, str]:
        """A step from dict to one value, and what that value is."""
        self.left -= 1
        texts = tuple(key for key, kind in keys.items() if kind == TEXT)
        docs = tuple(key for key, kind in keys.items() if kind == DOCS)
        kinds = ["pick", "pure", "of text", "note"]
        if self.left > 0:
            kinds += ["ask"] * 5 + ["retrieve"] * 3 + ["nested", "history"]
        kinds += ["of docs", "of docs", "each doc"] if docs else []
        kind = self.pick(*kinds)
        if kind == "pick":
            key = self.pick(*keys)
            return (self.pick("pick", "getter"), key), keys[key]
        if kind == "pure":
            return ("pure", self.pick(*PURE_OF_DICT)), TEXT
        if kind == "of text":
            return ("of text", self.pick(*texts), self.pick(*PURE_OF_TEXT)), TEXT
        if kind == "of docs":
            return ("of docs", self.pick(*docs), self.pick(*PURE_OF_DOCS)), TEXT
        if kind == "each doc":
            return ("each doc", self.pick(*docs)), DATA
        if kind == "note":
            self.concurrent |= self.side_by_side
            action = "raise" if not self.side_by_side and self.failing() else self.pick("log", "change a key")
            return ("note", self.next(), "log" if self.side_by_side else action), TEXT
        if kind == "retrieve":
            how = self.pick(*("plain", "custom", "compressed", *MULTI_QUERY))
            return ("retrieve", self.pick(*texts), how, self.pick(1, 2, 4)), DOCS
        if kind == "history":
            return ("history", self.pick(*texts), self.draw(st.booleans())), TEXT
        if kind == "nested":
            first, found = self.stage(keys)
            second, value = self.branch(found)
            return ("sequence", first, second), value
        return self.ask(texts)

    def ask(self, texts: tuple[str, ...]) -> tuple[Spec, str]:
        fails = not self.side_by_side and self.failing()
        said = self.pick("text", "text", "text", "json", "list", "pure")
        word = "FAIL" if fails else {"json": "JSON", "list": "LIST"}.get(said, self.pick("explain", "related to"))
        wrap = self.pick("", "", "", "", "bind", "config", "retry", "fallbacks", "chain fallbacks")
        keys = tuple(dict.fromkeys(self.pick(*texts) for _ in range(self.pick(1, 1, 2))))
        return ("ask", word, keys, self.draw(st.booleans()), wrap, said), TEXT if said in ("text", "pure") else DATA


@st.composite
def chains(draw: Any, size: int = 15) -> Chain:
    """Chains of about ``size`` steps, from the dict ``INPUT`` to a dict or to one value."""
    drawing = _Drawing(draw, size)
    spec, keys = drawing.stages({"question": TEXT, "topic": TEXT}, drawing.pick(2, 3, 4))
    if drawing.pick(False, False, True):
        last, _ = drawing.branch(keys)
        spec = ("sequence", spec, last)
    return Chain(spec, drawing.concurrent, drawing.several)
