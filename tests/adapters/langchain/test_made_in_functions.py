"""Components that a user function reaches by objects of its own, or makes itself: their calls run ahead."""

from __future__ import annotations

import asyncio
import json
import operator
from enum import Enum
from functools import partial
from operator import itemgetter
from typing import Any

import pytest
from benchmarks.public import community_apps as apps
from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, PromptTemplate
from langchain_core.runnables import RunnableLambda, RunnableParallel, RunnablePassthrough, RunnableSequence
from pydantic import BaseModel, Field

import fineflow
from fineflow.adapters.inner_calls.entry_wrappers import claims_of
from fineflow.adapters.inner_calls.made_components import MadeComponents
from fineflow.testing import virtual_threads
from fineflow.testing.differential import assert_same
from fineflow.testing.gates import Meter
from fineflow.testing.langchain import FakeChat, FakeVectorStore, prompt_text

needs_threads = pytest.mark.skipif(not virtual_threads.available, reason="needs /proc/self/task")

ONE = ("invoke", "ainvoke", "stream", "astream")
TEXTS = ["one", "two", "three", "four"]


class Grade(BaseModel):
    score: int = Field(ge=0, le=10, description="relevance")


def took(func: Any, value: Any, **options: Any) -> tuple[Any, float, float]:
    """Returns the answer, and the virtual seconds of stock and of the optimized function."""
    stock = virtual_threads.run(lambda: RunnableLambda(func).invoke(value))
    fast = fineflow.optimize(RunnableLambda(func), strict=True, **options)
    ours = virtual_threads.run(lambda: fast.invoke(value))
    assert ours.value == stock.value
    return ours.value, stock.seconds, ours.seconds


# --- reached through objects ----------------------------------------------------------------------------------------


class Grader:
    def __init__(self, model: Any) -> None:
        self.chain = ChatPromptTemplate.from_template("grade {text}") | model | StrOutputParser()

    def grade(self, texts: list[str]) -> list[str]:
        return [self.chain.invoke({"text": text}) for text in texts]


class Pipeline:
    def __init__(self, model: Any) -> None:
        self.grader = Grader(model)
        self.strategies = {"grade": Grader(model), "none": None}

    def nested(self, texts: list[str]) -> list[str]:
        return self.grader.grade(texts)

    def chosen(self, texts: list[str]) -> list[str]:
        strategy = self.strategies["grade" if texts else "none"]
        return strategy.grade(texts) if strategy is not None else []


@needs_threads
@pytest.mark.parametrize("name", ["nested", "chosen"])
def test_objects_inside_objects(name: str) -> None:
    model = FakeChat(prefill=1)
    assert took(getattr(Pipeline(model), name), TEXTS)[1:] == (4, 1)


@needs_threads
def test_a_single_call_of_a_chain_with_something_to_gain() -> None:
    model = FakeChat(prefill=1)
    say = ChatPromptTemplate.from_template("{text}") | model | StrOutputParser()
    chain = RunnablePassthrough.assign(a=say) | RunnablePassthrough.assign(b=say)

    def ask(text: str) -> str:
        return chain.invoke({"text": text})["b"].strip()

    assert took(ask, "x")[1:] == (2, 1)


@needs_threads
def test_a_chain_behind_side_effects_still_gains_by_itself() -> None:
    model = FakeChat(prefill=1)
    say = ChatPromptTemplate.from_template("{text}") | model | StrOutputParser()
    chain = RunnablePassthrough.assign(a=say) | RunnablePassthrough.assign(b=say)
    written: list[str] = []

    def ask(texts: list[str]) -> list[Any]:
        answers = []
        for text in texts:
            written.__iadd__([text])  # may change what follows
            answers.append(chain.invoke({"text": text}))
        return answers

    assert took(ask, TEXTS[:2])[1:] == (4, 2)
    assert written == TEXTS[:2] * 2


