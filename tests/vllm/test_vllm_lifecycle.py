"""How vLLM starts, dies and ends: whoever waits hears why, nothing is left, and the next use starts another one."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

psutil = pytest.importorskip("psutil")

from helpers_vllm import LONG, QUERIES, SETTINGS, busy, chat, collect, processes, turns  # noqa: E402

from fineflow.adapters.core.contexts import Context  # noqa: E402
from fineflow.backends.vllm import VLLMEngine  # noqa: E402
from fineflow.errors import BackendError, RequestError  # noqa: E402

OWN = {**SETTINGS, "max_num_seqs": 2}  # another engine than that of the session


@pytest.fixture
async def mine(folder: Path) -> AsyncIterator[VLLMEngine]:
    engine = VLLMEngine(folder, name="mine", **OWN)
    yield engine
    await engine.aclose()


def of(engine: VLLMEngine) -> list[psutil.Process]:
    """The processes of this engine: its core, and the core's own."""
    host = engine.shared.host
    assert host is not None
    core = psutil.Process(host._processes()[0].pid)
    return [core, *core.children(recursive=True)]


def forked(claim: Callable[[], bool]) -> bool:
    """Whether it is so in a forked child."""
    child = os.fork()
    if not child:
        os._exit(0 if claim() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


async def test_killed_while_at_work_then_closed(mine: VLLMEngine) -> None:
    prompt, long = chat(mine, QUERIES), (mine.encode(LONG) * 200)[:1600]
    environment = dict(os.environ)
    starting = await asyncio.gather(*(collect(mine, prompt, max_tokens=8) for _ in range(3)))  # all wait for one start
    assert len({found.text for found in starting}) == 1
    assert dict(os.environ) == environment
    old = of(mine)
    with pytest.raises(AssertionError, match="too soon"):  # what kept it busy has failed as well
        async with busy(mine, 2):
            waiting = [asyncio.ensure_future(collect(mine, prompt)) for _ in range(2)]
            waiting.append(asyncio.ensure_future(mine.prefill(long)))
            await asyncio.sleep(0)
            old[0].send_signal(signal.SIGKILL)
            outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    for outcome in outcomes:
        assert isinstance(outcome, BackendError), outcome
        assert not isinstance(outcome, RequestError)
        assert "its process EngineCore ended with signal SIGKILL; its next use starts another one" in str(outcome)
    assert len({id(outcome) for outcome in outcomes}) == len(outcomes)
    assert mine.cached(long) == 0
    assert mine.cache_statistics() is None

    assert (await collect(mine, prompt, max_tokens=8)).text == starting[0].text
    assert len(old) > 1
    assert not any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in old)  # since the next start
    new = of(mine)
    assert new[0].pid != old[0].pid

    assert forked(lambda: mine.shared.host is None and "idle" in repr(mine))  # it has none, and ends nobody's
    assert (await collect(mine, prompt, max_tokens=8)).text == starting[0].text

    asking = asyncio.ensure_future(collect(mine, prompt, max_tokens=1500, extra=(("ignore_eos", True),)))
    host = mine.shared.host
    assert host is not None
    await turns(lambda: host.llm.get_num_unfinished_requests() == 1)
    await mine.aclose()
    with pytest.raises(BackendError, match="'mine' was closed while a request was running"):
        await asking
    await mine.aclose()
    assert "idle" in repr(mine)
    assert not [each for each in new if each.is_running()]
    assert not [each for each in processes() if each.status() == psutil.STATUS_ZOMBIE]


async def test_what_fails_in_its_process_is_told(folder: Path) -> None:
    engine = VLLMEngine(folder, name="none", **{**OWN, "kv_cache_memory_bytes": 4096})
    waiting = [collect(engine, [5, 6]), collect(engine, [5, 7]), engine.start(), engine.prefill([5] * 64)]
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    for outcome in outcomes:
        assert isinstance(outcome, BackendError), outcome
        assert "vLLM could not start with" in str(outcome)
        assert "No available memory for the cache blocks" in str(outcome)
    await engine.aclose()


@pytest.mark.parametrize(
    ("model", "options", "why"),
    [
        ("/nowhere/at/all", {}, "/nowhere/at/all"),
        (None, {"unheard_of": 1}, "unexpected keyword argument 'unheard_of'"),
        (None, {"max_model_len": 1 << 20}, "max_model_len"),
    ],
)
async def test_what_fails_before_is_told(folder: Path, model: str | None, options: dict[str, object], why: str) -> None:
    engine = VLLMEngine(model or folder, name="none", **options)
    for _ in range(2):  # each use tries again
        with pytest.raises(BackendError, match=why):
            await engine.start()
    if model is not None:
        with pytest.raises(BackendError, match=f"the tokenizer of LLM '{model}' could not be loaded"):
            engine.encode("x")
    await engine.aclose()


async def test_sessions_say_the_same(folder: Path) -> None:
    own = VLLMEngine(folder, name="sessions", sessions=1, **OWN)
    try:
        prompt = (own.encode(LONG) * 200)[:640] + chat(own, QUERIES)
        await own.prefill(prompt[:640])
        host = own.shared.host
        assert host is not None
        assert host.llm.get_num_unfinished_requests() == 1
        found = await collect(own, prompt, max_tokens=16)
        assert found.cached_tokens == 640
        assert found.tokens == (await collect(own, prompt, max_tokens=16)).tokens
        await own.prefill([9, *prompt[:640]])
        stopped = await collect(own, [9, *prompt], max_tokens=16, stop=("zzz",))  # not by the session
        assert stopped.tokens == (await collect(own, [9, *prompt], max_tokens=16)).tokens
        for start in range(10, 13):  # the last one stays
            await own.prefill([start, *prompt[:640]])
        await turns(lambda: host.llm.get_num_unfinished_requests() == 1)
    finally:
        await own.aclose()


async def test_freeing_a_context_ends_the_session_that_keeps_it(folder: Path) -> None:
    own = VLLMEngine(folder, name="contexts", sessions=4, **OWN)
    try:
        async with Context(own) as context:
            await context.fill(LONG * 40)
            host = own.shared.host
            assert host is not None
            assert host.llm.get_num_unfinished_requests() == 1
        await turns(lambda: host.llm.get_num_unfinished_requests() == 0)
    finally:
        await own.aclose()
