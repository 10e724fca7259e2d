"""What routers are told of a request: every field of each kind of router, over HTTP, with the client of openai."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

pytest.importorskip("openai")

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda
from langchain_openai import ChatOpenAI

import fineflow
from fineflow.backends.openai_server import OpenAIServerEngine
from fineflow.backends.openai_server.identity import ROUTERS, router_fields
from fineflow.backends.openai_server.warmed import BLOCK
from fineflow.langchain import ChatEngine
from fineflow.protocols import Message, RequestIdentity, Sampling
from fineflow.runtime import servers
from fineflow.runtime.loop.submission import run_sync
from fineflow.runtime.queues.programs import programs
from fineflow.testing.openai_form import Received
from fineflow.testing.server import OpenAIServer

KNOWN = RequestIdentity(
    program="s1",
    parent="s0",
    tenant="paid",
    urgency=2,
    objective="ttft",
    deadline=12.5,
    output=40,
    gap=0.75,
    last=True,
)
SALT = hashlib.sha256(b"paid").hexdigest()
OWN = ("accept", "authorization", "connection", "content-", "host", "user-agent", "x-stainless-")


@pytest.fixture
def server() -> Iterator[OpenAIServer]:
    programs.forget()
    with OpenAIServer("Torstad is known for salt.", vllm=True) as found:
        yield found


@pytest.fixture
async def made() -> AsyncIterator[list[OpenAIServerEngine]]:
    engines: list[OpenAIServerEngine] = []
    yield engines
    for engine in engines:
        await engine.aclose()


async def ask(engine: OpenAIServerEngine, known: RequestIdentity | None, sampling: Sampling | None = None) -> None:
    prompt = engine.encode(engine.render_chat([Message("user", "Why?")]))
    salt = {"salt": known.tenant} if known is not None and engine.salts else {}
    async for _ in engine.generate(prompt, sampling or Sampling(), identity=known, **salt):
        pass


def headers(seen: Received) -> dict[str, str]:
    """Returns the headers that openai's client does not send by itself."""
    return {name: value for name, value in seen.headers.items() if not name.startswith(OWN)}


def program(seen: Received) -> dict[str, Any]:
    """Returns the metadata for vLLM's router."""
    return dict(json.loads(seen.body["vllm_xargs"]["agentic_context"]))


PROGRAM = {
    "program_id": "s1",
    "expected_resume": False,
    "parent_program_id": "s0",
    "blocks_parent": True,
    "agent_role": "subagent",
    "priority": 2,
    "deadline_seconds": 12.5,
    "expected_output_length": 40,
    "kv_retention_ttl_seconds": 1.5,
}
TOLD: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "vllm": ({"vllm_xargs": PROGRAM, "cache_salt": SALT}, {"x-session-id": "s1"}),
    "llm-d": (
        {},
        {
            "x-session-id": "s1",
            "x-llm-d-inference-fairness-id": "paid",
            "x-llm-d-inference-objective": "ttft",
        },
    ),
    "gateway-api": ({}, {"x-gateway-inference-fairness-id": "paid", "x-gateway-inference-objective": "ttft"}),
    "dynamo": (
        {"nvext": {"agent_hints": {"priority": 2, "osl": 40}, "cache_salt": SALT}},
        {"x-dynamo-session-id": "s1", "x-dynamo-parent-session-id": "s0"},
    ),
    "sglang": ({"priority": 2, "cache_salt": SALT}, {"x-smg-routing-key": "s1"}),
    "ray": ({}, {"x-session-id": "s1"}),
}


@pytest.mark.parametrize("router", ROUTERS)
async def test_each_router_is_told_in_its_own_fields(
    server: OpenAIServer, made: list[OpenAIServerEngine], router: str
) -> None:
    made += [OpenAIServerEngine(server.url, "tiny", router=each) for each in (None, router)]
    await ask(made[0], None)
    await ask(made[1], KNOWN)
    plain, seen = server.received
    assert not headers(plain) and headers(seen) == TOLD[router][1]
    more = {name: value for name, value in seen.body.items() if name not in plain.body}
    if "vllm_xargs" in more:
        assert more["vllm_xargs"].keys() == {"agentic_context"}
        more["vllm_xargs"] = program(seen)
    assert more == TOLD[router][0]
    assert {name: seen.body[name] for name in plain.body} == plain.body