@needs_threads
@pytest.mark.parametrize("entry", ["invoke", "ainvoke"])
def test_documents_that_were_found_are_changed_after_each_answer(entry: str) -> None:
    """As a feedback loop does: results are the function's own to change, and later walks read them as they were."""
    model = FakeChat(answers=lambda messages: "yes" if "one" in messages[-1].text else "no", prefill=1)
    store = FakeVectorStore.from_texts(TEXTS, FakeVectorStore().embedding, latency=1)
    feedback = ["a", "b"]

    def adjust(query: str) -> list[Any]:
        docs = store.similarity_search(query, k=4)
        for doc in docs:
            doc.metadata["score"] = 1.0
        for doc in docs:
            relevant = [each for each in feedback if model.invoke(f"{doc.page_content} {each}").text == "yes"]
            if relevant:
                doc.metadata["score"] *= len(relevant) / 3
        scores = ", ".join(f"{doc.metadata['score']:.2f}" for doc in docs)
        return [model.invoke(scores).text, sorted(docs, key=lambda doc: -doc.metadata["score"])]

    app = RunnableLambda(adjust)
    fast = fineflow.optimize(app, strict=True)

    def call(app: Any) -> Any:
        return app.invoke("one") if entry == "invoke" else asyncio.run(app.ainvoke("one"))

    stock = virtual_threads.run(lambda: call(app))
    asked, model.meter.calls = model.meter.calls, 0
    ours = virtual_threads.run(lambda: call(fast))
    assert ours.value == stock.value
    assert model.meter.calls == asked == 9
    assert (stock.seconds, ours.seconds) == (10, 3)


# --- made in the function -------------------------------------------------------------------------------------------


@needs_threads
def test_prompts_are_formatted() -> None:
    model = FakeChat(prefill=1)
    prompt = PromptTemplate.from_template("grade {text}")

    def ask(texts: list[str]) -> list[str]:
        chat = ChatPromptTemplate.from_messages([("system", "grade"), ("human", "{text}")])
        answers = [model.invoke(prompt.format(text=text)).text for text in texts]
        answers += [model.invoke(chat.format_messages(text=text)).text for text in texts]
        return answers + [model.invoke(chat.format_prompt(text=text).to_messages()).text for text in texts]

    assert took(ask, TEXTS)[1:] == (12, 1)


@needs_threads
def test_bound_models() -> None:
    model = FakeChat(answers=lambda messages: "a b stop c", prefill=1)

    def ask(texts: list[str]) -> list[str]:
        held = model.bind(stop=["stop"])
        return [(ChatPromptTemplate.from_template("{text}") | held).invoke({"text": text}).text for text in texts]

    answer, stock, ours = took(ask, TEXTS)
    assert (stock, ours) == (4, 1)
    assert answer == ["a b "] * 4


class Grades(BaseModel):
    scores: list[int] = Field(description="of each", examples=[[1, 2], [3]])


@needs_threads
@pytest.mark.parametrize("kind", [Grade, Grades])
def test_structured_output_made_in_the_function(kind: Any) -> None:
    services = apps.load("services")
    model = services.chat_model(lambda prompt: json.dumps({"score": len(prompt) % 10, "scores": [len(prompt)]}), 1)

    def ask(texts: list[str]) -> list[str]:
        scores = []
        for text in texts:
            chain = PromptTemplate.from_template("score {text}") | model.with_structured_output(kind)
            scores.append(str(chain.invoke({"text": text})))
        return sorted(scores)

    assert took(ask, TEXTS)[1:] == (4, 1)


@needs_threads
@pytest.mark.parametrize("eager", [False, True])
def test_sequences_made_in_the_function_ask_once(eager: bool) -> None:
    claims_of(RunnableSequence, "invoke")  # as another app in the process may have had it done
    services, asked = apps.load("services"), []

    def says(prompt: str) -> str:
        asked.append(prompt)
        return json.dumps({"score": len(prompt) % 10})

    model = services.chat_model(says, 1)

    def ask(texts: list[str]) -> list[str]:
        chain = {"text": RunnablePassthrough()} | PromptTemplate.from_template("score {text}")
        return [str((chain | model.with_structured_output(Grade)).invoke(text)) for text in texts]

    assert took(ask, TEXTS, eager=eager)[1:] == (4, 1)
    assert len(asked) == 8  # half of them stock's


def _join(docs: list[Document]) -> str:
    return "; ".join(doc.page_content for doc in docs)


