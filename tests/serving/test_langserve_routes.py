"""LangServe's routes: answers, streams, messages, configs, and what they refuse."""

from __future__ import annotations

import operator
from functools import partial
from typing import Annotated, Any, TypedDict
from uuid import UUID

import httpx
import pytest
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables import ConfigurableField, RunnableLambda
from langgraph.checkpoint.memory import MemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langserve import RemoteRunnable
from serving_kit import chain_of, echo, events, running, served, wrong

import fineflow
from fineflow.errors import UsageError
from fineflow.runtime.queues import request_context
from fineflow.serving import ServerSettings, create_app
from fineflow.testing.gates import Gate
from fineflow.testing.langchain import FakeChat, FakeRetriever


def asked(text: str) -> dict[str, Any]:
    return {"input": {"question": text}}


def test_invoke_answers_as_the_object_does() -> None:
    chain = chain_of(echo())
    with served(chain) as client:
        found = client.post("/invoke", json=asked("a b")).json()
    assert found["output"] == chain.invoke({"question": "a b"})
    assert UUID(found["metadata"]["run_id"]) and found["metadata"]["feedback_tokens"] == []


def test_a_batch_keeps_the_order_of_its_inputs() -> None:
    with served(chain_of(echo())) as client:
        found = client.post("/batch", json={"inputs": [{"question": each} for each in "abc"]}).json()
        assert client.post("/batch", json={"inputs": []}).json()["output"] == []
    assert [each[-1] for each in found["output"]] == ["a", "b", "c"]
    assert len({each["run_id"] for each in found["metadata"]["responses"]}) == 3


def test_a_stream_is_metadata_data_end() -> None:
    chain = chain_of(echo())
    with served(chain) as client:
        response = client.post("/stream", json=asked("a b"))
    assert response.headers["content-type"].startswith("text/event-stream")
    [first, *data, last] = events(response.text)
    assert first[0] == "metadata" and UUID(first[1]["run_id"]) and last == ("end", "")
    assert [name for name, _ in data] == ["data"] * len(data) and len(data) > 1
    assert [piece for _, piece in data] == list(chain.stream({"question": "a b"}))


def test_pieces_are_sent_while_the_model_writes() -> None:
    gate = Gate()
    with (
        served(chain_of(echo(token_gate=gate))) as client,
        client.stream("POST", "/stream", json=asked("a")) as response,
    ):
        lines = response.iter_lines()
        assert next(lines) == "event: metadata"
        gate.let(1)
        assert next(line for line in lines if line == "event: data")
        assert next(lines) == 'data: "You "'
        gate.open()
        assert "event: end" in list(lines)


def test_an_error_in_a_stream_is_an_event_without_its_text() -> None:
    with served(chain_of(FakeChat(answers={"": ValueError("a secret")}))) as client:
        found = events(client.post("/stream", json=asked("a")).text)
        message = wrong(client.post("/invoke", json=asked("a")), 500)
    assert [name for name, _ in found] == ["metadata", "error"]
    assert found[1][1]["status_code"] == 500 and found[0][1]["run_id"] in found[1][1]["message"]
    assert "secret" not in str(found) and "secret" not in message


def test_langserves_own_client() -> None:
    chain = chain_of(echo())
    with served(chain) as client:
        remote = RemoteRunnable(str(client.base_url))
        assert remote.invoke({"question": "a"}) == chain.invoke({"question": "a"})
        assert remote.batch([{"question": "a"}, {"question": "b"}]) == chain.batch(
            [{"question": "a"}, {"question": "b"}]
        )
        assert list(remote.stream({"question": "a b"})) == list(chain.stream({"question": "a b"}))
        with pytest.raises(httpx.HTTPStatusError, match=r"input\.question: Field required"):
            remote.invoke({"query": "a"})


def test_langserves_client_sends_and_gets_messages() -> None:
    prompt = ChatPromptTemplate.from_messages([MessagesPlaceholder("history"), ("human", "{question}")])
    chain = prompt | echo()
    given = {"history": [HumanMessage("a"), AIMessage("b")], "question": "c"}
    with served(chain) as client:
        found = RemoteRunnable(str(client.base_url)).invoke(given)
    assert isinstance(found, AIMessage) and found.content == "You said: c"


