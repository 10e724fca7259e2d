"""A request on its way to transformers' manager, and what comes back."""

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
    """What the manager's thread hands to a waiting request: new tokens, and how the request stands.

    logprobs: of the tokens, where they were asked for.
    """

    tokens: list[int]
    finished: bool = False
    error: BaseException | None = None
    logprobs: Sequence[Alternatives] = ()


@dataclass(eq=False, slots=True)
class Request:
    """One request, as it travels with transformers' own state of it (see ``request_of``).

    deliver is called on ``loop``. cached_tokens, started and batch are filled in by the manager's thread: tokens of
    the prompt found in the prefix cache, when the request left the queue (``time.perf_counter`` seconds), and with
    which step of the model. So is logprobs, a place for each token of the output, where they were asked for.
    steering: what changes the scores of its tokens, if anything does.
    """

    id: str
    tokens: list[int]
    sampling: Sampling
    seed: int
    priority: int
    loop: asyncio.AbstractEventLoop
    deliver: Callable[[Output], None]
    stop_at_eos: bool = True
    steering: Steering | None = None
    logprobs: list[Alternatives] = field(default_factory=list)
    cached_tokens: int = -1
    started: float = -1.0
    batch: int = -1
    delivered: int = 0

    def __deepcopy__(self, memo: dict[int, Any]) -> Request:
        return self  # transformers copies a request's arguments when it restarts it; identity must survive


def request_of(state: RequestState) -> Request | None:
    """The request that a state of transformers belongs to; None for those it makes itself to warm up."""
    found = state.logit_processor_kwargs.get("request")
    return found if isinstance(found, Request) else None
