"""Sessions: prefixes kept as requests that wait for the rest of their prompt (vLLM's ``StreamingInput``).

An alternative to the prefix cache: the KV cache of a session cannot be evicted for other requests before its prompt is
complete. Such requests take no stop strings, and vLLM has had bugs with them. So sessions are used only with tested
versions, and only after a probe has given the same output with and without a session.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from fineflow.backends.vllm.host import Host
from fineflow.backends.vllm.sampling import params, warming
from fineflow.protocols import Sampling

TRIED = ("0.32.",)  # versions of vLLM
_SAID = 8  # tokens of the probe

log = logging.getLogger("fineflow")


def prompt_input(tokens: Sequence[int], salt: str = "") -> Any:
    """Returns vLLM's form of a prompt. It puts the salt into the hash of the first block, which all others continue."""
    from vllm.inputs import tokens_input

    return tokens_input(list(tokens), cache_salt=salt or None)


class Session:
    """One request to vLLM for a prefix, and later for the rest of the prompt. Belongs to the event loop it began on."""

    def __init__(self, host: Host, prefix: tuple[int, ...], number: str, priority: int, salt: str = "") -> None:
        self.prefix = prefix
        self.salt = salt
        self.loop = asyncio.get_running_loop()
        self._host = host
        self._rest: asyncio.Future[tuple[tuple[int, ...], Any]] | None = None  # of vLLM's loop
        self._outputs: AsyncGenerator[Any, None] = host.stream(
            lambda llm: llm.generate(self._inputs(), warming(), number, priority=-priority)
        )

    async def _inputs(self) -> AsyncGenerator[Any, None]:
        """Yields the parts of the prompt on vLLM's loop, as they arrive."""
        from vllm.engine.protocol import StreamingInput

        self._rest = asyncio.get_running_loop().create_future()
        yield StreamingInput(prompt_input(self.prefix, self.salt), warming())
        rest, sampling = await self._rest
        yield StreamingInput(prompt_input(rest, self.salt), sampling)

    async def begin(self) -> None:
        """Computes the prefix. vLLM samples a token after it, and drops that when the rest arrives."""
        try:
            await anext(self._outputs)
        except BaseException:
            await self._outputs.aclose()
            raise

    async def go_on(self, rest: tuple[int, ...], sampling: Any) -> AsyncGenerator[Any, None]:
        """Yields vLLM's outputs for the whole prompt."""

        def signal() -> None:
            assert self._rest is not None
            if not self._rest.done():
                self._rest.set_result((rest, sampling))

        async with aclosing(self._outputs) as outputs:
            self._host.run(signal)
            async for output in outputs:
                yield output
                if output.outputs and output.outputs[0].finish_reason:
                    return

    async def aclose(self) -> None:
        """Aborts the request, which frees its blocks."""
        await self._outputs.aclose()


class Sessions:
    """Sessions of an engine that wait for the rest of their prompts: the latest ones, at most ``most``."""

    def __init__(self, most: int, name: str) -> None:
        self.most = most
        self._name = name
        self._ids = itertools.count()
        self._waiting: dict[tuple[str, tuple[int, ...]], Session] = {}  # by salt and prefix
        self._host: Host | None = None  # the host that was probed
        self._agree = False

    async def usable(self, host: Host, probe: Sequence[int]) -> bool:
        """Returns True if this vLLM gives the same output with and without sessions. probe: tokens of some text."""
        if not self.most:
            return False
        if host is not self._host:
            self._host, self._agree = host, False
            self._waiting.clear()
            self._agree = host.facts.version.startswith(TRIED) and await self._judge(host, tuple(probe))
            if not self._agree:
                log.warning("sessions of vLLM %s are not used: their output is not known to agree", host.facts.version)
        return self._agree

    async def _judge(self, host: Host, probe: tuple[int, ...]) -> bool:
        how = params(Sampling(max_tokens=_SAID), self._name, _SAID)
        plain = host.stream(lambda llm: llm.generate(prompt_input(probe), how, self._number()))
        alone = [token async for output in plain for token in output.outputs[0].token_ids]
        session = Session(host, probe[: len(probe) // 2], self._number(), 0)
        await session.begin()
        outputs = session.go_on(probe[len(probe) // 2 :], params(Sampling(max_tokens=_SAID), self._name, _SAID))
        return alone == [token async for output in outputs for token in output.outputs[0].token_ids]

    def _number(self) -> str:
        return f"{self._name}-session-{next(self._ids)}"

    async def begin(self, host: Host, prefix: tuple[int, ...], priority: int, salt: str) -> None:
        """Computes a prefix, and keeps it until a prompt begins with it or ``most`` later ones were computed."""
        session = Session(host, prefix, self._number(), priority, salt)
        await session.begin()
        self._waiting[salt, prefix] = session
        while len(self._waiting) > self.most:
            await self._waiting.pop(next(iter(self._waiting))).aclose()

    async def release(self, prefix: tuple[int, ...], salt: str) -> None:
        """Ends the session of a prefix, if one waits."""
        session = self._waiting.get((salt, prefix))
        if session is not None and session.loop is asyncio.get_running_loop():
            del self._waiting[salt, prefix]
            await session.aclose()

    def take(self, prompt: tuple[int, ...], salt: str, sampling: Sampling) -> Session | None:
        """Removes and returns the session with the longest prefix of a prompt, if any can continue it."""
        if sampling.stop:
            return None
        found = [
            session
            for (whose, prefix), session in self._waiting.items()
            if whose == salt and len(prefix) < len(prompt) and prompt[: len(prefix)] == prefix
            if session.loop is asyncio.get_running_loop()
        ]
        return self._waiting.pop((salt, max(found, key=lambda each: len(each.prefix)).prefix)) if found else None
