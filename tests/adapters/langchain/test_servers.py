"""ChatOpenAI and OpenAI on a server: answers, errors and requests as in stock; prompts are sent ahead where allowed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import openai
import pytest
from langchain_core.messages import HumanMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables import Runnable, RunnableBranch, RunnableLambda, RunnablePassthrough
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel
from served_chains import RULES, VALUE, answered, answers, ask, both, chat, completion, late, mapped, server, siblings  # noqa: F401

import fineflow
from fineflow.adapters.langchain.models.servers import served
from fineflow.runtime import servers
from fineflow.testing.differential import ALL
from fineflow.testing.gates import Gate
from fineflow.testing.langchain import FakeChat
from fineflow.testing.server import Fault, OpenAIServer

pytestmark = pytest.mark.sweep

pytest.importorskip("langchain_openai")


class Fact(BaseModel):
    place: str
    known_for: str


def conversation(s: OpenAIServer, gate: Gate | None = None) -> Runnable[Any, Any]:
    parts = [("system", "Be kind."), MessagesPlaceholder("history"), ("human", "{found}\n\n{question}")]
    prompt = ChatPromptTemplate.from_messages(parts)
    return RunnablePassthrough.assign(found=late(gate)) | prompt | chat(s) | StrOutputParser()


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
    assert f"on tiny@{where}" in str(fineflow.explain(answers(chat(server)), graphs=True))
    fineflow.optimize(answers(chat(server)), eager=True).invoke(VALUE)
    assert fineflow.statistics().engines[f"tiny@{where}"].batches == 1


def shown(chain: Runnable[Any, Any]) -> str:
    return " ".join(str(fineflow.explain(chain, input=VALUE, graphs=True)).split())


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
    "an HTTP client": (
        lambda s: chat(s, http_async_client=openai.DefaultAsyncHttpxClient()),  # of httpx or httpx2, as openai has it
        "HTTP client or proxy of its own",
    ),
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