def _composed(model: Any, retriever: Any, form: str) -> Any:
    prompt = ChatPromptTemplate.from_template("{context} {question}")
    searched = {"context": retriever | _join, "question": RunnablePassthrough()}
    if form == "dict":
        return searched | prompt | model | StrOutputParser()
    if form == "parallel":
        return RunnableParallel(searched) | prompt | model | (lambda message: message.text.upper())
    if form == "assign":
        taken = {"question": itemgetter("question"), "context": itemgetter("context") | RunnableLambda(_join)}
        with_documents = RunnablePassthrough.assign(context=itemgetter("question") | retriever)
        return {"question": lambda text: text} | with_documents | taken | prompt | model | StrOutputParser()
    if form == "methods":
        answered = RunnableParallel(question=RunnablePassthrough()).assign(context=lambda given: given["question"])
        return answered.pipe(prompt).pipe(model, StrOutputParser())
    return RunnableSequence(RunnableParallel(searched), prompt, model, StrOutputParser())


@needs_threads
@pytest.mark.parametrize("awaits", [False, True])
@pytest.mark.parametrize("form", ["dict", "parallel", "assign", "methods", "sequence"])
def test_chains_composed_in_the_function(form: str, awaits: bool) -> None:
    model, store = FakeChat(answers=prompt_text, prefill=1), FakeVectorStore()
    store = FakeVectorStore.from_texts(TEXTS, store.embedding, latency=0.25)

    def ask(texts: list[str]) -> list[str]:
        return [str(_composed(model, store.as_retriever(), form).invoke(text)) for text in texts]

    async def aask(texts: list[str]) -> list[str]:
        chain = _composed(model, store.as_retriever(), form)
        return [str(await chain.ainvoke(text)) for text in texts]

    answers, seconds = [], []
    for optimized in (False, True):
        app: Any = RunnableLambda(aask if awaits else ask)
        app = fineflow.optimize(app, strict=True) if optimized else app
        before = model.meter.calls
        call = (lambda app=app: asyncio.run(app.ainvoke(TEXTS))) if awaits else partial(app.invoke, TEXTS)
        ran = virtual_threads.run(call)
        answers.append(ran.value)
        seconds.append(ran.seconds)
        assert model.meter.calls == before + 4
    search = 0 if form == "methods" else 0.25
    assert answers[0] == answers[1]
    assert seconds == [4 * (1 + search), 1 + search]


def test_what_a_function_makes_is_planned_once() -> None:
    made: list[Any] = []
    model = FakeChat(answers=prompt_text)

    def ask(texts: list[str]) -> list[str]:
        held = PromptTemplate.from_template("{text} " + texts[0]) | model.bind(stop=["x"])
        return [held.invoke({"text": text}).text for text in texts]

    fast = fineflow.optimize(
        RunnableLambda(ask), strict=True, eager=True, passes=[lambda graph: made.append(1) or graph]
    )
    expected = ask(TEXTS)
    assert fast.invoke(TEXTS) == expected
    first = len(made)
    assert fast.invoke(TEXTS) == expected
    assert len(made) == first
    assert fast.invoke(TEXTS[1:]) == ask(TEXTS[1:])
    assert len(made) > first  # another prompt


@needs_threads
def test_models_that_change_between_calls_are_asked_as_they_are() -> None:
    services, settings = apps.load("services"), []

    def says(prompt: str) -> str:
        settings.append(model.temperature)
        return json.dumps({"score": 1})

    model = services.chat_model(says, 1)

    def ask(texts: list[str]) -> list[str]:
        chain = PromptTemplate.from_template("score {text}") | model.with_structured_output(Grade)
        return [str(chain.invoke({"text": text})) for text in texts]

    fast = fineflow.optimize(RunnableLambda(ask), strict=True)
    for temperature in (0.1, 0.2):
        model.temperature = temperature
        assert virtual_threads.run(lambda: fast.invoke(TEXTS)).seconds == 1
    assert settings == [0.1] * 4 + [0.2] * 4


@needs_threads
def test_models_made_in_the_function() -> None:
    meters = Meter(), Meter()

    def ask(texts: list[str]) -> list[str]:
        model = FakeChat(prefill=1, meter=meters[0])
        other = FakeChat(prefill=1, meter=meters[1], default="other")
        answers = []
        for text in texts:
            answers.append((ChatPromptTemplate.from_template("say {text}") | model).invoke({"text": text}).text)
            answers.append(other.bind(stop=["x"]).invoke(text).text)
        return answers

    answer, stock, ours = took(ask, TEXTS)
    assert answer == ["ok", "other"] * 4
    assert stock == 8
    assert ours == 2  # the first call of each model shows which one it is
    assert [meter.calls for meter in meters] == [8, 8]


