"""The scripted server, asked without any client library."""

from __future__ import annotations

import http.client
import json
import threading
from typing import Any
from urllib.parse import urlsplit

import pytest

from fineflow.testing.gates import Gate
from fineflow.testing.server import Fault, OpenAIServer


def ask(server: OpenAIServer, path: str, body: dict[str, Any] | None = None) -> tuple[int, str]:
    address = urlsplit(server.url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=10)
    connection.request("GET" if body is None else "POST", address.path + path, body and json.dumps(body))
    response = connection.getresponse()
    return response.status, response.read().decode()


def chat(server: OpenAIServer, text: str = "x", **options: Any) -> tuple[int, Any]:
    body = {"model": "tiny", "messages": [{"role": "user", "content": text}], **options}
    status, said = ask(server, "/chat/completions", body)
    return status, said if options.get("stream") else json.loads(said)


def test_a_whole_answer_is_the_sum_of_its_stream() -> None:
    with OpenAIServer({"Torstad": "Salt and more."}) as server:
        _, whole = chat(server, "Torstad?", logprobs=True)
        _, events = chat(server, "Torstad?", logprobs=True, stream=True, stream_options={"include_usage": True})
        assert chat(server, "Kelmora?")[1]["choices"][0]["message"]["content"] == "ok"
    *chunks, end = [line.removeprefix("data: ") for line in events.strip().split("\n\n")]
    *pieces, last = [json.loads(chunk) for chunk in chunks]
    assert end == "[DONE]" and last["usage"] == whole["usage"]
    assert [piece["choices"][0]["delta"]["content"] for piece in pieces] == ["Salt ", "and ", "more."]
    assert whole["choices"][0]["message"]["content"] == "Salt and more."
    assert len(whole["choices"][0]["logprobs"]["content"]) == 3
    assert whole["choices"][0]["finish_reason"] == pieces[-1]["choices"][0]["finish_reason"] == "stop"


def test_what_it_serves() -> None:
    with OpenAIServer(models=("a", "b"), vllm=True) as server:
        assert [each["owned_by"] for each in json.loads(ask(server, "/models")[1])["data"]] == ["vllm", "vllm"]
        assert chat(server)[0] == 404 and ask(server, "/embeddings", {})[0] == 404
        body = {"model": "a", "prompt": ["one", "two"], "max_tokens": 3}
        assert len(json.loads(ask(server, "/completions", body)[1])["choices"]) == 2


def test_faults_come_in_turn() -> None:
    with OpenAIServer() as server:
        server.faults += [Fault(429, "wait"), None, Fault(0)]
        assert chat(server) == (429, {"error": {"message": "wait", "type": "scripted", "param": None, "code": None}})
        assert chat(server)[0] == 200
        with pytest.raises(http.client.HTTPException):
            chat(server)
        assert chat(server)[0] == 200
        assert [each.ended for each in server.received] == ["refused", "answered", "dropped", "answered"]


def test_the_most_urgent_waits_least() -> None:
    gate = Gate()
    with OpenAIServer(slots=1, gate=gate) as server:
        threads = []
        for number, priority in enumerate([0, 0, -1]):
            threads.append(threading.Thread(target=chat, args=(server, str(number)), kwargs={"priority": priority}))
            threads[-1].start()
            server.wait(lambda s, count=number: s.waiting == count and s.received)  # type: ignore[misc]
        gate.open()
        for thread in threads:
            thread.join()
        assert [each.began for each in server.received] == [1, 3, 2]


def test_what_was_computed_is_found_cached() -> None:
    with OpenAIServer() as server:
        chat(server, "a" * 100, max_tokens=1)
        chat(server, "a" * 100 + "b")
        assert server.warmed[0].cached == 0 and 80 < server.answered[0].cached <= 112


def test_waiting_for_what_does_not_come() -> None:
    with OpenAIServer() as server, pytest.raises(TimeoutError, match="did not get"):
        server.wait(lambda s: bool(s.received), timeout=0.01)
