"""Semantic variables over HTTP: submit, get, sessions that end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from langchain_core.runnables import RunnableLambda
from serving_kit import served, until_free, wrong

import fineflow
from fineflow.engines import EmulatedLLM, LLMProfile
from fineflow.serving import ServerSettings
from fineflow.serving.semantic import SemanticSessions
from fineflow.testing import virtual
from fineflow.testing.gates import Gate, Meter

FAST = LLMProfile(iteration=0.0, prefill_token=0.0, decode_sequence=0.0, prefill_tokens=4096, sequences=32, blocks=999)
PROMPT = "Say {{input:text}} now: {{output:answer}}"


class Engine(EmulatedLLM):
    """Answers with its prompt; requests wait at a gate."""

    def __init__(self) -> None:
        super().__init__(lambda prompt: f"<{prompt}>", FAST)
        self.gate, self.meter = Gate(opened=True), Meter()

    async def generate(self, *args: Any, **kwargs: Any) -> Any:
        with self.meter.work():
            await self.gate.wait()
            async for delta in super().generate(*args, **kwargs):
                yield delta


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = Engine()
    fineflow.semantic_engine(made)
    yield made
    fineflow.semantic_engine(None)


def app() -> Any:
    return RunnableLambda(lambda x: x)


def opened(client: httpx.Client) -> str:
    response = client.post("/semantic/sessions")
    assert response.status_code == 201
    return f"/semantic/sessions/{response.json()['session_id']}"


def submit(client: httpx.Client, session: str, prompt: str = PROMPT, **placeholders: dict[str, str]) -> dict[str, str]:
    response = client.post(f"{session}/submit", json={"prompt": prompt, "placeholders": placeholders})
    assert response.status_code == 200, response.text
    found: dict[str, str] = response.json()["variables"]
    return found


def get(client: httpx.Client, session: str, variable: str, **more: Any) -> httpx.Response:
    return client.post(f"{session}/get", json={"variable": variable, **more})


def test_a_variable_reads_another_one_that_has_no_value_yet(engine: Engine) -> None:
    with served(app()) as client:
        session = opened(client)
        first = submit(client, session, text={"value": "a"})["answer"]
        second = submit(client, session, text={"variable": first})["answer"]
        assert engine.meter.calls == 0  # nothing runs before a value is wanted
        value = get(client, session, second, objective="latency").json()["value"]
        assert get(client, session, first).json()["value"] == "<Say a now:>"
    assert value == "<Say <Say a now:> now:>" and engine.meter.calls == 2


def test_several_outputs_and_values_with_placeholders_in_them(engine: Engine) -> None:
    with served(app()) as client:
        session = opened(client)
        ids = submit(
            client, session, "A {{input:x}} {{output:one}} B {{output:two}}", x={"value": "{{output:two}} {{7*7}}"}
        )
        assert set(ids) == {"one", "two"}
        assert get(client, session, ids["one"]).json()["value"] == "<A {{output:two}} {{7*7}}>"
        assert get(client, session, ids["two"]).json()["value"].endswith("B>")


REFUSED: dict[str, tuple[dict[str, Any], int, str]] = {
    "no output": ({"prompt": "a"}, 422, "has no output"),
    "other placeholder": ({"prompt": "{{system:x}} {{output:a}}"}, 422, "is neither"),
    "unknown input": ({"prompt": PROMPT}, 422, "which is no parameter"),
    "unread input": ({"prompt": "a {{output:b}}", "placeholders": {"x": {"value": "a"}}}, 422, "does not read"),
    "no name": ({"prompt": "a {{output:b}}", "placeholders": {"x y": {"value": "a"}}}, 422, "prompt:"),
    "both": ({"prompt": PROMPT, "placeholders": {"text": {"value": "a", "variable": "b"}}}, 422, "either value or"),
    "unknown variable": ({"prompt": PROMPT, "placeholders": {"text": {"variable": "b"}}}, 404, "no such variable"),
    "tokens": ({"prompt": "a {{output:b}}", "sampling": {"max_tokens": 9999}}, 422, "at most 4096"),
    "sampling": ({"prompt": "a {{output:b}}", "sampling": {"seed": 1}}, 422, "sampling.seed"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_submitted(engine: Engine, case: str) -> None:
    body, status, expected = REFUSED[case]
    with served(app()) as client:
        assert expected in wrong(client.post(f"{opened(client)}/submit", json=body), status)
    assert engine.meter.calls == 0


def test_sessions_do_not_see_each_other_and_end(engine: Engine) -> None:
    with served(app(), ServerSettings(sessions=2, session_variables=1)) as client:
        one, other = opened(client), opened(client)
        refused = client.post("/semantic/sessions")
        assert "all 2 sessions are open" in wrong(refused, 429) and int(refused.headers["retry-after"]) > 0
        variable = submit(client, one, text={"value": "a"})["answer"]
        wrong(get(client, other, variable), 404)
        full = client.post(f"{one}/submit", json={"prompt": "a {{output:b}}"})
        assert "at most 1 variables" in wrong(full, 429)
        assert client.delete(one).status_code == 204
        assert "no such session" in wrong(get(client, one, variable), 404)
        wrong(client.delete(one), 404)
        opened(client)


def test_the_end_of_a_session_cancels_what_it_waits_for(engine: Engine) -> None:
    engine.gate.close()
    with served(app(), ServerSettings(allow=("deadline",))) as client:
        session = opened(client)
        variable = submit(client, session, text={"value": "a"})["answer"]
        assert "longer than" in wrong(get(client, session, variable, fineflow={"deadline": 0.05}), 504)
        engine.meter.wait_idle()
        assert "was cancelled" in wrong(get(client, session, variable), 409)
        until_free(client)


def test_sessions_that_are_not_used_expire() -> None:
    async def main() -> None:
        sessions = SemanticSessions(ServerSettings(session_seconds=10))
        unused, used = sessions.begin(), sessions.begin()
        await asyncio.sleep(9)
        session = sessions.get(used)
        await asyncio.sleep(2)
        assert len(sessions) == 1
        session.waiting = 1
        await asyncio.sleep(30)
        assert len(sessions) == 1  # somebody waits for a value
        session.waiting = 0
        await asyncio.sleep(11)
        assert len(sessions) == 0 and unused != used

    virtual.run(main())


def test_a_failed_request_names_its_variable(engine: Engine) -> None:
    engine.gate = Failing()
    with served(app()) as client:
        session = opened(client)
        message = wrong(get(client, session, submit(client, session, text={"value": "a"})["answer"]), 500)
    assert "submitted.answer has no value" in message and "secret" not in message


class Failing(Gate):
    async def wait(self, timeout: float = 10.0) -> None:
        raise ValueError("secret")


def test_without_an_engine_or_with_workers_there_are_none() -> None:
    with served(app()) as client:
        body = {"prompt": "a {{output:b}}"}
        assert "has set no engine" in wrong(client.post(f"{opened(client)}/submit", json=body), 404)
    with served(app(), ServerSettings(workers=2)) as client:
        assert "--workers 1" in wrong(client.post("/semantic/sessions"), 501)
    with served(app(), ServerSettings(semantic=False)) as client:
        wrong(client.post("/semantic/sessions"), 404)