@needs_threads
def test_models_of_which_only_one_is_made() -> None:
    meter = Meter()

    def ask(texts: list[str]) -> list[str]:
        many = len(texts) > 2
        model = FakeChat(prefill=1, meter=meter) if many else FakeChat(prefill=1, meter=meter, default="few")
        return [model.invoke(text).text for text in texts]

    assert took(ask, TEXTS)[1:] == (4, 1)
    assert took(ask, TEXTS[:2])[0] == ["few", "few"]
    assert meter.calls == 12


@needs_threads
def test_helpers_that_make_a_model_in_each_call() -> None:
    def summarize(text: str) -> str:
        model = FakeChat(prefill=1, default="fine")
        return (ChatPromptTemplate.from_template("say {text}") | model.bind(stop=["x"])).invoke({"text": text}).text

    def ask(texts: list[str]) -> list[str]:
        return [summarize(text) for text in texts]

    assert took(ask, TEXTS) == (["fine"] * 4, 4, 1)


def test_models_that_are_changed_after_they_were_made_are_not_one() -> None:
    def summarize(text: str) -> str:
        model = FakeChat(prefill=0.003)
        if len(text) > 3:
            model.default = "long"
        return model.invoke(text).text

    def ask(texts: list[str]) -> list[str]:
        return [summarize(text) for text in texts]

    assert_same(lambda: RunnableLambda(ask), TEXTS, entries=ONE, strict=True)
    assert ask(TEXTS) == ["ok", "ok", "long", "long"]


@needs_threads
def test_filters_that_the_function_defines_are_left_to_stock() -> None:
    store = FakeVectorStore.from_texts(TEXTS, FakeVectorStore().embedding, latency=1)

    def find(texts: list[str]) -> list[str]:
        found = []
        for text in texts:
            found += store.similarity_search(text, k=1, filter=lambda doc, text=text: doc.page_content != text)
        return [doc.page_content for doc in found]

    assert took(find, TEXTS)[1:] == (4, 4)
    assert store.meter.calls == 8


class Level(Enum):
    DOCUMENT = 1
    FRAGMENT = 2


@pytest.mark.parametrize("by_keyword", [False, True])
def test_what_was_made_of_a_part_is_not_used_when_the_part_has_changed(by_keyword: bool) -> None:
    made, part = MadeComponents(), FakeChat(prefill=1)
    args, named = ([], {"part": part}) if by_keyword else ([part], {})
    made.keep(RunnableSequence, "", args, named, "made")
    assert made.find(RunnableSequence, "", args, named, operator.eq) == "made"
    part.prefill = 2
    assert made.find(RunnableSequence, "", args, named, operator.eq) is None


@needs_threads
def test_enums_are_compared() -> None:
    model, level = FakeChat(prefill=1), Level.DOCUMENT

    def ask(texts: list[str]) -> list[str]:
        return [model.invoke(text).text for text in texts if level == Level.DOCUMENT and level != Level.FRAGMENT]

    assert took(ask, TEXTS)[1:] == (4, 1)


def _app() -> tuple[Any, list[Any]]:
    store = FakeVectorStore.from_texts(TEXTS, FakeVectorStore().embedding)
    log: list[Any] = []

    def rerank(query: str) -> list[Document]:
        model = FakeChat(answers=lambda messages: str(len(messages[-1].text)), prefill=0.003)
        scored = []
        for doc in store.similarity_search(query, k=4):
            log.append(doc.page_content)
            prompt = PromptTemplate.from_template("{query} {doc}").format(query=query, doc=doc.page_content)
            scored.append((doc, int(model.invoke(prompt).text)))
        return [doc for doc, _ in sorted(scored, key=lambda pair: pair[1])]

    return RunnableLambda(rerank) | (lambda docs: [doc.page_content for doc in docs]), log


def test_is_stock() -> None:
    assert_same(_app, "two", entries=ONE, strict=True)
    assert_same(_app, "two", entries=("batch", "abatch"), ordered_log=False, strict=True)


def test_a_model_that_fails() -> None:
    def made() -> Any:
        def ask(texts: list[str]) -> list[str]:
            model = FakeChat(answers={"three": ValueError("no")}, prefill=0.003)
            return [model.invoke(text).text for text in texts]

        return RunnableLambda(ask)

    assert_same(made, TEXTS, entries=ONE, strict=True)
