"""The page in a browser: ask, watch the stream, stop it, see plan and timeline. Needs Chromium."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from serving_kit import KEY, chain_of, echo, served

from browser import FOUND, Browser, browser
from fineflow.serving import ServerSettings
from fineflow.testing.gates import Gate

pytestmark = pytest.mark.skipif(FOUND is None, reason="needs chromium or chrome on the path")

EVIL = "<img src=x onerror=document.title='hacked'><script>document.title='hacked'</script>"


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


def opened(page: Browser, client: Any) -> None:
    page.send("Page.navigate", url=str(client.base_url))
    page.run("new Promise(done => document.readyState == 'complete' ? done() : addEventListener('load', done))")


def asked(page: Browser, text: str) -> None:
    page.run(f"document.getElementById('input').value = {text!r}; document.getElementById('send').click()")


def reached(page: Browser, condition: str) -> None:
    """Waits until a condition holds in the page."""
    until = time.monotonic() + 30
    while not page.run(condition):
        assert time.monotonic() < until, page.run("document.body.innerText")


def test_an_answer_is_streamed_as_text(shown: Browser) -> None:
    gate = Gate()
    with served(chain_of(echo(token_gate=gate)), name="rag") as client:
        opened(shown, client)
        reached(shown, "document.getElementById('input').value == '{\"question\":\"\"}'")  # from the schema
        asked(shown, f'{{"question": "{EVIL}"}}')
        gate.let(2)
        reached(shown, "document.getElementById('answer').textContent == 'You said: '")
        gate.open()
        reached(shown, "document.getElementById('state').textContent.startsWith('Done in')")
        answer = shown.run("document.getElementById('answer').textContent")
        assert answer == f"You said: Answer {EVIL}"
        assert shown.run("document.querySelectorAll('#answer *').length") == 0
        assert shown.run("document.title") == "rag"
        frame = "document.querySelector('#timing iframe')"
        assert "FakeChat" in shown.run(f"{frame}.srcdoc") and shown.run(f"{frame}.getAttribute('sandbox')") == ""
        shown.run("document.getElementById('plan').open = true")
        reached(shown, "document.querySelector('#plan iframe')?.srcdoc.includes('Plan for')")


def test_a_stopped_answer_ends_the_call(shown: Browser) -> None:
    gate = Gate()
    chat = echo(gate=gate)
    with served(chain_of(chat)) as client:
        opened(shown, client)
        asked(shown, '{"question": "a"}')
        gate.wait_arrived()
        shown.run("document.getElementById('stop').click()")
        reached(shown, "document.getElementById('state').textContent == 'Stopped'")
        chat.meter.wait_idle()


def test_refusals_are_shown(shown: Browser) -> None:
    with served(chain_of(echo()), ServerSettings(api_keys=(KEY,))) as client:
        opened(shown, client)
        asked(shown, '{"question": "a"}')
        reached(shown, "document.getElementById('state').textContent.startsWith('expected an API key')")
        shown.run(f"document.getElementById('key').value = {KEY!r}")
        asked(shown, '{"question": "a"}')
        reached(shown, "document.getElementById('state').textContent.startsWith('Done in')")
        assert shown.run("document.getElementById('answer').textContent") == "You said: Answer a"
        asked(shown, '{"question": ')
        reached(shown, "document.getElementById('state').textContent.startsWith('This is no JSON')")
