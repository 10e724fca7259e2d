"""``with`` statements, streams, own containers in functions: calls behind them start early; what they do counts."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from asking_functions import CACHE, LOG, aask, ask, llm, observed
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough
from pydantic import BaseModel

from fineflow.testing import virtual_threads

pytestmark = pytest.mark.skipif(not virtual_threads.available, reason="needs /proc")

LOCK = threading.Lock()
PROMPT = ChatPromptTemplate.from_template("say {x}")
CHAIN = PROMPT | llm | StrOutputParser()


# --- managers -----------------------------------------------------------------------------------------------------


class Timer:
    def __enter__(self) -> Timer:
        self.began = time.perf_counter()
        return self

    def __exit__(self, *error: Any) -> None:
        self.took = time.perf_counter() - self.began


class AsyncTimer:
    async def __aenter__(self) -> AsyncTimer:
        self.began = time.perf_counter()
        return self

    async def __aexit__(self, *error: Any) -> None:
        self.took = time.perf_counter() - self.began


@contextlib.contextmanager
def timed(name: str) -> Iterator[str]:
    began = time.perf_counter()
    yield name
    print(name, time.perf_counter() - began)


@contextlib.contextmanager
def finishing(name: str) -> Iterator[str]:
    try:
        yield name.upper()
    finally:
        print("finished", name)


@contextlib.asynccontextmanager
async def afinishing(name: str) -> AsyncIterator[str]:
    try:
        yield name.upper()
    finally:
        print("finished", name)


class Service:
    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception:
            print("failed", name)
            raise


SERVICE = Service()


def of_a_class(q: str) -> Any:
    with Timer() as timer:
        a = ask("a " + q)
    return a, ask("b " + q), timer.took >= 0


async def of_an_async_class(q: str) -> Any:
    async with AsyncTimer():
        a = await aask("a " + q)
    return a, await aask("b " + q)


def of_generators(q: str) -> Any:
    with timed("a"), finishing("inner") as name:
        a = ask(f"a {name}")
    with finishing("b") as name:
        return a, ask(f"b {name}")


async def of_an_async_generator(q: str) -> Any:
    async with afinishing("a") as name:
        a = await aask(f"a {name}")
    with timed("b"):
        return a, await aask(f"b {q}")


def of_a_method(q: str) -> Any:
    with SERVICE.step("a"):
        a = ask("a " + q)
    with SERVICE.step("b"):
        return a, ask("b " + q)


def behind_a_lock(q: str) -> Any:
    with LOCK:
        CACHE[q] = "known"
    a = ask("a " + q)
    with LOCK:
        CACHE[q] = a
    return a, ask("b " + q)


async def behind_an_async_lock(q: str) -> Any:
    lock, a = asyncio.Lock(), await aask("a " + q)
    async with lock:
        CACHE[q] = a
    return a, await aask("b " + q)


def kept_by_a_hash(q: str) -> Any:
    key = hashlib.sha256(q.encode()).hexdigest()
    if key in CACHE:
        return CACHE[key]
    CACHE[key] = ask("a " + q)
    return CACHE[key], ask(f"b {key[:4]}")


# --- streams ------------------------------------------------------------------------------------------------------


async def a_stream(q: str) -> Any:
    out = ""
    async for part in llm.astream("a " + q):
        print(part.content, end="")
        out += str(part.content)
    return out, await aask("b " + q)


async def a_stream_in_part(q: str) -> Any:
    out = []
    async for part in llm.astream("a " + q):
        if not part.content:
            continue
        out.append(part.content)
        if len(out) > 2:
            break
    else:
        out.append("all")
    return out, await aask("b " + q)


async def a_comprehension(q: str) -> Any:
    return [part.content async for part in llm.astream("a " + q)], await aask("b " + q)


async def a_chain_made_here(q: str) -> Any:
    chain = PROMPT | llm | StrOutputParser()
    return [part async for part in chain.astream({"x": "a"})], await aask("b " + q)


def a_sync_chain_made_here(q: str) -> Any:
    chain = {"x": RunnablePassthrough()} | PROMPT | llm | StrOutputParser()
    return list(chain.stream("a")), ask("b " + q)


async def streams_in_helpers(q: str) -> Any:
    async def collected(text: str) -> str:
        return "".join([part async for part in CHAIN.astream({"x": text})])

    return await asyncio.gather(collected("a"), collected("c")), await aask("b " + q)


# --- containers of the user's own --------------------------------------------------------------------------------


class History:
    def __init__(self) -> None:
        self.messages: list[str] = []

    def add(self, text: str) -> None:
        self.messages.append(text)

    def __len__(self) -> int:
        return len(self.messages)

    def __iter__(self) -> Iterator[str]:
        yield from self.messages

    def __getitem__(self, at: Any) -> Any:
        return self.messages[at]

    def __contains__(self, text: object) -> bool:
        return text in self.messages

    def __str__(self) -> str:
        return "; ".join(self.messages)


class Registry:
    def __init__(self, **kept: Any) -> None:
        self.kept = kept

    def __getitem__(self, name: str) -> Any:
        return self.kept[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.kept)

    def __bool__(self) -> bool:
        return len(self.kept) > 1


PROMPTS = Registry(a="first {}", b="second {}")


def of_a_history(q: str) -> Any:
    history = History()
    history.add(q)
    a = ask(f"{history} {len(history)}")
    if history and q in history and history[0] == q:
        return a, ask(f"{history} {history[-1]}"), [*history]
    return a


def of_a_registry(q: str) -> Any:
    return [ask(PROMPTS[name].format(q)) for name in PROMPTS] if PROMPTS else []


def of_an_answer_in_a_history(q: str) -> Any:
    history = History()
    history.add(ask("a " + q))
    print(history)
    return str(history), ask("b " + q)


class Note(BaseModel):
    text: str

    @property
    def short(self) -> str:
        return self.text[:4]

    def __str__(self) -> str:
        return f"note: {self.text}"


def of_a_model_with_a_property(q: str) -> Any:
    note = Note(text=ask("a " + q))
    return note.short, f"{note}", ask("b " + q)


GAINS = (
    *(of_a_class, of_an_async_class, of_generators, of_an_async_generator, of_a_method),
    *(behind_a_lock, behind_an_async_lock, kept_by_a_hash),
    *(of_a_history, of_a_registry, of_an_answer_in_a_history, of_a_model_with_a_property),
    *(a_stream, a_stream_in_part, a_comprehension, a_chain_made_here, a_sync_chain_made_here, streams_in_helpers),
)


@pytest.mark.parametrize("func", GAINS, ids=lambda func: func.__name__)
def test_calls_behind_start_at_once(func: Callable[[str], Any], capsys: pytest.CaptureFixture[str]) -> None:
    stock, asked, took = observed(func, "q", optimized=False)
    mine, sent, seconds = observed(func, "q", optimized=True)
    assert (mine, sent) == (stock, asked)
    assert took == pytest.approx(2.0, abs=0.1)
    assert seconds < 1.2


# --- what they do counts ------------------------------------------------------------------------------------------


class Noting:
    """Notes how its body ended."""

    def __enter__(self) -> None:
        LOG.append("entered")

    def __exit__(self, kind: Any, *error: Any) -> None:
        if kind is not None:
            LOG.append("failed")


class Ending(Noting):
    def __exit__(self, kind: Any, *error: Any) -> bool:  # type: ignore[override]
        return kind is ValueError


@contextlib.contextmanager
def noting(name: str) -> Iterator[None]:
    try:
        yield
    except ValueError:
        LOG.append(name)
        raise


@contextlib.contextmanager
def noting_twice(name: str) -> Iterator[None]:
    try:
        try:
            yield
        finally:
            LOG.append(name)
    except ValueError:
        LOG.append(name)
        raise


@contextlib.contextmanager
def ending(name: str) -> Iterator[None]:
    with contextlib.suppress(ValueError):
        yield
    LOG.append(name)


@contextlib.contextmanager
def perhaps(name: str) -> Iterator[None]:
    if ask(name).endswith("q"):
        LOG.append("asked")
    yield


def handled(manager: Any, q: str) -> Any:
    a = ask("before")
    try:
        with manager:
            a = ask(q)
    except ValueError:
        a = "handled"
    return a, ask(f"behind {LOG}")


def a_noting_class(q: str) -> Any:
    return handled(Noting(), q)


def an_ending_class(q: str) -> Any:
    return handled(Ending(), q)


def a_noting_generator(q: str) -> Any:
    return handled(noting("noted"), q)


def nested_handlers(q: str) -> Any:
    return handled(noting_twice("noted"), q)


def an_ending_generator(q: str) -> Any:
    return handled(ending("ended"), q)


def a_generator_that_asks(q: str) -> Any:
    return handled(perhaps(q), q)


def raising(q: str) -> Any:
    try:
        with noting("noted"):
            if ask(q) == "re q":
                raise ValueError(q)
    except ValueError:
        q += "!"
    return q, ask(f"behind {LOG} {q}")


def returning(q: str) -> Any:
    with Noting():
        if ask(q) == "re q":
            return "early", len(LOG)
    return ask(f"behind {LOG}")


def returning_in_a_generator(q: str) -> Any:
    with finishing("a"), noting("b"):
        if ask(q) == "re q":
            return "early", ask("return")
        LOG.append(ask("going on"))
    return ask(f"behind {LOG}")


def entered_twice(q: str) -> Any:
    manager = finishing("a")
    with manager:
        a = ask("a")
    try:
        with manager:
            a += ask("b")
    except Exception as error:
        LOG.append(type(error).__name__)
    return a, ask("c")


def in_a_loop(q: str) -> Any:
    out = []
    for name in ("a", "b", "c"):
        with finishing(name):
            if ask(name) == "re b":
                break
            LOG.append(name)
            out.append(ask(f"{name} {LOG}"))
    return out, ask(f"behind {LOG}")


def a_stream_that_nobody_reads(q: str) -> Any:
    lazy = CHAIN.stream({"x": q})
    LOG.append("made")
    return type(lazy).__name__, ask(f"behind {LOG}")


def a_function_in_a_stream(q: str) -> Any:
    chain = CHAIN | (lambda text: LOG.append(text) or text)
    lazy, before = chain.stream({"x": "a"}), ask(f"before {LOG}")
    return before, list(lazy), ask(f"behind {LOG}")


async def a_loop_that_notes(q: str) -> Any:
    async for part in llm.astream(q):
        LOG.append(str(part.content))
    return await aask(f"behind {''.join(LOG)}")


async def a_loop_that_returns(q: str) -> Any:
    async for part in llm.astream(q):
        if part.content:
            return part.content
    return await aask("behind")


COUNT = (
    *(a_noting_class, an_ending_class, a_noting_generator, nested_handlers, an_ending_generator, a_generator_that_asks),
    *(
        raising,
        returning,
        returning_in_a_generator,
        entered_twice,
        in_a_loop,
        a_stream_that_nobody_reads,
        a_function_in_a_stream,
    ),
    *(a_loop_that_notes, a_loop_that_returns),
)


@pytest.mark.parametrize("value", ["q", "fail"])
@pytest.mark.parametrize("func", COUNT, ids=lambda func: func.__name__)
def test_what_they_do_counts(func: Callable[[str], Any], value: str, capsys: pytest.CaptureFixture[str]) -> None:
    stock, asked, _ = observed(func, value, optimized=False)
    mine, sent, _ = observed(func, value, optimized=True)
    assert mine == stock
    if value == "q":
        assert sent == asked


# --- what is not to run beside anything ----------------------------------------------------------------------------


async def one_at_a_time(q: str) -> Any:
    limit = asyncio.Semaphore(1)

    async def one(text: str) -> str:
        async with limit:
            return await aask(text)

    return await asyncio.gather(one("a"), one("b")), await aask("c")


def held_meanwhile(q: str) -> Any:
    with LOCK:
        a, b = ask("a"), ask("b")
    return a, b, ask("c")


@pytest.mark.parametrize("func", [one_at_a_time, held_meanwhile], ids=lambda func: func.__name__)
def test_calls_under_a_lock_stay_alone(func: Callable[[str], Any]) -> None:
    stock, asked, took = observed(func, "q", optimized=False)
    assert observed(func, "q", optimized=True)[:2] == (stock, asked)
    assert observed(func, "q", optimized=True)[2] == pytest.approx(took, abs=0.1)