@pytest.mark.parametrize("router", ROUTERS)
async def test_what_is_not_known_is_not_sent(server: OpenAIServer, made: list[OpenAIServerEngine], router: str) -> None:
    made += [OpenAIServerEngine(server.url, "tiny", router=each) for each in (None, router)]
    await ask(made[0], None)
    await ask(made[1], RequestIdentity())
    plain, seen = server.received
    assert seen.body == plain.body and headers(seen) == headers(plain) == {}


def test_a_long_gap_keeps_no_cache() -> None:
    body, _ = router_fields("vllm", RequestIdentity("s", gap=600.0))
    assert json.loads(body["vllm_xargs"]["agentic_context"]) == {"program_id": "s", "expected_resume": True}


@pytest.mark.parametrize("tenant", ["Tor\u00f8y", "a\r\nX-Evil: 1", " padded", "x" * 300])
async def test_names_that_no_header_can_carry(
    server: OpenAIServer, made: list[OpenAIServerEngine], tenant: str
) -> None:
    made.append(OpenAIServerEngine(server.url, "tiny", router="llm-d"))
    await ask(made[0], RequestIdentity(tenant=tenant))
    (value,) = headers(server.received[0]).values()
    assert len(value) == 64 and int(value, 16)


async def test_the_users_own_fields_and_headers_count_first(
    server: OpenAIServer, made: list[OpenAIServerEngine]
) -> None:
    made.append(
        OpenAIServerEngine(server.url, "tiny", router="dynamo", default_headers={"X-DYNAMO-session-id": "mine"})
    )
    own = {"agent_hints": {"osl": 7}, "greed_sampling": True}
    await ask(made[0], KNOWN, Sampling(extra=(("nvext", own),)))
    seen = server.received[0]
    assert seen.body["nvext"] == {**own, "agent_hints": {"osl": 7, "priority": 2}, "cache_salt": SALT}
    assert headers(seen) == {"x-dynamo-session-id": "mine", "x-dynamo-parent-session-id": "s0"}


async def test_a_beginning_that_is_sent_ahead_goes_the_same_way(
    server: OpenAIServer, made: list[OpenAIServerEngine]
) -> None:
    made.append(OpenAIServerEngine(server.url, "tiny", router="vllm", warm=True))
    beginning = made[0].encode("x" * 2 * BLOCK)
    await made[0].prefill(beginning, identity=KNOWN, salt="paid")
    assert made[0].cached(beginning, salt="paid") == 2 * BLOCK and not made[0].cached(beginning)
    (seen,) = server.warmed
    assert headers(seen) == {"x-session-id": "s1"} and seen.body["cache_salt"] == SALT


def test_arguments_that_are_wrong() -> None:
    with pytest.raises(ValueError, match=r"router is one of 'vllm', 'llm-d', .* or None for no router; got 'vLLM'"):
        fineflow.engine("http://x/v1", router="vLLM")
    with pytest.raises(ValueError, match=r"priority=True is for vLLM's field; .* leave priority out"):
        OpenAIServerEngine("http://x/v1", router="sglang", priority=True)
    assert OpenAIServerEngine("http://x/v1", router="vllm", priority=True).of("other").router == "vllm"


def two_steps(engine: OpenAIServerEngine) -> Any:
    """Returns an optimized chain with two requests, one after the other."""
    chat = ChatEngine(engine=engine, max_tokens=64)
    ask = ChatPromptTemplate.from_template("Ask about {topic}.") | chat | StrOutputParser()
    answer = ChatPromptTemplate.from_template("Answer: {question}") | chat | StrOutputParser()
    return fineflow.optimize({"question": ask} | answer, strict=True)


def test_calls_are_programs(server: OpenAIServer) -> None:
    engine = OpenAIServerEngine(server.url, "tiny", router="vllm")
    chain = two_steps(engine)
    for _ in range(5):
        chain.invoke({"topic": "salt"})
    calls = [server.received[i : i + 2] for i in range(0, len(server.received), 2)]
    ids = [{headers(seen)["x-session-id"] for seen in call} for call in calls]
    assert len(calls) == 5 and all(len(found) == 1 for found in ids) and len(set.union(*ids)) == 5
    assert [[program(seen)["program_id"] for seen in call] for call in calls] == [[*found] * 2 for found in ids]
    first, last = calls[0], calls[-1]
    assert all(program(seen).keys() == {"program_id", "expected_resume"} for seen in first)
    assert [program(seen)["expected_resume"] for seen in (*first, *last)] == [True, True, True, False]
    assert [program(seen)["expected_output_length"] for seen in last] == [5, 5]
    assert program(last[0])["kv_retention_ttl_seconds"] > 0 and "kv_retention_ttl_seconds" not in program(last[1])
    run_sync(engine.aclose)


