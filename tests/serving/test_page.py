"""The page: what it is made of, and what it may load."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

from serving_kit import chain_of, echo, events, served, wrong

from fineflow.serving import ServerSettings
from fineflow.testing.gates import Gate

ASK = {"input": {"question": "a"}}


def test_the_page_loads_nothing_and_runs_its_own_script_only() -> None:
    with served(chain_of(echo()), name="<b>&name") as client:
        first, second = client.get("/"), client.get("/")
    policy = first.headers["content-security-policy"]
    [nonce] = re.findall(r"script-src 'nonce-([\w-]+)'", policy)
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy and nonce not in second.text
    assert re.findall(r"<script[^>]*>", first.text) == [f'<script nonce="{nonce}">']
    assert not re.search(r"""(src|href)=|https?://|@import|url\(""", first.text)
    assert "<b>" not in first.text and "&lt;b&gt;&amp;name" in first.text
    assert first.headers["x-content-type-options"] == "nosniff"


def test_a_request_may_ask_for_its_own_timeline() -> None:
    with served(chain_of(echo())) as client:
        plain = events(client.post("/stream", json=ASK).text)
        found = events(client.post("/stream", json={**ASK, "record": True}).text)
    assert [name for name, _ in plain if name != "data"] == ["metadata", "end"]
    assert [name for name, _ in found if name != "data"] == ["metadata", "timeline", "end"]
    [html] = [data["html"] for name, data in found if name == "timeline"]
    assert html.startswith("<!doctype html>") and "FakeChat" in html and "<script" not in html


def test_plans_and_timelines_are_the_operators_to_turn_off() -> None:
    with served(chain_of(echo())) as client:
        plan = client.get("/plan")
        assert "Plan for" in plan.text and plan.headers["content-security-policy"].startswith("sandbox")
    with served(chain_of(echo()), ServerSettings(page=False)) as client:
        wrong(client.get("/"), 404)
        wrong(client.get("/plan"), 404)
        assert "shows no timelines" in wrong(client.post("/stream", json={**ASK, "record": True}), 422)


def test_a_timeline_holds_the_call_of_its_own_request_only() -> None:
    gate = Gate()
    with served(chain_of(echo(gate=gate))) as client, ThreadPoolExecutor(2) as pool:
        other = pool.submit(client.post, "/invoke", json=ASK)
        gate.wait_arrived()
        recorded = pool.submit(client.post, "/stream", json={**ASK, "record": True})
        gate.wait_arrived(2)
        gate.open()
        assert other.result().status_code == 200
        [html] = [data["html"] for name, data in events(recorded.result().text) if name == "timeline"]
    assert html.count("fineflow: RunnableSequence.astream") > 0 and "ainvoke" not in html
