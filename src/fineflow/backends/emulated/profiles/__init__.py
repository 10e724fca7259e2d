"""How long the work of emulated engines takes. The shipped figures, each with its source, lie beside this file.

A profile file is JSON: ``source`` says where its figures come from, ``measured`` are these figures, ``emulated`` is
what was fitted to them (its ``kind`` and the fields of that class), and ``lines`` are the same for the cost model
(``fineflow.costs.load``). ``fineflow profile`` writes one for an engine on the machine it runs on.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class LLMProfile:
    """How long iterations of a continuously batching LLM take, and what it has room for.

    iteration: seconds of every iteration. prefill_token: seconds for each prompt token that it prefills besides.
    decode_sequence: seconds for each sequence that it decodes a token of besides. prefill_tokens: most prompt tokens
    of one iteration, longer prompts are prefilled in chunks. sequences: most requests at once. blocks: of the
    key/value cache. prefill: seconds more of an iteration that prefills anything.
    """

    iteration: float
    prefill_token: float
    decode_sequence: float
    prefill_tokens: int = 2048
    sequences: int = 64
    blocks: int = 1024
    prefill: float = 0.0

    def seconds(self, prefilled: int, decoding: int) -> float:
        """What an iteration takes that prefills so many tokens and decodes so many sequences."""
        started = self.iteration + (self.prefill if prefilled else 0.0)
        return started + prefilled * self.prefill_token + decoding * self.decode_sequence


@dataclass(frozen=True, slots=True)
class BatchProfile:
    """How long a batch takes: ``call`` seconds and ``item`` seconds for each item, at most ``max_batch`` of them."""

    call: float
    item: float
    max_batch: int = 16

    def seconds(self, items: int) -> float:
        """What a batch of so many items takes."""
        return self.call + items * self.item


KINDS: dict[str, type[LLMProfile] | type[BatchProfile]] = {"llm": LLMProfile, "batch": BatchProfile}


def profile_names() -> tuple[str, ...]:
    """The profiles that are shipped, for ``load_profile``."""
    found = (each.name.removesuffix(".json") for each in files(__name__).iterdir() if each.name.endswith(".json"))
    return tuple(sorted(found))


def profile_data(profile: str | Path) -> dict[str, Any]:
    """Everything that a profile file says. Raises as ``load_profile``."""
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
    """The profile of that name (``profile_names``), or of a file that ``fineflow profile`` has written.

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
    """``load_profile`` for an LLM. Raises ValueError if it is one of another kind."""
    found = load_profile(profile)
    if not isinstance(found, LLMProfile):
        raise ValueError(f"{profile} is a profile of a batch engine; expected one of an LLM")
    return found


def batch_profile(profile: str | Path) -> BatchProfile:
    """``load_profile`` for an engine that works in batches. Raises ValueError if it is one of another kind."""
    found = load_profile(profile)
    if not isinstance(found, BatchProfile):
        raise ValueError(f"{profile} is a profile of an LLM; expected one of a batch engine")
    return found


LLAMA_2_7B = llm_profile("llama-2-7b")
EMBEDDER = batch_profile("ayo-embedder")
STORE = BatchProfile(call=0.03, item=0.0)
"""A vector store that answers a search in 30 ms: an assumption, as Ayo tells no times of its store either."""
CROSS_ENCODER = EMBEDDER
"""Ayo tells no times of its reranker; it is assumed to be a model like the one that embeds, run on pairs."""
