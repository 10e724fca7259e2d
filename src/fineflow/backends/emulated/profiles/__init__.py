"""Latency profiles of emulated engines. The shipped profiles, each with its source, lie beside this file.

A profile file is JSON: ``source`` is the origin of the figures, ``measured`` the figures, ``emulated`` the model fitted
to them (its ``kind`` and the fields of that class), and ``lines`` the same fit for the cost model
(``fineflow.costs.load``). ``fineflow profile`` writes one for an engine on the current machine.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class LLMProfile:
    """Iteration times and capacity of an LLM with continuous batching.

    iteration: seconds of every iteration. prefill_token: additional seconds per prefilled prompt token.
    decode_sequence: additional seconds per decoding sequence. prefill_tokens: most prompt tokens of one iteration;
    longer prompts are prefilled in chunks. sequences: most concurrent requests. blocks: size of the KV cache in blocks.
    prefill: additional seconds of an iteration that prefills anything. free: prompt tokens of an iteration that cost
    nothing: on a GPU, few tokens are computed while the weights are read and kernels are launched.
    """

    iteration: float
    prefill_token: float
    decode_sequence: float
    prefill_tokens: int = 2048
    sequences: int = 64
    blocks: int = 1024
    prefill: float = 0.0
    free: int = 0

    def seconds(self, prefilled: int, decoding: int) -> float:
        """Returns the seconds of an iteration that prefills and decodes so many tokens and sequences."""
        started = self.iteration + (self.prefill if prefilled else 0.0)
        return started + max(prefilled - self.free, 0) * self.prefill_token + decoding * self.decode_sequence


@dataclass(frozen=True, slots=True)
class BatchProfile:
    """Time of a batch: ``call`` seconds plus ``item`` seconds per item, at most ``max_batch`` items."""

    call: float
    item: float
    max_batch: int = 16

    def seconds(self, items: int) -> float:
        """Returns the seconds of a batch of so many items."""
        return self.call + items * self.item


KINDS: dict[str, type[LLMProfile] | type[BatchProfile]] = {"llm": LLMProfile, "batch": BatchProfile}


def profile_names() -> tuple[str, ...]:
    """Returns the names of the shipped profiles, for ``load_profile``."""
    found = (each.name.removesuffix(".json") for each in files(__name__).iterdir() if each.name.endswith(".json"))
    return tuple(sorted(found))


def profile_data(profile: str | Path) -> dict[str, Any]:
    """Returns the content of a profile file. Raises like ``load_profile``."""
    if isinstance(profile, Path):
        text = profile.read_text(encoding="utf-8")
    elif profile in profile_names():
        text = files(__name__).joinpath(f"{profile}.json").read_text(encoding="utf-8")
    else:
        raise ValueError(
            f"no profile is called {profile!r}; shipped are {', '.join(profile_names())}; a file is given as a Path"
        )
    try:
        data: dict[str, Any] = json.loads(text)
        if not {"source", "emulated"} <= data.keys():
            raise ValueError("it has no 'source' and 'emulated'")
    except (ValueError, AttributeError) as error:
        raise ValueError(f"{profile}: expected a profile as 'fineflow profile' writes it: {error}") from error
    return data


def load_profile(profile: str | Path) -> LLMProfile | BatchProfile:
    """Returns the profile of that name (``profile_names``), or from a file written by ``fineflow profile``.

    Raises ValueError for a name that is not shipped and for a file that is no profile; OSError if it cannot be read.
    """
    fields = dict(profile_data(profile)["emulated"])
    try:
        return KINDS[fields.pop("kind")](**fields)
    except (KeyError, TypeError) as error:
        kinds = " or ".join(map(repr, KINDS))
        raise ValueError(
            f"{profile}: 'emulated' needs a kind ({kinds}) and the fields of its class: {error}"
        ) from error


def llm_profile(profile: str | Path) -> LLMProfile:
    """Returns the profile of an LLM. Raises like ``load_profile``, and ValueError for another kind."""
    found = load_profile(profile)
    if not isinstance(found, LLMProfile):
        raise ValueError(f"{profile} is a profile of a batch engine; expected one of an LLM")
    return found


def batch_profile(profile: str | Path) -> BatchProfile:
    """Returns the profile of a batch engine. Raises like ``load_profile``, and ValueError for another kind."""
    found = load_profile(profile)
    if not isinstance(found, BatchProfile):
        raise ValueError(f"{profile} is a profile of an LLM; expected one of a batch engine")
    return found


LLAMA_2_7B = llm_profile("llama-2-7b")
EMBEDDER = batch_profile("ayo-embedder")
STORE = BatchProfile(call=0.03, item=0.0)
"""A vector store that answers a search in 30 ms: an assumption, as Ayo reports no times of its store either."""
CROSS_ENCODER = EMBEDDER
"""Ayo reports no times of its reranker; it is assumed to be as fast as the embedding model, per pair."""