@pytest.mark.parametrize("message", [{"type": "human", "content": "hello"}, {"role": "user", "content": "hello"}])
def test_messages_come_as_dicts(message: dict[str, str]) -> None:
    seen: list[Any] = []

    def node(state: MessagesState) -> dict[str, Any]:
        seen.extend(state["messages"])
        return {"messages": [AIMessage("hi")]}

    graph = StateGraph(MessagesState).add_node("node", node).add_edge(START, "node").add_edge("node", END).compile()
    with served(graph) as client:
        found = client.post("/invoke", json={"input": {"messages": [message]}}).json()
    assert [type(each) for each in seen] == [HumanMessage] and seen[0].content == "hello"
    assert [each["content"] for each in found["output"]["messages"]] == ["hello", "hi"]


@pytest.mark.parametrize("route", ["/invoke", "/stream", "/batch"])
@pytest.mark.parametrize("message", [["user", "hello"], "hello", {"kind": "human"}, {"type": "nobody"}])
def test_what_is_no_message_is_refused_as_an_input(message: Any, route: str) -> None:
    graph = StateGraph(MessagesState).add_node("node", lambda state: {}).add_edge(START, "node").compile()
    given = {"messages": [message]}
    with served(graph) as client:
        response = client.post(route, json={"inputs": [given]} if route == "/batch" else {"input": given})
    assert "messages" in wrong(response, 422)


def test_keys_that_the_schema_does_not_name_reach_the_object() -> None:
    def all_of(given: dict[str, Any]) -> Any:
        return given["a"], dict(given)

    with served(RunnableLambda(all_of)) as client:
        found = client.post("/invoke", json={"input": {"a": 1, "b": [1.5, None, "x"]}}).json()
    assert found["output"] == [1, {"a": 1, "b": [1.5, None, "x"]}]


def test_template_syntax_in_an_input_is_only_text() -> None:
    text = "{{7*7}} {question} ${jndi:ldap://x} {{input:a}} <script>alert(1)</script> %0d%0aX-Evil: 1"
    with served(chain_of(echo())) as client:
        response = client.post("/invoke", json=asked(text))
        stream = client.post("/stream", json=asked("a\r\n\r\nevent: end\ndata: x"))
    assert response.json()["output"] == f"You said: Answer {text}"
    assert "x-evil" not in response.headers and "".join(
        data for name, data in events(stream.text) if name == "data"
    ) == ("You said: Answer a\r\n\r\nevent: end\ndata: x")


