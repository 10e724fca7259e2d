"""Functions over what cannot change: constants outside of them, known libraries, and data models."""

# ruff: noqa: B006, B009  (the functions under test are not to be improved)

from __future__ import annotations

import ast
import collections
import copy
import datetime
import enum
import gc
import html
import json
import logging
import operator
import os
import textwrap
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from analysed_functions import CACHE, LOUD, Loud, remember, shorten
from langchain_core.documents import Document
from langchain_core.load import dumps, loads
from langchain_core.messages import BaseMessage, HumanMessage, get_buffer_string
from langchain_core.prompts import ChatPromptTemplate, PromptTemplate, format_document
from pydantic import BaseModel, ConfigDict, computed_field, field_serializer, field_validator

from fineflow.adapters.analysis import analyse, is_plain

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::PendingDeprecationWarning")

LABELS = {"a": 1, "b": [2, {"c": 3}]}
STOP_WORDS = ["the", "a"]
DOCUMENT_PROMPT = PromptTemplate.from_template("{page_content}")
logger = logging.getLogger(__name__)


def with_default(x: Any, options: dict[str, Any] = {"k": 1}) -> Any:
    return x["docs"][: options["k"]]


def with_keyword_default(x: Any, *, names: Any = STOP_WORDS) -> Any:
    return [name for name in names if name in x]


def unused_default(x: Any, seen: Any = LOUD) -> Any:
    return x["a"]


class Intent(enum.Enum):
    SEARCH = "search"
    CHAT = "chat"


class Level(str, enum.Enum):  # noqa: UP042
    HIGH = "high"


class Counting(enum.Enum):
    """Members that do more than to be one."""

    ONE = 1

    @property
    def label(self) -> str:
        return remember("a")

    def __eq__(self, other: object) -> bool:
        return bool(remember("a"))

    __hash__ = None  # type: ignore[assignment]


class Application:
    """What keeps its settings on itself, as most applications do."""

    separator = "\n"

    def __init__(self, k: int = 2) -> None:
        self.k = k
        self.labels = {"a": 1}

    def format(self, docs: Any) -> str:
        return self.separator.join(self._shown(doc, number) for number, doc in enumerate(docs[: self.k]))

    def _shown(self, doc: Any, number: int) -> str:
        return f"[{number}] {self.cleaned(doc.page_content)}"

    @staticmethod
    def cleaned(text: str) -> str:
        return " ".join(text.split())

    def inner(self) -> Callable[[Any], Any]:
        return lambda x: self.labels.get(x["a"]) or self._shown(x["doc"], self.k)


APPLICATION = Application()


def over_closure() -> Callable[[Any], Any]:
    options = {"k": 1}
    return lambda x: x["docs"][: options["k"]]


def imports(x: Any) -> Any:
    import json as reader
    from html import escape

    return reader.loads(escape(x))


def fusion(results: Any, k: Any = 60) -> Any:
    scores: dict[str, Any] = {}
    for docs in results:
        for rank, doc in enumerate(docs):
            text = dumps(doc)
            if text not in scores:
                scores[text] = 0
            scores[text] += 1 / (rank + k)
    return [(loads(doc), score) for doc, score in sorted(scores.items(), key=lambda pair: pair[1], reverse=True)]


def counted(x: Any) -> Any:
    counts: Any = collections.defaultdict(int)
    for doc in x:
        counts[doc.metadata["source"]] += 1
    return collections.Counter(counts).most_common(1)


def parsed(x: Any) -> Any:
    try:
        return json.loads(x)
    except json.JSONDecodeError as error:
        return {"error": str(error)}


def without(x: Any) -> Any:
    copied = x.copy()
    copied.pop("a", None)
    return copied


def deleted(x: Any) -> Any:
    copied = dict(x)
    del copied["a"]
    return copied


def joined(docs: Any, prompt: Any = DOCUMENT_PROMPT, separator: str = "\n") -> str:
    return separator.join(format_document(doc, prompt) for doc in docs)


def halved(x: Any) -> Any:
    value = x["a"]
    value /= 2
    value -= 1
    return value


