"""What engines an application runs on: latency profiles and numbers of instances, each with its source."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from fineflow.backends.emulated import EMBEDDER, LLAMA_2_7B, BatchProfile, LLMProfile, batch_profile, llm_profile

BLOCK = 16  # tokens of a block of the prefix cache
GEMMA_SHARE = 2.6 / 6.7  # parameters of gemma-2-2B and Llama-2-7B


@dataclass(frozen=True)
class Setting:
    """Engines of an application.

    llm: the core model, with ``llms`` instances. small: the model of drafts, judgements and contexts, also with
    ``llms`` instances. search: seconds of a search of a standing store. web: seconds of a web search.
    """

    source: str
    llm: LLMProfile = LLAMA_2_7B
    small: LLMProfile = LLAMA_2_7B
    embedder: BatchProfile = EMBEDDER
    reranker: BatchProfile = EMBEDDER
    llms: int = 2
    search: float = 0.03
    web: float = 0.25

    def devices(self, engine: str) -> int:
        """Returns the number of instances of an engine."""
        return self.llms if engine in ("llm", "small") else 1


PAPER = Setting(
    "Ayo, section 7: two instances of each LLM, one of each other engine. Latencies of Llama-2-7B from its Table 3, of "
    "the embedding model from its Figure 4a. Assumed, since Ayo reports none: the reranker takes as long as the "
    "embedding model, a search 30 ms, a web search 250 ms."
)


def lighter(profile: LLMProfile) -> LLMProfile:
    """Returns the profile of a model of gemma-2-2B's size: an assumption, times in proportion to the parameters."""
    times = {name: getattr(profile, name) * GEMMA_SHARE for name in ("iteration", "prefill_token", "decode_sequence")}
    return replace(profile, **times)


@dataclass(frozen=True)
class Device:
    """Where engines run. kind: emulated, transformers, vllm or openai; about: what came after the colon."""

    kind: str
    about: str = ""
    profiles: tuple[str, ...] = field(default=())

    def setting(self, own: Setting) -> Setting:
        """Returns the setting of an application on this device: its own one, with the profiles that were named."""
        for name in self.profiles:
            path: str | Path = Path(name) if name.endswith(".json") else name
            try:
                model = llm_profile(path)
            except ValueError:
                batches = batch_profile(path)
                own = replace(own, embedder=batches, reranker=batches)
            else:
                own = replace(own, llm=model, small=model)
        return replace(own, source=f"profiles {', '.join(self.profiles)}") if self.profiles else own


def device(text: str) -> Device:
    """Parses ``--device``: emulated, emulated:PROFILE[,PROFILE], transformers, vllm (both also :MODEL), or openai:URL.

    Raises ValueError for any other text, and for a profile that is not known.
    """
    kind, _, about = text.partition(":")
    if kind not in ("emulated", "transformers", "vllm", "openai"):
        raise ValueError(
            f"expected emulated, emulated:PROFILE, transformers, vllm or openai:URL as a device; got {text!r}"
        )
    if kind == "openai" and not about:
        raise ValueError("openai needs the address of a server, e.g. openai:http://localhost:8000/v1")
    profiles = tuple(filter(None, about.split(","))) if kind == "emulated" else ()
    found = Device(kind, about, () if profiles == ("ayo",) else profiles)
    found.setting(PAPER)
    return found
