"""Requests to transformers' manager, and their outputs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from transformers.generation.continuous_batching.requests import RequestState

from fineflow.backends.transformers.steering import Alternatives, Steering
from fineflow.protocols import Sampling


@dataclass(slots=True)
class Output:
    """Output from the manager's thread to a waiting request: new tokens, and the state of the request.

    logprobs: of the tokens, if requested.
    """

    tokens: list[int]
    finished: bool = False
    error: BaseException | None = None
    logprobs: Sequence[Alternatives] = ()


@dataclass(eq=False, slots=True)
class Request:
    """One request, attached to transformers' own state of it (see ``request_of``).

    deliver is called on ``loop``. The manager's thread sets cached_tokens (tokens of the prompt found in the prefix
    cache), started (time at which the request left the queue, in ``time.perf_counter`` seconds), batch (step of the
    model in which it began) and logprobs (an entry per output token, if requested). steering: changes the scores of its
    tokens; None if they stay as they are.
    """

    id: str
    tokens: list[int]
    sampling: Sampling
    seed: int
    priority: int
    loop: asyncio.AbstractEventLoop
    deliver: Callable[[Output], None]
    stop_at_eos: bool = True
    salt: str = ""
    steering: Steering | None = None
    logprobs: list[Alternatives] = field(default_factory=list)
    cached_tokens: int = -1
    started: float = -1.0
    batch: int = -1
    delivered: int = 0

    def __deepcopy__(self, memo: dict[int, Any]) -> Request:
        return self  # transformers copies the arguments of a restarted request; this object must stay the same


def request_of(state: RequestState) -> Request | None:
    """Returns the request of a state of transformers; None for states that transformers creates to warm up."""
    found = state.logit_processor_kwargs.get("request")
    return found if isinstance(found, Request) else None