CONSTANT: list[Callable[[Any], Any]] = [
    lambda x: LABELS.get(x["k"], 0),
    lambda x: [word for word in x.split() if word not in STOP_WORDS],
    lambda x: CACHE.get(x["a"]),
    lambda x: LABELS["b"][1]["c"],
    lambda x: with_default(x),
    lambda x: [joined(x)],
    lambda x: joined(x, separator=" "),
    lambda x: DOCUMENT_PROMPT.format(page_content=x["a"]),
    lambda x: x["grade"].binary_score == "yes",
    lambda x: "a" if x["route"].datasource.lower() == "a" else "b",
    lambda x: [q.query for q in x.queries],
    lambda x: getattr(x, "noisy"),
    lambda x: hasattr(x, "noisy"),
    lambda x: x["a"].model_dump(),
    lambda x: max(x["a"], key=lambda d: d.score),
    lambda x: get_buffer_string(x["history"], human_prefix="User"),
    lambda x: "user" if isinstance(x, (HumanMessage, BaseMessage)) else isinstance(x, Mapping),
    lambda x: ast.literal_eval(textwrap.dedent(html.unescape(x))),
    lambda x: copy.deepcopy(x)["a"],
    lambda x: loads(dumps(x), allowed_objects="messages"),
    lambda x: APPLICATION.format(x["docs"])[: APPLICATION.k],
    lambda x: x["intent"] == Intent.SEARCH or x["intent"] in (Intent.CHAT.value, Intent.CHAT.name),
    lambda x: f"{Level.HIGH} {x['level'] == Level.HIGH}",
    APPLICATION.format,
    APPLICATION.inner(),
    Application.cleaned,
    operator.attrgetter("score"),
    with_default,
    with_keyword_default,
    unused_default,
    over_closure(),
    imports,
    fusion,
    counted,
    parsed,
    without,
    deleted,
    lambda x: x["a"].model_dump_json(),
    joined,
    halved,
]


@pytest.fixture(scope="module", autouse=True)
def _warned() -> None:
    loads(dumps(Document("a")))  # gives its warning, which it does once


@pytest.mark.parametrize("func", CONSTANT)
def test_pure(func: Callable[[Any], Any]) -> None:
    verdict = analyse(func)
    assert verdict.pure, verdict
    assert verdict.still_holds()


def test_the_formatting_of_documents_by_langchain_is_pure() -> None:
    documents = pytest.importorskip("langchain_classic.chains.combine_documents")
    from fineflow.testing.langchain import FakeChat

    chain = documents.create_stuff_documents_chain(FakeChat(), ChatPromptTemplate.from_template("{context}"))
    func = chain.bound.first.bound.mapper.steps__["context"].func
    assert func.__name__ == "format_docs"
    verdict = analyse(func)
    assert (verdict.pure, verdict.keys) == (True, {"context"}), verdict


def test_a_constant_that_changes_inside_is_noticed() -> None:
    table: dict[str, Any] = {"a": [1], "doc": Document("a", metadata={"k": [1]})}
    prompt = PromptTemplate.from_template("{a}")
    func = lambda x: (table["a"][0], prompt.format(a=x))  # noqa: E731
    changes: list[tuple[Callable[[], Any], Callable[[], Any]]] = [
        (lambda: table["a"].append(2), lambda: table["a"].pop()),
        (lambda: table["a"].__setitem__(0, True), lambda: table["a"].__setitem__(0, 1)),
        (lambda: table.update(b=LOUD), lambda: table.pop("b")),
        (lambda: table["doc"].metadata["k"].append(2), lambda: table["doc"].metadata["k"].pop()),
        (lambda: setattr(prompt, "template", "{a}!"), lambda: setattr(prompt, "template", "{a}")),
        (lambda: setattr(prompt, "partial_variables", {"a": print}), lambda: setattr(prompt, "partial_variables", {})),
    ]
    verdict = analyse(func)
    assert verdict.pure, verdict
    for change, back in changes:
        change()
        assert not verdict.still_holds()
        back()
        assert verdict.still_holds()


def test_an_object_whose_attributes_change_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    application = Application()
    verdict = analyse(application.format)
    assert verdict.pure, verdict
    other = analyse(application.inner())
    for name, value in (("k", 3), ("separator", " "), ("_shown", len), ("cleaned", len)):
        setattr(application, name, value)
        assert not verdict.still_holds(), name
        delattr(application, name)
        application.k = 2
        assert verdict.still_holds()
    assert other.still_holds() is False  # its function is gone
    with monkeypatch.context() as patched:
        patched.setattr(Application, "_shown", lambda self, doc, number: remember("a"))
        assert not verdict.still_holds()
        assert not analyse(application.format).pure
    assert verdict.still_holds()
    del application
    gc.collect()
    assert not verdict.still_holds()


def test_constants_with_code_in_them_are_not_known() -> None:
    jinja = PromptTemplate.from_template("{a}").model_copy(update={"template_format": "jinja2"})
    partial = PromptTemplate(template="{a}", input_variables=[], partial_variables={"a": lambda: remember("a")})
    for prompt in (jinja, partial, ChatPromptTemplate.from_template("{a}")):
        assert not analyse(_formatting(prompt)).pure
    large = list(range(2000))
    assert not analyse(lambda x: x in large).pure
    assert not analyse(lambda x: loads(x, allowed_objects="all")).pure
    assert not analyse(lambda x: loads(x, secrets_from_env=True)).pure
    assert not analyse(lambda x: collections.defaultdict(lambda: remember("a"))).pure
    assert not analyse(lambda x: format_document(x, x)).pure


