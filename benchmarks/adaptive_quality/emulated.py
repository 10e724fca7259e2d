"""The same chain with emulated delays: the answers are those of the real model, the seconds those of a larger one.

The demo's model takes about as long for a profile as for an answer, because its chunks are short and it is small. Here
its words stand for a Llama-2-7B that reads chunks of ``CHUNK_TOKENS`` tokens on a GPU with 48 GiB (Ayo, Table 3), in
virtual time. Retrieval, profiles, choices and answers are computed by the real models. What is emulated is how long
they take, and how much KV cache they need.
"""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.adaptive_quality.app import ANSWER_TOKENS, MOST_CHUNKS, chain_of, profiler_of, stored
from benchmarks.adaptive_quality.datasets import Dataset
from fineflow.adaptation import Profiler
from fineflow.adaptation.distilled import PROBE
from fineflow.demo.data import default_model
from fineflow.engines import EmulatedLLM, LLMProfile

CHUNK_TOKENS = 500  # of an emulated chunk; RAGServe's Table 1 has inputs of 400 to 12,000 tokens
KV_TOKENS = 59_392  # Llama-2-7B in 16 bit on 48 GiB: what weights and activations leave, at 512 KiB for each token
ITERATION, PREFILL_TOKEN, DECODE_SEQUENCE = 0.0305, 0.00023, 0.0003  # seconds of Llama-2-7B: Ayo, Table 3
PROFILING = LLMProfile(iteration=0.01, prefill_token=0.00003, decode_sequence=0.0001)
"""A small profiler on a device of its own: an assumption."""
SEARCH_SECONDS = 0.1  # embedding and search: an assumption
ANSWERS = Path(".cache/adaptive_quality.json")  # of the demo's model, by prompt
_SAVED = 50  # answers after which they are written
_FOUND = 12


class TimedRetriever(BaseRetriever):
    """Returns what a real search has found, after ``SEARCH_SECONDS``."""

    found: dict[str, list[Document]]
    k: int = 4

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        raise NotImplementedError("virtual time has async methods only")

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun
    ) -> list[Document]:
        await asyncio.sleep(SEARCH_SECONDS)
        return self.found[query][: self.k]


class Greedy:
    """Answers prompts by a real model, one at a time. Keeps the answers, also in a file if one is given."""

    def __init__(self, folder: str, file: Path | None = None) -> None:
        torch.set_num_threads(1)  # two wait for each other while other programs use the cores; the clock is virtual
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self._file = file
        self._kept: dict[str, str] = {}
        if file is not None and file.exists():
            self._kept = json.loads(file.read_text(encoding="utf-8"))

    def __call__(self, prompt: str) -> str:
        """Returns the continuation of a prompt, greedily, of at most ``ANSWER_TOKENS`` tokens."""
        return self._answer(prompt, ANSWER_TOKENS)

    def value(self, prompt: str) -> str:
        """Returns the next value of a JSON object. The model writes the space in front of it: its tokens differ."""
        return re.split(r'[",}]', self._answer(prompt.rstrip(" "), 4).strip())[0]

    def save(self) -> None:
        """Writes the answers to the file."""
        if self._file is not None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._file.write_text(json.dumps(self._kept), encoding="utf-8")

    def _answer(self, prompt: str, most: int) -> str:
        if prompt not in self._kept:
            self._kept[prompt] = self._decode(prompt, most)
            if len(self._kept) % _SAVED == 0:
                self.save()
        return self._kept[prompt]

    @torch.inference_mode()
    def _decode(self, prompt: str, most: int) -> str:
        given = self.tokenizer(prompt, return_tensors="pt", add_special_tokens=False)["input_ids"]
        end, cache, found = self._model.config.eos_token_id, None, []
        while len(found) < most:
            said = self._model(given, past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache, token = said.past_key_values, int(said.logits[0, -1].argmax())
            if token in (end if isinstance(end, list) else [end]):
                break
            found.append(token)
            given = torch.tensor([[token]])
        return str(self.tokenizer.decode(found))


class RealChat(EmulatedLLM):
    """Emulated engine that renders conversations by the chat template of the real model."""

    tokenizer: Any = None

    def render_chat(self, messages: Any, *, add_generation_prompt: bool = True, tools: Any = ()) -> str:
        """Returns the prompt that the real model was trained on."""
        plain = [each.as_dict() for each in messages]
        made = self.tokenizer.apply_chat_template(plain, tokenize=False, add_generation_prompt=add_generation_prompt)
        return str(made)


@dataclass(frozen=True)
class EmulatedBench:
    """As ``app.Bench``, in virtual time."""

    chain: Any
    engine: RealChat
    profiling: RealChat
    about: str
    chunks: int
    greedy: Greedy
    vectors: dict[str, list[float]]
    most: int = MOST_CHUNKS

    def profiler(self) -> Profiler:
        """Returns a profiler of questions that has seen none."""
        return profiler_of(self.profiling, self.about)

    async def embed(self, text: str) -> list[float]:
        """Returns the vector of a question, which the search takes half of its time for."""
        await asyncio.sleep(SEARCH_SECONDS / 2)
        return self.vectors[text]

    def forget(self) -> None:
        """Empties the prefix cache."""
        self.engine.forget()

    def close(self) -> None:
        """Writes the answers to their file, so that another run need not compute them."""
        self.greedy.save()


def load(dataset: Dataset, model: str | None = None, kv_tokens: int = KV_TOKENS) -> EmulatedBench:
    """Loads the real models, searches for every question, and emulates their times. kv_tokens: of the larger model."""
    greedy = Greedy(str(model or default_model()), None if model else ANSWERS)
    store, chunks = stored(dataset)
    found = {each.text: store.similarity_search(each.text, k=_FOUND) for each in dataset.questions}
    vectors = {text: store.embeddings.embed_query(text) for text in (*found, PROBE)}
    scale = CHUNK_TOKENS / fmean(len(chunk.split()) for chunk in chunks)
    profile = LLMProfile(
        iteration=ITERATION,
        prefill_token=PREFILL_TOKEN * scale,
        decode_sequence=DECODE_SEQUENCE,
        sequences=256,
        blocks=int(kv_tokens / scale) // 16,
    )
    engine = RealChat(greedy, profile, name="serving", capacity=int(kv_tokens / scale))
    profiling = RealChat(greedy.value, PROFILING, name="profiling")
    engine.tokenizer = profiling.tokenizer = greedy.tokenizer
    return EmulatedBench(
        chain_of(TimedRetriever(found=found), engine), engine, profiling, dataset.about, len(chunks), greedy, vectors
    )