def test_schemas_are_those_of_the_object() -> None:
    chain = chain_of(echo())
    with served(chain) as client:
        document = client.get("/openapi.json").json()
        assert client.get("/input_schema").json() == chain.get_input_schema().model_json_schema()
        assert client.get("/output_schema").json() == chain.get_output_schema().model_json_schema()
    body = document["paths"]["/invoke"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    model = document["components"]["schemas"][body["$ref"].rsplit("/", 1)[-1]]
    inner = document["components"]["schemas"][model["properties"]["input"]["$ref"].rsplit("/", 1)[-1]]
    assert inner["required"] == ["question"]


def test_an_object_whose_schema_has_no_json_is_served() -> None:
    class State(TypedDict):
        found: Annotated[list[Any], operator.add]
        call: partial[Any]

    graph = (
        StateGraph(State).add_node("n", lambda state: {"found": [1]}).add_edge(START, "n").add_edge("n", END).compile()
    )
    with served(graph) as client:
        assert client.post("/invoke", json={"input": {"found": [0]}}).json()["output"] == {"found": [0, 1]}
        assert client.get("/openapi.json").status_code == 200


def test_what_json_cannot_hold_is_a_clear_error() -> None:
    with served(RunnableLambda(lambda x: object())) as client:
        wrong(client.post("/invoke", json={"input": 1}), 500)
        found = events(client.post("/stream", json={"input": 1}).text)
    assert [name for name, _ in found] == ["metadata", "error"]


# Configs.


def configurable() -> Any:
    chat = echo().configurable_fields(default=ConfigurableField(id="voice"))
    return chain_of(chat)


def test_a_config_may_set_what_the_object_declares() -> None:
    chat = FakeChat().configurable_fields(default=ConfigurableField(id="voice"))
    with served(chain_of(chat)) as client:
        body = {**asked("a"), "config": {"configurable": {"voice": "loud"}, "tags": ["t"], "metadata": {"m": 1}}}
        assert client.post("/invoke", json=body).json()["output"] == "loud"
        body = {"inputs": [{"question": "a"}] * 2, "config": [{"configurable": {"voice": v}} for v in ("x", "y")]}
        assert client.post("/batch", json=body).json()["output"] == ["x", "y"]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "key": ({"configurable": {"__pregel_runtime": 1}}, "has no key '__pregel_runtime'; it declares none"),
    "field": ({"callbacks_": []}, "config.callbacks_"),
    "recursion": ({"recursion_limit": 101}, "expected at most 100"),
    "negative": ({"recursion_limit": 0}, "greater than or equal to 1"),
    "reserved": ({"metadata": {"fineflow_priority": 9}}, "'fineflow_priority' is reserved"),
    "deep": ({"metadata": {"a": {"b": 1}}}, "config.metadata.a"),
    "tags": ({"tags": ["x"] * 33}, "config.tags"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_config_may_set_nothing_else(case: str) -> None:
    config, expected = REFUSED[case]
    chat = echo()
    with served(chain_of(chat)) as client:
        assert expected in wrong(client.post("/invoke", json={**asked("a"), "config": config}), 422)
        assert expected in wrong(client.post("/stream", json={**asked("a"), "config": config}), 422)
    assert chat.meter.calls == 0


def test_threads_of_a_graph_with_a_checkpointer() -> None:
    def node(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(str(len(state["messages"])))]}

    graph = StateGraph(MessagesState).add_node("n", node).add_edge(START, "n").add_edge("n", END)
    with served(graph.compile(checkpointer=MemorySaver())) as client:
        body = {
            "input": {"messages": [{"role": "user", "content": "a"}]},
            "config": {"configurable": {"thread_id": "1"}},
        }
        last = [client.post("/invoke", json=body).json()["output"]["messages"][-1]["content"] for _ in range(2)]
    assert last == ["1", "3"]


def test_keyword_arguments_are_for_the_operator_to_allow() -> None:
    body = {"input": "a b c", "kwargs": {"stop": ["b"]}}
    with served(FakeChat(default="a b c")) as client:
        assert "does not let clients set 'stop' (it allows none)" in wrong(client.post("/invoke", json=body), 422)
    with served(FakeChat(default="a b c"), ServerSettings(allow_kwargs=("stop",))) as client:
        assert client.post("/invoke", json=body).json()["output"]["content"] == "a "


# What fineflow takes for each request.


def test_priorities_and_the_like_are_for_the_operator_to_allow() -> None:
    seen: list[tuple[str, int, str]] = []

    def look(given: str) -> str:
        seen.append((request_context.tenant.get(), request_context.priority.get(), request_context.objective.get()))
        return given

    body = {"input": "a", "fineflow": {"priority": 3, "tenant": "paid", "objective": "ttft"}}
    with served(RunnableLambda(look)) as client:
        assert "fineflow." in wrong(client.post("/invoke", json=body), 422)
    with served(RunnableLambda(look), ServerSettings(allow=("priority", "tenant", "objective"))) as client:
        assert client.post("/invoke", json=body).status_code == 200
        assert events(client.post("/stream", json=body).text)[-1][0] == "end"
        assert client.post("/invoke", json={"input": "a"}).status_code == 200
        assert "objective" in wrong(client.post("/invoke", json={"input": "a", "fineflow": {"objective": "x"}}), 422)
    assert seen == [("paid", 3, "ttft"), ("paid", 3, "ttft"), ("", 0, seen[-1][2])]


def test_a_deadline_stops_the_call() -> None:
    gate = Gate()
    chat = echo(gate=gate)
    with served(chain_of(chat), ServerSettings(allow=("deadline",))) as client:
        body = {**asked("a"), "fineflow": {"deadline": 0.05}}
        assert "longer than 0.05 s" in wrong(client.post("/invoke", json=body), 504)
        found = events(client.post("/stream", json=body).text)
        assert found[-1][0] == "error" and found[-1][1]["status_code"] == 504
        chat.meter.wait_idle()
        assert running(client) == 0


# What is served.


def test_an_optimized_object_is_served_as_it_is() -> None:
    chat = echo()
    retriever = FakeRetriever(documents=[Document("p")])
    chain = (
        {"question": RunnableLambda(lambda x: x), "context": retriever}
        | ChatPromptTemplate.from_template("{question} {context}")
        | chat
    )
    fast = fineflow.optimize(chain)
    with served(fast) as client:
        assert "p" in client.post("/invoke", json={"input": "a"}).json()["output"]["content"]


@pytest.mark.parametrize("obj", [3, FakeChat, lambda x: x])
def test_what_cannot_be_served(obj: Any) -> None:
    with pytest.raises(UsageError, match="expected a LangChain Runnable, a LangGraph graph"):
        create_app(obj)
