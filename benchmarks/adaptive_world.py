"""Queries, emulated components and quality tables for ``benchmarks.adaptive``. Nothing here is measured.

The quality tables say how good an answer in a configuration is. Their form follows RAGServe, section 3: a piece of
information counts if its chunk is among those read; ``map_rerank`` reads one chunk; more chunks than needed cost up to
20 % in one prompt (Figure 4 b); for complex queries summaries are 30 % better (4 a), if they are long enough (4 c).
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.messages import AIMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnablePassthrough

from fineflow.adaptation import Configuration, Profile
from fineflow.engines import EmulatedLLM, LLMProfile
from fineflow.langchain import ChatEngine

KV_TOKENS = 59_392
"""Llama-2-7B in 16 bit: 512 KiB a token, in 90 % of 48 GiB less 12.6 GiB of weights and 1.6 GiB of activations."""
SERVING = LLMProfile(
    iteration=0.0305, prefill_token=0.00023, decode_sequence=0.0003, sequences=256, blocks=KV_TOKENS // 16
)
"""Seconds of Llama-2-7B (Ayo, Table 3), cache of a GPU with 48 GiB."""
UNSURE, WRONG = 0.07, 0.04
"""Shares of profiles of low confidence, and of wrong ones among the others (RAGServe, Figure 9). That those of low
confidence are wrong, too, and that each example of feedback halves both shares, is assumed."""
PROFILING = LLMProfile(iteration=0.01, prefill_token=0.00003, decode_sequence=0.0001)
"""A small model on a device of its own that writes a profile of 20 words in 0.2 s: an assumption."""
SEARCH_SECONDS = 0.1  # embedding and search: an assumption
SOME = 64  # chunks that a search may find


@dataclass(frozen=True, slots=True)
class Dataset:
    """A dataset of RAGServe's Table 1. chunk: tokens; output: range of tokens of an answer.

    kinds: weight of each kind of query: complex, joint, pieces of information. The shares are assumptions; the lengths
    of chunks are chosen so that one to three times as many chunks as pieces are as long as the inputs of the table.
    """

    name: str
    chunk: int
    output: tuple[int, int]
    kinds: Mapping[tuple[bool, bool, int], float]


DATASETS = (
    Dataset("Squad", 400, (5, 10), {(False, False, 1): 0.9, (False, True, 2): 0.1}),
    Dataset(
        "Musique",
        500,
        (5, 20),
        {
            (False, False, 1): 0.2,
            (False, True, 2): 0.3,
            (False, True, 3): 0.2,
            (True, True, 3): 0.2,
            (True, True, 4): 0.1,
        },
    ),
    Dataset(
        "FinSec",
        1000,
        (20, 40),
        {
            (False, False, 1): 0.35,
            (False, True, 2): 0.2,
            (False, True, 3): 0.2,
            (True, True, 3): 0.15,
            (True, True, 4): 0.1,
        },
    ),
    Dataset(
        "QMSUM",
        1000,
        (20, 60),
        {(False, False, 1): 0.25, (False, True, 2): 0.25, (True, True, 2): 0.25, (True, True, 4): 0.25},
    ),
)


@dataclass(frozen=True, slots=True)
class Query:
    """A query, what it needs, where that is found, and how long its answer is.

    ranks: of the chunks that hold its pieces, from 1. summary: tokens that a summary needs.
    """

    number: int
    dataset: Dataset
    complex: bool
    joint: bool
    pieces: int
    ranks: tuple[int, ...]
    summary: int
    output: int

    @property
    def text(self) -> str:
        return f"Question q{self.number} of {self.dataset.name}?"

    def documents(self, number: int) -> list[Document]:
        """Returns the nearest chunks."""
        filler = "word " * (self.dataset.chunk - 1)
        return [Document(f"q{self.number}c{i} {filler}") for i in range(min(number, SOME))]

    def f1(self, used: Configuration) -> float:
        """Returns the expected F1 of an answer: the quality table."""
        found = sum(rank <= used.num_chunks for rank in self.ranks) / self.pieces
        if used.synthesis == "map_rerank":
            return BEST * min(found, 1 / self.pieces) * (1 - 0.003 * used.num_chunks)
        if used.synthesis == "stuff":
            lost = 0.2 * min(max(used.num_chunks - self.pieces, 0) / 30, 1)
            return BEST * found * (1 - lost) / (1.3 if self.complex else 1.0)
        told = min(used.intermediate_length / self.summary, 1)
        return BEST * found * (0.5 + 0.5 * told) * (1.0 if self.complex else 0.98)


BEST = 0.9
GAP = 0.1


def queries(datasets: Sequence[Dataset], number: int, seed: int) -> list[Query]:
    """Returns queries of all datasets in turn, the same for the same seed."""
    chosen, found = random.Random(f"{[each.name for each in datasets]} {seed}"), []
    for i in range(number):
        dataset = datasets[i % len(datasets)]
        complex_, joint, pieces = chosen.choices(list(dataset.kinds), list(dataset.kinds.values()))[0]
        ranks, rank = [], 0
        for _ in range(pieces):
            rank += 1
            while chosen.random() < GAP:
                rank += 1
            ranks.append(rank)
        summary, output = chosen.randint(40, 130), chosen.randint(*dataset.output)
        found.append(Query(i, dataset, complex_, joint, pieces, tuple(ranks), summary, output))
    return found


class TableRetriever(BaseRetriever):
    """Finds the chunks of a query after ``SEARCH_SECONDS``."""

    asked: Any
    k: int = 4

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        raise NotImplementedError("this benchmark calls async methods only")

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun
    ) -> list[Document]:
        await asyncio.sleep(SEARCH_SECONDS)
        return self.asked[number_in(query)].documents(self.k)  # type: ignore[no-any-return]


def number_in(text: str) -> int:
    """Returns the number of the query that a text is about."""
    found = re.search(r"Question q(\d+) ", text)
    assert found is not None, text[-200:]
    return int(found[1])


@dataclass
class World:
    """One emulated engine, a chain on it, and an emulated profiler."""

    asked: Sequence[Query]
    serving: EmulatedLLM = field(init=False)
    chain: Runnable[Any, Any] = field(init=False)
    profiling: ChatEngine = field(init=False)

    def __post_init__(self) -> None:
        self.serving = EmulatedLLM(self._answer, SERVING, name="serving", capacity=KV_TOKENS)
        model = ChatEngine(engine=self.serving, max_tokens=64)
        prompt = ChatPromptTemplate.from_template("Answer from the context.\n{context}\n\n{question}")
        context = TableRetriever(asked=self.asked) | _joined
        self.chain = {"context": context, "question": RunnablePassthrough()} | prompt | model | StrOutputParser()
        self.profiling = ChatEngine(engine=EmulatedLLM(self._profile, PROFILING, name="profiling"))

    def _answer(self, prompt: str) -> str:
        if "Summary:" in prompt:
            return "noted " * 400  # cut at the intermediate length
        return "said " * self.asked[number_in(prompt[-200:])].output

    async def profiler(self, prompt: str) -> AIMessage:
        """Returns the profile as the emulated model writes it, with log-probs as low as its confidence."""
        said = await self.profiling.ainvoke(prompt)
        logprob = math.log(0.8 if self._drawn(prompt)[0] < UNSURE else 0.99)
        return AIMessage(said.content, response_metadata={"logprobs": {"content": [{"logprob": logprob}]}})

    def _drawn(self, prompt: str) -> tuple[float, float, int]:
        """Returns what decides whether the profile is unsure, or wrong, and by how many pieces: always the same."""
        query = self._query(prompt)
        chosen = random.Random(f"{query.dataset.name} {query.number}")
        learned = prompt.count("Question: ") - 1 if "most accurate answer" not in prompt else 99  # it has the answer
        return chosen.random() * 2**learned, chosen.random() * 2**learned, chosen.randint(1, 2)

    def _query(self, prompt: str) -> Query:
        return self.asked[number_in(prompt[prompt.rindex("Question q") :])]

    def _profile(self, prompt: str) -> str:
        query, (unsure, wrong, missed) = self._query(prompt), self._drawn(prompt)
        pieces, joint = query.pieces, query.joint
        if unsure < UNSURE or wrong < WRONG:
            pieces = max(pieces - missed, 1)
            joint = joint and pieces > 1
        words = query.summary * 3 // 4  # that it needs: the middle of the range
        lengths = max(words * 2 // 3, 30), min(max(words * 4 // 3, 60), 200)
        profile = json.loads(Profile(query.complex, joint, pieces, lengths).as_json())
        return json.dumps(profile, separators=(" , ", " : ")).replace("{", "{ ").replace("}", " }")


def _joined(documents: list[Document]) -> str:
    return "\n".join(document.page_content for document in documents)