def _formatting(prompt: Any) -> Callable[[Any], Any]:
    return lambda x: prompt.format(a=x)


# --- what only stock does -------------------------------------------------------------------------------------------


def tells(x: Any) -> Any:
    print(f"got {len(x)}", end="", flush=True)
    logger.info("got %d", len(x))
    return x


UNORDERED: list[tuple[Callable[..., Any], str]] = [
    (lambda x: print(x), "prints"),
    (lambda x: [print(x), logging.warning("%s", x)], "prints and logs"),
    (lambda x: sorted(x["a"], key=print), "prints"),
    (lambda x: shorten(tells(x)), "prints and logs"),
    (lambda x: logger.exception(x, extra={"a": x["b"]}), "logs"),
    (lambda x: {**x, "today": datetime.datetime.now().strftime("%Y")}, "reads the clock"),
    (lambda x: (datetime.date.today().isoformat(), time.time()), "reads the clock"),
    (lambda x: str(uuid.uuid4()), "draws random numbers"),
    (lambda x: os.getenv("HOME", x["a"]), "reads the environment"),
    (tells, "prints and logs"),
    (print, "prints"),
]


@pytest.mark.parametrize(("func", "reason"), UNORDERED)
def test_unordered(func: Callable[..., Any], reason: str) -> None:
    verdict = analyse(func)
    assert (verdict.pure, verdict.unordered) == (False, True), verdict
    assert verdict.reason == reason
    assert verdict.still_holds()


@pytest.mark.parametrize(
    "func",
    [
        lambda x: print(x, file=x["file"]),
        lambda x: (print(x), remember(x)),
        lambda x: (print(x), x["a"].append(1)),
        lambda x: logger.addHandler(x),
        lambda x: logger.handlers,
        lambda x: [logger],
        lambda x: time.sleep(x),
    ],
)
def test_other_effects_keep_their_order(func: Callable[[Any], Any]) -> None:
    verdict = analyse(func)
    assert not verdict.pure
    assert not verdict.unordered, verdict


# --- models ---------------------------------------------------------------------------------------------------------


class Grade(BaseModel):
    binary_score: str = "yes"
    parts: list[Grade] = []

    @field_validator("binary_score")
    @classmethod
    def _lower(cls, value: str) -> str:
        return value.lower()

    def as_text(self) -> str:
        return remember(self.binary_score)


class Frozen(Grade):
    model_config = ConfigDict(frozen=True, extra="allow")


def test_parsed_models_are_plain_data() -> None:
    assert is_plain([Grade(parts=[Grade()]), Frozen(more="a", binary_score="No")])  # type: ignore[call-arg]
    assert is_plain([Grade.model_construct(binary_score=Level.HIGH), Intent.CHAT])
    assert not is_plain(Counting.ONE)
    assert not analyse(lambda x: x["a"] == Counting.ONE).pure
    assert not is_plain(Grade.model_construct(binary_score=LOUD))
    assert not is_plain(Frozen(more=LOUD))  # type: ignore[call-arg]


class _Property(Grade):
    @property
    def score(self) -> str:
        return remember("a")


class _Computed(Grade):
    @computed_field  # type: ignore[prop-decorator]
    @property
    def score(self) -> str:
        return remember("a")


class _Serialized(Grade):
    @field_serializer("binary_score")
    def _shown(self, value: str) -> str:
        return remember(value)


class _Equal(Grade):
    def __eq__(self, other: object) -> bool:
        return bool(remember("a"))


class _Found(Grade):
    def __getattr__(self, name: str) -> str:
        return remember(name)


class _Get(Grade):
    def get(self, name: str) -> str:
        return remember(name)


class _Descriptor:
    def __get__(self, obj: Any, kind: Any = None) -> str:
        return remember("a")


class _Described(Grade):
    score = _Descriptor()  # type: ignore[assignment,misc,unused-ignore]
    model_config = ConfigDict(ignored_types=(_Descriptor,))


class _Private(Grade):
    _hidden: Any = LOUD


@pytest.mark.parametrize("kind", [_Property, _Computed, _Serialized, _Equal, _Found, _Get, _Described, _Private, Loud])
def test_models_whose_use_runs_code_are_not(kind: type) -> None:
    assert not is_plain([kind()])
