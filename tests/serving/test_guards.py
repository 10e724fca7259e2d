"""Keys, limits and malformed requests: clear refusals, nothing executed, nothing left."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from langchain_core.runnables import RunnableLambda
from serving_kit import KEY, chain_of, echo, events, running, served, until_free, wrong

from fineflow.serving import ServerSettings
from fineflow.testing.gates import Gate

ASK = {"input": {"question": "a"}}


# Keys.


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": f"Bearer {KEY}x"},
        {"Authorization": f"Bearer {KEY[:-1]}"},
        {"Authorization": f"Basic {KEY}"},
        {"Authorization": KEY},
        {"X-API-Key": ""},
        {"X-API-Key": "ключ".encode()},
    ],
)
def test_without_a_key_nothing_is_called(headers: dict[str, Any]) -> None:
    chat = echo()
    with served(chain_of(chat), ServerSettings(api_keys=("another", KEY))) as client:
        for path in ("/invoke", "/batch", "/stream", "/v1/chat/completions", "/semantic/sessions", "/documents"):
            response = client.post(path, json=ASK, headers=headers)
            assert "expected an API key" in wrong(response, 401) and KEY not in response.text
            assert response.headers["www-authenticate"] == "Bearer"
        for path in ("/metrics", "/openapi.json", "/plan", "/input_schema", "/v1/models"):
            wrong(client.get(path, headers=headers), 401)
    assert chat.meter.calls == 0


@pytest.mark.parametrize(
    "headers", [{"Authorization": f"Bearer {KEY}"}, {"authorization": f"bearer {KEY}"}, {"X-API-Key": KEY}]
)
def test_any_of_the_keys_opens(headers: dict[str, str]) -> None:
    with served(chain_of(echo()), ServerSettings(api_keys=("another", KEY))) as client:
        assert client.post("/invoke", json=ASK, headers=headers).status_code == 200
        for path in ("/", "/healthz", "/readyz"):
            assert client.get(path).status_code == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_pages_of_other_sites_may_not_call(site: str) -> None:
    chat = echo()
    with served(chain_of(chat)) as client:
        assert "another site" in wrong(client.post("/invoke", json=ASK, headers={"Sec-Fetch-Site": site}), 403)
        assert client.post("/invoke", json=ASK, headers={"Sec-Fetch-Site": "same-origin"}).status_code == 200
    assert chat.meter.calls == 1


# Bodies.

MALFORMED: dict[str, tuple[bytes, str, int, str]] = {
    "cut": (b'{"input": {"question": "a"', "application/json", 400, "the body is no JSON"),
    "deep": (b"[" * 200_000, "application/json", 400, "expected JSON in UTF-8, not nested too deeply"),
    "empty": (b"", "application/json", 422, "expected a JSON object"),
    "list": (b"[1]", "application/json", 422, "expected a JSON object"),
    "text": (b'{"input": {"question": "a"}}', "text/plain", 422, "Content-Type: application/json"),
    "no UTF-8": (b'{"input": {"question": "\xff"}}', "application/json", 400, "expected JSON in UTF-8"),
    "no input": (b'{"config": {}}', "application/json", 422, "input: Field required"),
    "another type": (
        b'{"input": {"question": 3}}',
        "application/json",
        422,
        "input.question: Input should be a valid string; got 3",
    ),
    "unknown field": (b'{"input": {"question": "a"}, "inptu": 1}', "application/json", 422, "inptu"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_body_is_refused_with_a_reason(case: str) -> None:
    body, kind, status, expected = MALFORMED[case]
    chat = echo()
    with served(chain_of(chat)) as client:
        for path in ("/invoke", "/stream"):
            assert expected in wrong(client.post(path, content=body, headers={"Content-Type": kind}), status)
        assert client.post("/invoke", json=ASK).status_code == 200
    assert chat.meter.calls == 1


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_is_too_large_is_refused(chunked: bool) -> None:
    def pieces() -> Iterator[bytes]:
        yield b'{"input": {"question": "'
        for _ in range(64):
            yield b"x" * 1024

    chat = echo()
    with served(chain_of(chat), ServerSettings(max_body=4096)) as client:
        content: Any = pieces() if chunked else b"".join(pieces())
        response = client.post("/invoke", content=content, headers={"Content-Type": "application/json"})
        assert wrong(response, 413) == "expected a body of at most 4,096 bytes; send less, or several requests"
        assert client.post("/invoke", json=ASK).status_code == 200
    assert chat.meter.calls == 1


def spoken(url: str, text: str) -> str:
    """Sends bytes, and returns all that the server sends before it closes the connection."""
    host, port = httpx.URL(url).host, httpx.URL(url).port
    with socket.create_connection((host, port or 0), timeout=30) as connection:
        connection.sendall(text.encode("latin-1"))
        return b"".join(iter(lambda: connection.recv(65536), b"")).decode()


def test_a_body_that_never_ends_is_given_up() -> None:
    chat = echo()
    with served(chain_of(chat), ServerSettings(body_timeout=0.1)) as client:
        head = "POST /invoke HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n"
        answer = spoken(str(client.base_url), head + '{"input"')
    assert answer.startswith("HTTP/1.1 408") and "the body was not there within 0.1 s" in answer
    assert chat.meter.calls == 0


@pytest.mark.parametrize("header", ["X-A: b\r\n c", "X-A: b\x00c", "X A: b", "Content-Length: 5\r\nContent-Length: 6"])
def test_malformed_headers_end_the_connection(header: str) -> None:
    chat = echo()
    with served(chain_of(chat)) as client:
        answer = spoken(
            str(client.base_url), f"POST /invoke HTTP/1.1\r\nHost: x\r\n{header}\r\nConnection: close\r\n\r\n"
        )
    assert answer.startswith("HTTP/1.1 4")
    assert chat.meter.calls == 0


def test_nothing_that_a_client_sends_becomes_a_header() -> None:
    evil = "a\r\nSet-Cookie: x=1"
    with served(chain_of(echo())) as client:
        response = client.post("/invoke", json={"input": {"question": evil}, "config": {"tags": [evil]}})
        other = client.get("/nothing%0d%0aSet-Cookie:%20x=1")
    assert response.status_code == 200 and other.status_code == 404
    assert "set-cookie" not in response.headers and "set-cookie" not in other.headers


@pytest.mark.parametrize(
    "path", ["/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "//etc/passwd", "/page.html", "/nope"]
)
def test_unknown_paths_are_not_found(path: str) -> None:
    with served(chain_of(echo())) as client:
        host = str(client.base_url)
        assert spoken(host, f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").startswith("HTTP/1.1 404")
        assert "GET /openapi.json says" in wrong(client.get("/invoke"), 405)


# Limits of calls.


def test_calls_beyond_the_places_are_told_to_come_back() -> None:
    gate = Gate()
    with served(chain_of(echo(gate=gate)), ServerSettings(concurrency=1)) as client:
        with client.stream("POST", "/stream", json=ASK) as response:
            gate.wait_arrived()
            for path in ("/invoke", "/stream"):
                refused = client.post(path, json=ASK)
                assert "all 1 places for calls are taken" in wrong(refused, 429)
                assert int(refused.headers["retry-after"]) >= 1
            assert "fineflow_http_calls_running 1\n" in client.get("/metrics").text
            gate.open()
            assert events(response.read().decode())[-1][0] == "end"
        assert client.post("/invoke", json=ASK).status_code == 200
        text = wrong(client.post("/batch", json={"inputs": [ASK["input"]] * 2}), 422)
        assert text == "expected at most 1 inputs in a request, got 2; send several requests"
        assert running(client) == 0


def test_a_call_that_takes_too_long_is_stopped() -> None:
    chat = echo(gate=Gate())
    with served(chain_of(chat), ServerSettings(timeout=0.05)) as client:
        assert "longer than 0.05 s" in wrong(client.post("/invoke", json=ASK), 504)
        assert "longer than 0.05 s" in wrong(client.post("/batch", json={"inputs": [ASK["input"]]}), 504)
        assert events(client.post("/stream", json=ASK).text)[-1][1]["status_code"] == 504
        chat.meter.wait_idle()
        assert running(client) == 0


@pytest.mark.parametrize("path", ["/invoke", "/batch", "/stream", "/v1/chat/completions"])
def test_a_client_that_leaves_cancels_its_call(path: str) -> None:
    gate = Gate()
    chat = echo(gate=gate)
    body: dict[str, Any] = {"inputs": [ASK["input"]]} if path == "/batch" else ASK
    if path.startswith("/v1"):
        body = {"model": "chain", "stream": True, "messages": [{"role": "user", "content": "a"}]}
    with served(chain_of(chat), name="chain") as client:
        data = json.dumps(body)
        head = (
            f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        url = client.base_url
        with socket.create_connection((url.host, url.port or 0)) as connection:
            connection.sendall((head + data).encode())
            gate.wait_arrived()
            assert running(client) == 1
        chat.meter.wait_idle()  # the request of the model was cancelled: its gate never opened
        until_free(client)
    assert gate.arrivals == 1


def test_what_the_object_raises_stays_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: Any) -> None:
        raise PermissionError("password=hunter2")

    with served(RunnableLambda(fail)) as client:
        message = wrong(client.post("/invoke", json={"input": 1}), 500)
    run = message.rpartition(" ")[2]
    assert "hunter2" not in message
    [logged] = [each for each in caplog.records if each.name == "fineflow.serving"]
    assert run in logged.getMessage() and logged.exc_info is not None and "hunter2" in str(logged.exc_info[1])


@pytest.mark.parametrize("given", [{"concurrency": 0}, {"timeout": -1}, {"allow": ("root",)}, {"api_keys": ("",)}])
def test_settings_are_checked(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"got|must"):
        ServerSettings(**given)


def test_settings_reach_other_processes_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINEFLOW_SERVE", "")
    settings = ServerSettings(api_keys=(KEY,), allow=("priority",), concurrency=3, page=False)
    settings.to_environment("module:name")
    assert ServerSettings.of_environment() == (settings, "module:name")
