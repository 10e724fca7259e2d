"""Same answer where a user does what nobody expects: values, functions, components that are not what they seem."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
from langchain_classic.retrievers import ContextualCompressionRetriever, MultiQueryRetriever
from langchain_classic.retrievers.document_compressors import CrossEncoderReranker
from langchain_core.cross_encoders import BaseCrossEncoder
from langchain_core.messages import AIMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables import RunnableLambda, RunnableParallel, RunnablePassthrough, RunnablePick
from langchain_core.runnables.config import ensure_config
from pipelines import DIRECT, QUESTION, ask, echo, same, store

from fineflow import external, optimize
from fineflow.testing.differential import observe
from fineflow.testing.langchain import FakeChat, FakeReranker


class Telling:
    """A value that notes when somebody turns it into text."""

    def __init__(self, log: list[Any]) -> None:
        self.log = log

    def __deepcopy__(self, memo: Any) -> Telling:
        return self

    def __str__(self) -> str:
        self.log.append("str")
        return "telling"

    def __format__(self, spec: str) -> str:
        self.log.append("format")
        return "telling"

    def __eq__(self, other: object) -> bool:
        self.log.append("eq")
        return self is other

    def __hash__(self) -> int:
        return 1


def test_values_of_classes_of_the_users_are_not_touched_early() -> None:
    def make(log: list[Any]) -> Any:
        one = RunnablePassthrough.assign(a=ask("{question}") | FakeChat(answers=echo) | StrOutputParser())
        two = RunnablePassthrough.assign(b=RunnableLambda(lambda x: str(x["value"])), log=lambda x: log.append("step"))
        return one | two | RunnablePassthrough.assign(c=ask("{value} {a}") | FakeChat(answers=echo) | StrOutputParser())

    for entry in DIRECT:
        logs: list[list[Any]] = [[], []]
        observe(make(logs[0]), entry, {**QUESTION, "value": Telling(logs[0])}, handler=None)
        mine = optimize(make(logs[1]), strict=True, eager=True)
        observe(mine, entry, {**QUESTION, "value": Telling(logs[1])}, handler=None)
        assert sorted(logs[0]) == sorted(logs[1]), entry


def test_an_iterator_is_consumed_once() -> None:
    for entry in DIRECT:
        values = []
        for optimized in (False, True):
            chain = RunnablePassthrough.assign(
                a=RunnableLambda(lambda x: ", ".join(x["names"])) | ask("{question}") | FakeChat(answers=echo)
            ) | RunnablePassthrough.assign(b=ask("{question}") | FakeChat(answers=echo))
            mine = optimize(chain, strict=True, eager=True) if optimized else chain
            values.append(observe(mine, entry, {**QUESTION, "names": iter(["one", "two"])}, handler=None).error)
        assert values[0] == values[1]
    chain = RunnableParallel(
        names=RunnableLambda(lambda x: ", ".join(x["names"])), a=RunnablePick("question") | FakeChat(answers=echo)
    ) | RunnablePassthrough.assign(b=ask("{names} {a}") | FakeChat(answers=echo) | StrOutputParser())
    found = optimize(chain, strict=True, eager=True).invoke({**QUESTION, "names": iter(["one", "two"])})
    assert found["names"] == "one, two"


def check(value: Any) -> Any:
    if "forbidden" in value["question"]:
        raise ValueError("forbidden")
    return value["question"]


def test_a_pure_function_that_raises_is_a_guard() -> None:
    for entry in DIRECT:
        model = FakeChat(answers=echo)
        chain = RunnablePassthrough.assign(checked=RunnableLambda(check)) | RunnablePassthrough.assign(
            a=ask("{question}") | model
        )
        seen = observe(optimize(chain, strict=True, eager=True), entry, {"question": "a forbidden one"})
        assert seen.error is not None and model.meter.calls == 0, entry


@pytest.mark.parametrize("entry", [*DIRECT, "stream", "astream"])
def test_work_behind_a_guard_has_never_started(entry: str) -> None:
    log: list[str] = []

    def guard(value: Any) -> Any:
        log.append("guard")
        raise PermissionError("no")

    model, documents = FakeChat(answers=echo), store()
    behind = {"b": ask("{question}") | model, "c": RunnablePick("question") | documents.as_retriever()}
    chain = (
        RunnablePassthrough.assign(a=ask("{question}") | FakeChat(answers=echo) | StrOutputParser())
        | RunnableLambda(guard)
        | RunnablePassthrough.assign(**behind)
    )
    seen = observe(optimize(chain, strict=True, eager=True), entry, QUESTION)
    assert seen.error is not None and seen.error["type"] == "PermissionError"
    assert (log, model.meter.calls, documents.meter.calls) == (["guard"], 0, 0)


def test_a_guard_in_a_branch_of_its_own() -> None:
    def guard(value: Any) -> Any:
        raise PermissionError("no")

    for entry in DIRECT:
        model, retriever = FakeChat(answers=echo), store()
        chain = RunnablePassthrough.assign(_=RunnableLambda(guard)) | RunnablePassthrough.assign(
            b=ask("{question}") | model, c=RunnablePick("question") | retriever.as_retriever()
        )
        observe(optimize(chain, strict=True, eager=True), entry, QUESTION)
        assert (model.meter.calls, retriever.meter.calls) == (0, 0), entry


def test_an_early_failure_is_stocks_whatever_has_been_started() -> None:
    for entry in DIRECT:
        late = FakeChat(answers=echo)

        def make(late: FakeChat = late) -> Any:
            early = FakeChat(answers=lambda messages: ConnectionError("down"))
            return RunnablePassthrough.assign(a=ask("{question}") | early) | RunnablePassthrough.assign(
                b=ask("{question}") | late
            )

        same(make, entries=(entry,))
        assert late.meter.calls <= 2  # one for each optimized run at most, none for stock


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), StopIteration("s")])
def test_exceptions_that_are_no_errors(error: BaseException) -> None:
    for _ in range(2):  # the second finds the runtime as alive as the first
        outcomes = []
        for optimized in (False, True):

            @external
            class Ending(FakeChat):
                def _generate(self, *args: Any, **kwargs: Any) -> ChatResult:
                    raise error

            chain = RunnablePassthrough.assign(
                a=ask("{question}") | FakeChat(answers=echo)
            ) | RunnablePassthrough.assign(b=ask("{question}") | Ending())
            try:
                (optimize(chain, strict=True) if optimized else chain).invoke(QUESTION)
            except BaseException as found:
                outcomes.append(type(found))
        assert outcomes[0] is outcomes[1]
    plain = RunnablePassthrough.assign(a=ask("{question}") | FakeChat()) | RunnablePassthrough.assign(
        b=ask("{question}") | FakeChat()
    )
    assert optimize(plain, strict=True).invoke(QUESTION)["b"].content == "ok"


@pytest.mark.parametrize("error", [StopAsyncIteration("s"), StopIteration("s"), GeneratorExit("s"), SystemExit(3)])
@pytest.mark.parametrize("entry", ["invoke", "stream"])
def test_exceptions_of_a_stream_that_are_no_errors(entry: str, error: BaseException) -> None:
    outcomes: list[tuple[Any, str]] = []
    for optimized in (False, True):

        @external
        class Ending(FakeChat):
            def _stream(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
                yield from super()._stream(*args, **kwargs)
                raise error

        first = RunnablePassthrough.assign(a=ask("{question}") | FakeChat(answers=echo) | StrOutputParser())
        chain = first | ask("{question}") | Ending(answers=echo) | StrOutputParser()
        mine: Any = optimize(chain, strict=True, eager=True) if optimized else chain
        try:
            list(mine.stream(QUESTION)) if entry == "stream" else mine.invoke(QUESTION)
        except BaseException as found:
            outcomes.append((type(found), str(found)))
        else:
            outcomes.append((None, ""))
    assert outcomes[0] == outcomes[1]


def test_partial_variables_that_the_input_overrides() -> None:
    model: list[FakeChat] = []

    def make() -> Any:
        model.append(FakeChat(answers=echo))
        prompt = ask("{question} {style}").partial(style="plain")
        return RunnablePassthrough.assign(a=prompt | model[-1] | StrOutputParser()) | RunnablePassthrough.assign(
            b=prompt | model[-1] | StrOutputParser()
        )

    same(make, {**QUESTION, "style": "fancy"}, entries=DIRECT)
    same(make, QUESTION, entries=DIRECT)
    assert {m.meter.calls for m in model} == {2}


@pytest.mark.parametrize("given", [True, False])
def test_an_optional_placeholder(given: bool) -> None:
    model: list[FakeChat] = []

    def make() -> Any:
        model.append(FakeChat(answers=echo))
        prompt = ChatPromptTemplate.from_messages(
            [MessagesPlaceholder("history", optional=True), ("human", "{question}")]
        )
        return RunnablePassthrough.assign(a=prompt | model[-1] | StrOutputParser()) | RunnablePassthrough.assign(
            b=prompt | model[-1] | StrOutputParser()
        )

    same(make, {**QUESTION, "history": [("human", "hi"), AIMessage("hello")]} if given else QUESTION, entries=DIRECT)
    assert {m.meter.calls for m in model} == {2}


def test_a_cross_encoder_of_the_users_waits_behind_a_guard() -> None:
    calls: list[Any] = []

    @external
    class Remote(BaseCrossEncoder):
        def score(self, text_pairs: list[tuple[str, str]]) -> list[float]:
            calls.append(text_pairs)
            return [0.0 for _ in text_pairs]

    def guard(value: Any) -> Any:
        raise PermissionError("no")

    chain = RunnablePassthrough.assign(_=RunnableLambda(guard)) | RunnablePassthrough.assign(
        docs=RunnablePick("question")
        | ContextualCompressionRetriever(
            base_retriever=store().as_retriever(), base_compressor=CrossEncoderReranker(model=Remote())
        )
    )
    for entry in DIRECT:
        observe(optimize(chain, strict=True, eager=True), entry, QUESTION)
    assert not calls


class Counting(FakeChat):
    """Its answers depend on the order of its calls, which is nowhere stored to an attribute."""

    said: Any = None

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=AIMessage(self.said.pop(0)))])

    async def _agenerate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=AIMessage(self.said.pop(0)))])


def test_a_model_whose_answers_are_used_up() -> None:
    def make() -> Any:
        model = Counting(said=["one", "two", "three"])
        return (
            RunnablePassthrough.assign(a=ask("{question}") | FakeChat(answers=echo) | model | StrOutputParser())
            | RunnablePassthrough.assign(b=ask("{question}") | model | StrOutputParser())
            | RunnablePassthrough.assign(c=ask("{question}") | model | StrOutputParser())
        )

    same(make, entries=DIRECT)


def test_equal_prompts_to_one_model_stay_as_many_calls() -> None:
    calls = []
    for optimized in (False, True):
        model = FakeChat(answers=echo)
        chain = RunnablePassthrough.assign(
            a=ask("{question}") | model | StrOutputParser(), b=ask("{question}") | model | StrOutputParser()
        ) | RunnablePassthrough.assign(c=ask("{question}") | model | StrOutputParser())
        mine = optimize(chain, strict=True, eager=True) if optimized else chain
        mine.invoke(QUESTION)
        asyncio.run(mine.ainvoke(QUESTION))
        calls.append(model.meter.calls)
    assert calls == [6, 6]


@external
class Configured(FakeChat):
    """A model that looks at the config of the call it is in."""

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=AIMessage(_config_seen()))])

    async def _agenerate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=AIMessage(_config_seen()))])


def _config_seen() -> str:
    config = ensure_config()
    return repr((sorted(config["configurable"].items()), sorted(config["metadata"].items()), config["recursion_limit"]))


def test_components_see_the_config_of_the_call() -> None:
    def make() -> Any:
        return RunnablePassthrough.assign(a=ask("{question}") | Configured()) | RunnablePassthrough.assign(
            b=ask("{question}") | Configured()
        )

    config = {"configurable": {"user": "u1"}, "metadata": {"m": 1}, "recursion_limit": 7}
    same(make, config=config, entries=DIRECT)


def test_a_component_that_a_step_sets_up_differently() -> None:
    def make() -> Any:
        reranker = FakeReranker(top_n=3)

        def fewer(value: Any) -> Any:
            reranker.top_n = 1
            return value

        reranked = ContextualCompressionRetriever(base_retriever=store().as_retriever(), base_compressor=reranker)
        return RunnablePassthrough.assign(docs=RunnablePick("question") | reranked, b=RunnableLambda(fewer)), []

    def after() -> Any:
        reranker = FakeReranker(top_n=3)

        def fewer(value: Any) -> Any:
            reranker.top_n = 1
            return "fewer"

        several = MultiQueryRetriever.from_llm(store().as_retriever(), FakeChat(default="one\ntwo"))
        reranked = ContextualCompressionRetriever(base_retriever=several, base_compressor=reranker)
        return RunnablePassthrough.assign(b=RunnableLambda(fewer)) | RunnablePassthrough.assign(
            docs=RunnablePick("question") | reranked
        )

    same(after, entries=DIRECT)


@pytest.mark.parametrize("kind", ["branch", "tap", "step"])
def test_a_step_that_changes_the_dict_does_not_make_more_calls(kind: str) -> None:
    def change(value: Any) -> Any:
        value["question"] = "changed"
        value["a"] = "changed too"
        return value if kind == "step" else "done"

    changing: Any = {
        "branch": RunnablePassthrough.assign(b=RunnableLambda(change)),
        "tap": RunnablePassthrough(change),
        "step": RunnableLambda(change),
    }[kind]
    model: list[FakeChat] = []

    def make() -> Any:
        model.append(FakeChat(answers=echo))
        one = RunnablePassthrough.assign(a=ask("{question}") | model[-1] | StrOutputParser())
        return one | changing | RunnablePassthrough.assign(c=ask("{question} {a}") | model[-1] | StrOutputParser())

    same(make, entries=DIRECT)
    assert {m.meter.calls for m in model} == {2}


def test_reading_does_not_make_a_dict_grow() -> None:
    for entry in DIRECT:
        seen = []
        for optimized in (False, True):
            value: Any = defaultdict(lambda: "made up", QUESTION)
            one = RunnablePassthrough.assign(a=ask("{question}") | FakeChat(answers=echo))
            two = {"b": RunnablePick("missing"), "c": ask("{question} {other}") | FakeChat(answers=echo)}
            chain = one | RunnablePassthrough.assign(**two)
            mine = optimize(chain, strict=True, eager=True) if optimized else chain
            seen.append((observe(mine, entry, value).error, sorted(value)))
        assert seen[0] == seen[1]


def test_a_pure_function_asks_for_a_key_that_is_not_there() -> None:
    def make() -> Any:
        return RunnablePassthrough.assign(a=ask("{question}") | FakeChat(answers=echo)) | RunnablePassthrough.assign(
            b=RunnableLambda(lambda x: x.get("missing", "nothing")) | FakeChat(answers=echo)
        )

    same(make)
