"""ChatOpenAI and OpenAI on a server: answers, errors and requests as in stock; prompts are sent ahead where allowed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("langchain_openai")

import httpx2
import openai
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.output_parsers import CommaSeparatedListOutputParser, StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder, PromptTemplate
from langchain_core.runnables import Runnable, RunnableBranch, RunnableLambda, RunnableParallel, RunnablePassthrough
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel

import fineflow
from fineflow.adapters.langchain.models.servers import served
from fineflow.langchain import ChatEngine
from fineflow.runtime import servers
from fineflow.runtime.loop.submission import run_async, run_sync
from fineflow.testing.differential import ALL, differences, observe
from fineflow.testing.gates import Gate
from fineflow.testing.langchain import FakeChat
from fineflow.testing.server import Fault, OpenAIServer, Received

RULES = "Answer from the documents alone, in one sentence, and say so where they do not tell. " * 8
VALUE: dict[str, Any] = {
    "question": "What is Torstad known for?",
    "document": RULES * 2,
    "history": [HumanMessage(RULES), AIMessage("Understood.")],
}


def answered(prompt: str) -> str:
    """Depends on the whole prompt."""
    if "LIST" in prompt:
        return "salt, wood, stone"
    return f"Answer {sum(map(ord, prompt)) % 997} of {len(prompt)} characters."


class Fact(BaseModel):
    place: str
    known_for: str


@pytest.fixture
def server() -> Iterator[OpenAIServer]:
    with OpenAIServer(answered) as found:
        yield found
        servers.forget(found.url)


def chat(server: OpenAIServer, **options: Any) -> ChatOpenAI:
    return ChatOpenAI(**{"base_url": server.url, "api_key": "secret", "model": "tiny", "max_retries": 0, **options})


def llm(server: OpenAIServer, **options: Any) -> OpenAI:
    return OpenAI(**{"base_url": server.url, "api_key": "secret", "model": "tiny", "max_retries": 0, **options})


def ask(text: str) -> ChatPromptTemplate:
    return ChatPromptTemplate.from_template(text)


def late(gate: Gate | None = None) -> Runnable[Any, Any]:
    return ask("search {question}") | FakeChat(default="Torstad has salt mines.", gate=gate) | StrOutputParser()


def answers(model: Runnable[Any, Any], gate: Gate | None = None) -> Runnable[Any, Any]:
    """The beginning of the prompt is known while what is found is not."""
    prompt = ask(RULES + "{question}\n{found}")
    return RunnablePassthrough.assign(found=late(gate)) | prompt | model


def conversation(s: OpenAIServer, gate: Gate | None = None) -> Runnable[Any, Any]:
    parts = [("system", "Be kind."), MessagesPlaceholder("history"), ("human", "{found}\n\n{question}")]
    prompt = ChatPromptTemplate.from_messages(parts)
    return RunnablePassthrough.assign(found=late(gate)) | prompt | chat(s) | StrOutputParser()


def siblings(s: OpenAIServer) -> Runnable[Any, Any]:
    found = {word: ask("{document} " + word + " {question}") | chat(s) for word in ("Who", "What")}
    return RunnableParallel(**found)


def mapped(s: OpenAIServer) -> Runnable[Any, Any]:
    items = ask("LIST {question}") | chat(s) | CommaSeparatedListOutputParser()
    return items | (ask(RULES + "{item}") | chat(s) | StrOutputParser()).map()


def completion(s: OpenAIServer, gate: Gate | None = None) -> Runnable[Any, Any]:
    prompt = PromptTemplate.from_template(RULES + "{question} {found}")
    return RunnablePassthrough.assign(found=late(gate)) | prompt | llm(s)


@tool
def look(place: str) -> str:
    """Looks it up."""
    return place


SHAPES: dict[str, Callable[[OpenAIServer], Runnable[Any, Any]]] = {
    "chat": lambda s: answers(chat(s)),
    "chat that streams": lambda s: answers(chat(s, streaming=True, stream_usage=True)) | StrOutputParser(),
    "conversation": conversation,
    "completion": completion,
    "bound": lambda s: answers(chat(s, temperature=0.5).bind(stop=["of"], seed=3)),
    "tools": lambda s: answers(chat(s).bind_tools([look])),
    "a form": lambda s: answers(chat(s).with_structured_output(Fact, include_raw=True)),
    "logprobs": lambda s: answers(chat(s, logprobs=True, top_logprobs=1, extra_body={"top_k": 5})),
    "siblings": siblings,
    "map": mapped,
}


def bodies(received: list[Received]) -> list[str]:
    return sorted(json.dumps([each.path, each.body], sort_keys=True) for each in received)


def both(server: OpenAIServer, make: Callable[[OpenAIServer], Any], entry: str, *faults: Fault | None) -> None:
    """Stock and optimized: what a caller sees, and what the server was asked for answers."""
    given = [VALUE, VALUE] if "batch" in entry else VALUE
    seen, asked = [], []
    for optimized in (False, True):
        server.received.clear()
        server.faults[:] = faults
        made = make(server)
        seen.append(observe(fineflow.optimize(made, strict=True, eager=True) if optimized else made, entry, given))
        asked.append(bodies(server.answered))
    assert not differences(seen[0], seen[1]), "\n".join(differences(seen[0], seen[1]))
    assert asked[0] == asked[1]


@pytest.mark.parametrize("told", [None, {}, {"warm": True}], ids=["not told", "cold", "warm"])
@pytest.mark.parametrize("shape", SHAPES)
def test_same_answers_and_requests(server: OpenAIServer, shape: str, told: dict[str, Any] | None) -> None:
    if told is not None:
        fineflow.engine(server.url, **told)
    for entry in ALL:
        both(server, SHAPES[shape], entry)
        assert not server.warmed or told


FAULTS: dict[str, tuple[Fault | None, ...]] = {
    "refused": (Fault(400, "no"),),
    "one retry": (Fault(500, headers={"retry-after-ms": "1"}),),
    "all retries": (Fault(503, headers={"retry-after-ms": "1"}),) * 3,
    "too many": (Fault(429, "slow down", {"retry-after-ms": "1"}),) * 2,
    "dropped": (Fault(0, tokens=2),),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("entry", ["invoke", "ainvoke", "stream", "astream"])
def test_errors_and_retries_are_the_clients(server: OpenAIServer, entry: str, fault: str) -> None:
    fineflow.engine(server.url)
    both(server, lambda s: answers(chat(s, max_retries=1)) | StrOutputParser(), entry, *FAULTS[fault])
    both(server, lambda s: completion(s), entry, *FAULTS[fault][:1])


def test_lanes_are_servers(server: OpenAIServer) -> None:
    where = server.url.removeprefix("http://").removesuffix("/v1")
    assert f"on tiny@{where}" in str(fineflow.explain(answers(chat(server))))
    fineflow.optimize(answers(chat(server)), eager=True).invoke(VALUE)
    assert fineflow.statistics().engines[f"tiny@{where}"].batches == 1


def shown(chain: Runnable[Any, Any]) -> str:
    return " ".join(str(fineflow.explain(chain, input=VALUE)).split())


def test_the_plan_says_why_nothing_is_sent_ahead(server: OpenAIServer) -> None:
    chain = answers(chat(server))
    assert "takes whole prompts only" in shown(chain)
    fineflow.engine(server.url)
    assert "fineflow.engine was not given warm=True for tiny@" in shown(chain)
    fineflow.engine(server.url, warm=True)
    assert "what comes before {found} is prefilled at once" in shown(chain)


async def heard(server: OpenAIServer) -> None:
    """Returns when nothing is on its way to the server and back that was sent ahead."""
    async with asyncio.timeout(10):
        while servers.at(server.url).of("tiny").warmed.under_way:  # type: ignore[union-attr]
            await asyncio.sleep(0)


async def sent_ahead(server: OpenAIServer, make: Callable[[Gate], Runnable[Any, Any]], expected: int = 1) -> str:
    """The prompt that is sent ahead while what the rest needs is under way."""
    gate = Gate()
    chain = fineflow.optimize(make(gate), strict=True)
    call = asyncio.create_task(chain.ainvoke(VALUE))
    await gate.arrived()
    await asyncio.to_thread(server.wait, lambda s: [each.ended for each in s.warmed] == ["answered"] * expected)
    assert not server.answered
    await heard(server)
    gate.open()
    await call
    assert len(server.answered) == 1
    return server.warmed[0].prompt


async def test_what_is_known_is_sent_ahead(server: OpenAIServer) -> None:
    fineflow.engine(server.url, warm=True)
    await sent_ahead(server, lambda gate: answers(chat(server), gate))
    ahead, answer = server.received
    assert ahead.body["messages"] == [{"role": "user", "content": RULES + VALUE["question"] + "\n"}]
    assert ahead.body["max_tokens"] == 1 and ahead.body["model"] == "tiny"
    assert ahead.headers["authorization"] == answer.headers["authorization"] == "Bearer secret"
    assert answer.cached > 0.9 * len(RULES)


async def test_vllm_is_sent_open_messages(server: OpenAIServer) -> None:
    server.vllm = True
    fineflow.engine(server.url, warm=True)
    prompt = await sent_ahead(server, lambda gate: conversation(server, gate))
    assert server.answered[0].prompt.startswith(prompt)
    assert prompt.endswith("Understood.</s>\n")
    assert server.answered[0].cached >= len(prompt) - 16


async def test_completions_are_sent_as_text(server: OpenAIServer) -> None:
    fineflow.engine(server.url, warm=True)
    prompt = await sent_ahead(server, lambda gate: completion(server, gate))
    assert prompt == f"{RULES}{VALUE['question']} " and server.warmed[0].path == "/completions"


@pytest.mark.parametrize("vllm", [False, True])
async def test_what_decides_how_a_prompt_is_read_is_sent_with_it(server: OpenAIServer, vllm: bool) -> None:
    server.vllm = vllm
    fineflow.engine(server.url, warm=True)
    model = chat(
        server,
        temperature=0.5,
        extra_body={"chat_template_kwargs": {"enable_thinking": False}},
        default_headers={"X-Team": "blue"},
        default_query={"version": "2"},
        store=True,
        metadata={"who": "me"},
    )
    await sent_ahead(server, lambda gate: answers(model.bind_tools([look]), gate))
    ahead, answer = server.received
    assert ahead.body["tools"] == answer.body["tools"]
    assert ahead.body["chat_template_kwargs"] == {"enable_thinking": False}
    assert ahead.body.get("continue_final_message") is (True if vllm else None)
    assert ahead.headers["x-team"] == "blue"
    assert not {"temperature", "store", "metadata", "stream"} & ahead.body.keys()


async def test_a_message_of_several_parts_goes_ahead_as_a_whole(server: OpenAIServer) -> None:
    fineflow.engine(server.url, warm=True)
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    history = [HumanMessage([{"type": "text", "text": RULES}, image])]
    gate = Gate()
    call = asyncio.create_task(fineflow.optimize(conversation(server, gate)).ainvoke({**VALUE, "history": history}))
    await gate.arrived()
    await asyncio.to_thread(server.wait, lambda s: s.warmed and s.warmed[0].ended)
    gate.open()
    await call
    ahead, answer = (each.body["messages"] for each in server.received)
    assert ahead == answer[:2] and len(ahead[1]["content"]) == 2


def test_a_message_with_something_late_in_its_parts_is_late_itself(server: OpenAIServer) -> None:
    fineflow.engine(server.url, warm=True)
    found = served(chat(server), {})
    assert found is not None
    first, late = HumanMessage(RULES), HumanMessage([{"type": "text", "text": f"{RULES} LATE"}])
    text = found.prompt_text([first, late, HumanMessage("LATE")], late="LATE")
    assert text.partition("LATE")[0] == found.server.write([{"role": "user", "content": RULES}], asks=False)


async def test_the_same_beginning_is_sent_once(server: OpenAIServer) -> None:
    fineflow.engine(server.url, warm=True)
    await sent_ahead(server, lambda gate: answers(chat(server), gate))
    server.received.clear()
    chain = fineflow.optimize(answers(chat(server)), strict=True)
    await chain.ainvoke(VALUE)
    await chain.ainvoke({**VALUE, "question": "Another one?"})
    assert len(server.answered) == 2 and not server.warmed


async def test_queries_at_the_same_time_send_it_once(server: OpenAIServer) -> None:
    server.ahead_gate = Gate()
    fineflow.engine(server.url, warm=True)
    gate = Gate()
    chain = fineflow.optimize(answers(chat(server), gate), strict=True)
    calls = [asyncio.create_task(chain.ainvoke(VALUE)) for _ in range(4)]
    await gate.arrived(4)
    await server.ahead_gate.arrived()
    server.ahead_gate.open()
    gate.open()
    await asyncio.gather(*calls)
    assert len(server.warmed) == 1 and len(server.answered) == 4


async def test_a_cancelled_query_takes_back_what_it_has_sent(server: OpenAIServer) -> None:
    server.ahead_gate = Gate()
    fineflow.engine(server.url, warm=True)
    gate = Gate()
    call = asyncio.create_task(fineflow.optimize(answers(chat(server), gate)).ainvoke(VALUE))
    await server.ahead_gate.arrived()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await asyncio.to_thread(server.wait, lambda s: s.warmed[0].ended == "gone")
    assert not server.answered


async def test_an_answer_does_not_wait_for_what_is_sent_ahead(server: OpenAIServer) -> None:
    server.ahead_gate = Gate()
    fineflow.engine(server.url, warm=True)
    gate = Gate()
    call = asyncio.create_task(fineflow.optimize(answers(chat(server), gate)).ainvoke(VALUE))
    await server.ahead_gate.arrived()
    gate.open()
    assert "Answer" in (await call).content
    await asyncio.to_thread(server.wait, lambda s: s.warmed[0].ended == "gone")


@pytest.mark.parametrize("fault", [Fault(400, "no user message"), Fault(500), Fault(0)])
async def test_a_beginning_that_is_refused_costs_nothing(server: OpenAIServer, fault: Fault) -> None:
    fineflow.engine(server.url, warm=True)
    for number in range(1, 6):
        gate = Gate()
        server.faults[:] = [fault]
        chain = fineflow.optimize(answers(chat(server, max_retries=2), gate), strict=True)
        call = asyncio.create_task(chain.ainvoke(VALUE))
        await gate.arrived()
        if number <= 3:  # after which it is left alone for a while
            await asyncio.to_thread(server.wait, lambda s, n=number: len(s.warmed) == n and s.warmed[-1].ended)  # type: ignore[misc]
            await heard(server)
        server.faults.clear()
        gate.open()
        assert "Answer" in (await call).content
    assert len(server.warmed) == 3
    assert len(server.answered) == 5


async def test_nothing_is_sent_ahead_of_a_guard(server: OpenAIServer) -> None:
    def guard(value: dict[str, Any]) -> dict[str, Any]:
        open("/dev/null").close()  # anything that makes it opaque
        raise PermissionError("not for you")

    fineflow.engine(server.url, warm=True)
    chain = RunnableLambda(guard) | answers(chat(server))
    with pytest.raises(PermissionError):
        await fineflow.optimize(chain, strict=True, eager=True).ainvoke(VALUE)
    assert not server.paths


async def test_nothing_is_sent_ahead_for_an_arm_that_may_not_be_taken(server: OpenAIServer) -> None:
    fineflow.engine(server.url, warm=True)
    remote = ask(RULES + "{question} {judge}") | chat(server)
    local = ask("{question} {judge}") | FakeChat(default="ok")
    routed = RunnableBranch((lambda x: "secret" in x["judge"], local), remote)
    chain = RunnablePassthrough.assign(judge=ask("judge {question}") | FakeChat(default="secret") | StrOutputParser())
    assert "before its arm is chosen" in shown(chain | routed)
    assert (await fineflow.optimize(chain | routed, strict=True, eager=True).ainvoke(VALUE)).content == "ok"
    assert not server.paths


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("entry", ["ainvoke", "invoke", "astream", "stream"])
def test_deeper_requests_say_so(server: OpenAIServer, entry: str, streaming: bool) -> None:
    fineflow.engine(server.url, priority=True)
    model = chat(server, extra_body={"top_k": 5}, streaming=streaming)
    first = RunnablePassthrough.assign(found=ask("first {question}") | model | StrOutputParser())
    chain = first | ask("second {question} {found}") | model | StrOutputParser()
    seen = [observe(each, entry, VALUE) for each in (chain, fineflow.optimize(chain, strict=True, eager=True))]
    assert not differences(*seen)
    assert [each.body.get("priority") for each in server.received[:2]] == [None, None]
    first_, second = (each.body for each in server.received[2:])
    assert first_["priority"] < second["priority"] < 0
    assert first_["top_k"] == second["top_k"] == 5


@pytest.mark.parametrize("entry", ["ainvoke", "astream"])
def test_a_server_that_refuses_priorities_is_told_none(server: OpenAIServer, entry: str) -> None:
    server.priorities = False
    fineflow.engine(server.url, priority=True)
    chain = answers(chat(server)) | StrOutputParser()
    for _ in range(2):
        seen = [observe(each, entry, VALUE) for each in (chain, fineflow.optimize(chain, strict=True, eager=True))]
        assert not differences(*seen)
    assert [each.ended for each in server.received] == ["answered", "refused", "answered", "answered", "answered"]


@pytest.fixture
def narrow() -> Iterator[OpenAIServer]:
    """Works on one request at a time."""
    with OpenAIServer(answered, slots=1, gate=Gate()) as found:
        yield found
        servers.forget(found.url)


async def test_a_server_serves_the_deepest_first(narrow: OpenAIServer) -> None:
    """One place; three requests wait for it, and the one that came last has most behind it."""
    server, gate = narrow, narrow.gate
    assert gate is not None
    fineflow.engine(server.url, priority=True)
    shallow = ask("shallow {question}") | chat(server)
    deep = ask("deep {question}") | chat(server) | StrOutputParser() | ask("then {x}") | chat(server)
    first = asyncio.create_task(chat(server).ainvoke("first"))
    await gate.arrived()
    chain = fineflow.optimize(RunnableParallel(a=shallow, b=shallow, c=deep), strict=True, eager=True)
    call = asyncio.create_task(chain.ainvoke(VALUE))
    await asyncio.to_thread(server.wait, lambda s: s.waiting == 3)
    gate.open()
    await asyncio.gather(first, call)
    began = sorted(server.received, key=lambda each: each.began or 0)
    assert ["deep" in each.prompt for each in began] == [False, True, False, False, False]


BOUNDED: dict[str, Callable[[OpenAIServer], Runnable[Any, Any]]] = {
    "siblings": siblings,
    "map": mapped,
    "nothing to gain": lambda s: ask("{question}") | chat(s) | StrOutputParser(),
    "streams": lambda s: answers(chat(s, streaming=True)) | StrOutputParser(),
    "completion": completion,
}


@pytest.mark.parametrize("shape", BOUNDED)
def test_same_answers_with_a_bound(server: OpenAIServer, shape: str) -> None:
    fineflow.engine(server.url, max_requests=1)
    for entry in ALL:
        both(server, BOUNDED[shape], entry)


@pytest.mark.parametrize("kind", ["ainvoke", "astream"])
async def test_a_bound_holds_for_all_calls_together(server: OpenAIServer, kind: str) -> None:
    server.gate = Gate()
    fineflow.engine(server.url, max_requests=2)
    chain = fineflow.optimize(siblings(server), strict=True)
    name = server.url.removeprefix("http://").removesuffix("/v1")

    async def call() -> None:
        if kind == "ainvoke":
            await chain.ainvoke(VALUE)
        else:
            assert [chunk async for chunk in chain.astream(VALUE)]

    calls = [asyncio.create_task(call()) for _ in range(3)]
    for arrived in (2, 4, 6):
        await server.gate.arrived(arrived)
        assert len(server.received) == arrived
        if arrived < 6:
            found = fineflow.statistics().engines[name]
            assert (found.running, found.queued) == (2, 6 - arrived)
        server.gate.let(2)
    await asyncio.gather(*calls)
    assert len(server.received) == 6


async def test_a_bound_serves_the_deepest_first(server: OpenAIServer) -> None:
    server.gate = Gate()
    fineflow.engine(server.url, max_requests=1)
    shallow = ask("shallow {question}") | chat(server)
    deep = ask("deep {question}") | chat(server) | StrOutputParser() | ask("then {x}") | chat(server)
    chain = fineflow.optimize(RunnableParallel(a=shallow, b=shallow, c=deep), strict=True)
    call = asyncio.create_task(chain.ainvoke(VALUE))
    for number in range(1, 5):
        await server.gate.arrived(number)
        server.gate.let(1)
    await call
    assert "deep" in "".join(each.prompt for each in server.received[:2])


def test_a_bound_counts_components_too(server: OpenAIServer) -> None:
    server.gate = Gate()
    engine = fineflow.engine(server.url, max_requests=1)
    model = ChatEngine(engine=engine)

    async def both_kinds() -> None:
        calls = [model.ainvoke("one"), fineflow.optimize(ask("{question}") | chat(server)).ainvoke(VALUE)]
        tasks = [asyncio.ensure_future(each) for each in calls]
        for number in (1, 2):
            await server.gate.arrived(number)  # type: ignore[union-attr]
            assert len(server.received) == number
            server.gate.let(1)  # type: ignore[union-attr]
        await asyncio.gather(*tasks)

    asyncio.run(both_kinds())
    run_sync(engine.aclose)


async def test_a_call_from_inside_of_a_stream_does_not_wait_for_itself(server: OpenAIServer) -> None:
    fineflow.engine(server.url, max_requests=1)
    inner = fineflow.optimize(ask("inner {question}") | chat(server), strict=True)
    outer = fineflow.optimize(answers(chat(server)), strict=True)
    async with asyncio.timeout(20):
        count = 0
        async for _ in outer.astream(VALUE):
            count += 1
            if count < 3:
                assert "Answer" in (await inner.ainvoke(VALUE)).content
    assert count > 2


async def test_a_component_from_inside_of_its_own_stream_does_not_either(server: OpenAIServer) -> None:
    model = ChatEngine(engine=fineflow.engine(server.url, max_requests=1))
    async with asyncio.timeout(20):
        async for _ in model.astream("outer"):
            assert "Answer" in (await model.ainvoke("inner")).content
    await run_async(model.engine.aclose)


async def test_a_bound_may_be_lifted(server: OpenAIServer) -> None:
    server.gate = Gate()
    fineflow.engine(server.url, max_requests=1)
    call = asyncio.create_task(fineflow.optimize(siblings(server), strict=True).ainvoke(VALUE))
    await server.gate.arrived()
    fineflow.engine(server.url)
    await server.gate.arrived(2)
    server.gate.open()
    await call


class Own(ChatOpenAI):
    pass


class Counting(ChatOpenAI):
    def _get_request_payload(self, *args: Any, **kwargs: Any) -> Any:
        return super()._get_request_payload(*args, **kwargs)


def patched(server: OpenAIServer) -> ChatOpenAI:
    model = chat(server)
    model.async_client = openai.AsyncOpenAI(base_url=server.url, api_key="x").chat.completions
    return model


OTHERS: dict[str, tuple[Callable[[OpenAIServer], Any], str]] = {
    "a subclass": (lambda s: Own(base_url=s.url, api_key="x", model="tiny"), "takes whole prompts only"),
    "an overridden method": (lambda s: Counting(base_url=s.url, api_key="x", model="tiny"), "takes whole prompts only"),
    "another client": (patched, "takes whole prompts only"),
    "another server": (lambda s: chat(s, base_url="http://127.0.0.1:1/v1"), "takes whole prompts only"),
    "an HTTP client": (lambda s: chat(s, http_async_client=httpx2.AsyncClient()), "HTTP client or proxy of its own"),
    "a key that is made": (lambda s: chat(s, api_key=lambda: "x"), "key comes from a function"),
    "the other API": (lambda s: chat(s, use_responses_api=True), "Responses API"),
}


@pytest.mark.parametrize("other", OTHERS)
def test_nothing_is_sent_ahead_for(server: OpenAIServer, other: str) -> None:
    make, why = OTHERS[other]
    fineflow.engine(server.url, warm=True)
    assert why in shown(answers(make(server)))
    assert "partial_prefill" not in shown(answers(make(server)))


def test_addresses_are_compared_as_they_are_meant(server: OpenAIServer) -> None:
    assert servers.normal("HTTP://LocalHost:80/v1/") == servers.normal("http://localhost/v1")
    assert servers.normal("https://a:443/v1") != servers.normal("https://a:444/v1")
    fineflow.engine(server.url + "/", warm=True)
    assert "is prefilled at once" in shown(answers(chat(server, base_url=server.url + "/")))


async def test_a_server_that_was_told_of_later_is_used(server: OpenAIServer) -> None:
    chain = fineflow.optimize(answers(chat(server)), strict=True, eager=True)
    await chain.ainvoke(VALUE)
    assert not server.warmed
    fineflow.engine(server.url, warm=True)
    await chain.ainvoke(VALUE)
    assert len(server.answered) == 2
    assert "is prefilled at once" in shown(chain)