def test_what_the_caller_says(server: OpenAIServer) -> None:
    engine = OpenAIServerEngine(server.url, "tiny", router="vllm")
    chain = two_steps(engine)
    with fineflow.identity(session="conversation 7", tenant="paid", priority=3):
        chain.invoke({"topic": "salt"})
    said = {"fineflow_session": "conversation 7", "fineflow_tenant": "paid", "fineflow_priority": 3}
    chain.invoke({"topic": "fish"}, {"metadata": said})
    for seen in server.received:
        assert headers(seen)["x-session-id"] == program(seen)["program_id"] == "conversation 7"
        assert seen.body["cache_salt"] == SALT and program(seen)["priority"] == 3
    assert len(server.received) == 4
    with fineflow.Runtime(share_prefixes=True), fineflow.identity(tenant="paid"):
        chain.invoke({"topic": "salt"})
    assert all("cache_salt" not in seen.body for seen in server.received[4:])
    wrong = fineflow.identity(session=7)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"identity\(session=...\) is the id of a conversation, a string; got 7"), wrong:
        pass
    with pytest.raises(ValueError, match=r"metadata\['fineflow_session'\] must be a string"):
        chain.invoke({"topic": "salt"}, {"metadata": {"fineflow_session": 7}})
    run_sync(engine.aclose)


async def test_a_conversation_inside_another_one_is_its_child(
    server: OpenAIServer, made: list[OpenAIServerEngine]
) -> None:
    made.append(OpenAIServerEngine(server.url, "tiny", router="dynamo"))
    chat = ChatEngine(engine=made[0])

    async def agent(topic: str) -> None:
        await chat.ainvoke(f"Plan for {topic}.")
        with fineflow.identity(session="researcher"):
            await chat.ainvoke(f"Look up {topic}.")
            with fineflow.identity(session="researcher"):
                await chat.ainvoke(f"Look up {topic} again.")

    lead = fineflow.optimize(RunnableLambda(agent))
    await lead.ainvoke("salt")
    with fineflow.identity(session="lead"):
        await lead.ainvoke("fish")
    outer, *inner, named, last, again = map(headers, server.received)
    assert outer.keys() == {"x-dynamo-session-id"} and named == {"x-dynamo-session-id": "lead"}
    child = {"x-dynamo-session-id": "researcher"}
    assert inner == [{**child, "x-dynamo-parent-session-id": outer["x-dynamo-session-id"]}] * 2
    assert last == again == {**child, "x-dynamo-parent-session-id": "lead"}


def test_the_deadline_of_the_call(server: OpenAIServer) -> None:
    engine = OpenAIServerEngine(server.url, "tiny", router="vllm")
    chain = ChatPromptTemplate.from_template("About {topic}.") | ChatEngine(engine=engine) | StrOutputParser()
    fineflow.optimize(chain, timeout=60).invoke({"topic": "salt"})
    assert 0 < program(server.received[0])["deadline_seconds"] <= 60
    run_sync(engine.aclose)


def test_a_request_outside_of_calls_has_no_program(server: OpenAIServer) -> None:
    engine = OpenAIServerEngine(server.url, "tiny", router="vllm")
    with fineflow.identity(tenant="paid"):
        ChatEngine(engine=engine).invoke("Why?")
    seen = server.received[0]
    assert not headers(seen) and "vllm_xargs" not in seen.body and seen.body["cache_salt"] == SALT
    run_sync(engine.aclose)


async def test_requests_of_the_users_own_clients_stay_as_they_are(server: OpenAIServer) -> None:
    model = ChatOpenAI(base_url=server.url, api_key="none", model="tiny", max_completion_tokens=8)  # type: ignore[arg-type]
    search = RunnableLambda(lambda _: "salt")
    prompt = ChatPromptTemplate.from_template("Context. " * 100 + "{topic}")
    chain = {"topic": search} | prompt | model
    await chain.ainvoke("x")
    try:
        for router in (None, "vllm"):
            fineflow.engine(server.url, warm=True, router=router)
            with fineflow.identity(session="s", tenant="paid"):
                await fineflow.optimize(chain).ainvoke("x")
    finally:
        servers.forget(server.url)
    stock, *others = [(each.body, headers(each)) for each in server.answered]
    assert len(others) == 2 and all(each == stock for each in others) and not stock[1]
    assert all(not headers(each) and "cache_salt" not in each.body for each in server.warmed)
