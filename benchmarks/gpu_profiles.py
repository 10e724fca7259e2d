"""Latency profiles of a GPU machine: prefill, decode, embedding and reranking, as files that fineflow reads.

    python -m benchmarks.gpu_profiles --out benchmarks/profiles

The LLM has the size of Llama 3.1 8B with random weights in bfloat16, on the engine on transformers; the embedding model
and the reranker have the size of BERT large, in float32. Nothing is downloaded, and only torch, transformers and
sentence-transformers are needed; without the last, only the LLM is measured, and the output says so. ``--size tiny``
tests the script itself on any machine.

Before the measurement, greedy answers of the engine (concurrent prompts of several lengths, one of them after a prefill
of its prefix) are compared with eager generation: ``model.generate`` with ``attn_implementation="eager"``, one prompt
at a time. Passes of different shapes round differently, so either of two tokens with nearly equal logits may win.
Hence the check: given the engine's answer so far, the eager model must rate each token of the engine highest within
rounding, i.e. within ``ROUNDINGS`` times the spacing of the number format at the largest logit.

Each file (``llm.json``, ``embedding.json``, ``reranker.json``) has the format of ``fineflow profile``, for
``fineflow.costs.load``, ``fineflow.engines.llm_profile`` and ``batch_profile``, with the date, the hardware and, for
the LLM, the result of the comparison. If the comparison fails, nothing is written.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_models import LLAMAS, random_encoder, random_llama
from benchmarks.report import positive
from fineflow import profiling
from fineflow.backends.transformers import TransformersEngine
from fineflow.installation import processor
from fineflow.ir import Op
from fineflow.protocols import Sampling
from fineflow.runtime.loop.submission import run_sync

ROUNDINGS = 16  # a wrong token is several hundred below the best one in bfloat16
LENGTHS = (7, 64, 300, 700)  # tokens of the prompts that are compared
ANSWER = 24  # tokens
PREFILLS = {"8b": (64, 256, 512, 1024, 2048, 4096), "tiny": (64, 128, 256)}
DECODES = {"8b": (1, 2, 4, 8, 16, 32, 64), "tiny": (1, 2, 4)}
BATCHES = {"8b": (1, 2, 4, 8, 16, 32, 64, 128, 256), "tiny": (1, 2, 4, 8)}


@dataclass(frozen=True)
class Compared:
    """Result of the comparison with eager generation.

    same: number of tokens equal to those of ``generate``. furthest: largest distance of a chosen token's logit below
    the best one. bound: limit of that distance.
    """

    tokens: int
    same: int
    furthest: float
    bound: float

    @property
    def held(self) -> bool:
        return self.furthest <= self.bound


def hardware() -> str:
    """Returns the machine and its library versions, in one line."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    machine = f"{processor()}, {os.cpu_count()} cores"
    return f"{gpu}; {machine}; torch {torch.__version__}, transformers {version('transformers')}"


def prompts_of(engine: TransformersEngine, rng: random.Random) -> list[list[int]]:
    """Returns prompts of random words, cut to the context."""
    room = (engine.context or max(LENGTHS)) - ANSWER - 1
    return [engine.encode(profiling.text(length, rng))[: min(length, room)] for length in LENGTHS]


def greedy(engine: TransformersEngine, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    """Returns the engine's answers to concurrent prompts; a prefix of the longest prompt is prefilled first."""

    async def ask(prompt: Sequence[int]) -> list[int]:
        sampling = Sampling(temperature=0.0, max_tokens=ANSWER)
        return [token async for delta in engine.generate(prompt, sampling) for token in delta.tokens]

    async def together() -> list[list[int]]:
        longest = max(prompts, key=len)
        await engine.prefill(longest[: len(longest) * 3 // 4])
        return list(await asyncio.gather(*map(ask, prompts)))

    return run_sync(together)


@torch.inference_mode()
def compare(model: Any, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]) -> Compared:
    """Compares answers of an engine with eager generation of the same model; see the module."""
    same, furthest, largest = 0, 0.0, 0.0
    for prompt, answer in zip(prompts, answers, strict=True):
        given = torch.tensor([prompt], device=model.device)
        made = model.generate(
            given, attention_mask=torch.ones_like(given), do_sample=False, max_new_tokens=ANSWER, pad_token_id=0
        )
        eager = made[0, len(prompt) :].tolist()
        same += sum(a == b for a, b in zip(eager, answer, strict=False))
        whole = torch.tensor([[*prompt, *answer]], device=model.device)
        logits = model(whole).logits[0, len(prompt) - 1 : -1].float()
        chosen = logits[torch.arange(len(answer)), whole[0, len(prompt) :]]
        furthest = max(furthest, float((logits.max(dim=-1).values - chosen).max()))
        largest = max(largest, float(logits.abs().max()))
    bound = ROUNDINGS * torch.finfo(model.dtype).eps * largest
    return Compared(sum(map(len, answers)), same, furthest, bound)


def checked(engine: TransformersEngine, folder: str) -> Compared:
    """Runs the comparison; engine and eager model are in memory one after the other."""
    from transformers import AutoModelForCausalLM

    prompts = prompts_of(engine, random.Random(1))
    answers = greedy(engine, prompts)
    run_sync(engine.aclose)
    eager = AutoModelForCausalLM.from_pretrained(folder, dtype=engine.dtype, attn_implementation="eager")
    eager.generation_config.eos_token_id = None  # answers of fixed length
    return compare(eager.to(engine.device).eval(), prompts, answers)


def write(out: Path, kind: str, made: profiling.Profile, model: str, **more: Any) -> None:
    """Writes the file of one engine."""
    head = {"date": time.strftime("%Y-%m-%d"), "hardware": hardware(), "model": model}
    path = out / f"{kind}.json"
    path.write_text(json.dumps({**head, **more, **json.loads(made.to_json())}, indent=1) + "\n", encoding="utf-8")
    print(f"{path} is written")


def say(line: str) -> None:
    """Prints a line of progress."""
    print(line, file=sys.stderr, flush=True)


def llm(size: str, device: str, dtype: str, repeat: int, out: Path) -> bool:
    """Compares and measures the LLM. Returns False if the comparison failed."""
    with tempfile.TemporaryDirectory() as folder:
        say(f"LLM: weights at random for {size}, {dtype}")
        path, parameters = random_llama(Path(folder), size, device=device, dtype=dtype)
        engine = TransformersEngine(path, device=device, dtype=dtype, name=f"random Llama {size}")
        found = checked(engine, path)
        print(
            f"{'ok  ' if found.held else 'MISS'}  greedy answers are eager ones within rounding: "
            f"{found.same} of {found.tokens} tokens are those of generate, none is more than {found.furthest:.3g} "
            f"below the best logit (bound {found.bound:.3g})"
        )
        if not found.held:
            return False
        model = f"Llama with random weights, {parameters / 1e9:.2f}e9 parameters, {dtype}"
        try:
            run_sync(engine.start)
            made = profiling.profile_llm(
                engine,
                model=model,
                context=engine.context or max(PREFILLS[size]),
                repeat=repeat,
                say=say,
                prefills=PREFILLS[size],
                decodes=DECODES[size],
            )
        finally:
            run_sync(engine.aclose)
    against = {"tokens": found.tokens, "same": found.same, "furthest": found.furthest, "bound": found.bound}
    write(out, "llm", made, model, eager=against)
    return True


def encoders(size: str, device: str, repeat: int, out: Path) -> None:
    """Measures the embedding model and the reranker."""
    from fineflow.backends.sentence_transformers import CrossEncoderEngine, SentenceTransformerEngine

    largest = max(BATCHES[size])
    for kind, op, words in (("embedding", Op.EMBED, 12), ("reranker", Op.RERANK, 40)):
        with tempfile.TemporaryDirectory() as folder:
            scores = op is Op.RERANK
            path, parameters = random_encoder(Path(folder), size, scores=scores, dtype="float32")
            make: Any = CrossEncoderEngine if scores else SentenceTransformerEngine
            engine = make(path, device=device, max_batch=largest, name=f"random BERT {size} {kind}")
            model = f"BERT with random weights, {parameters / 1e6:.0f}e6 parameters, float32, {words} words"
            try:
                made = profiling.profile_batches(
                    engine, op, model=model, repeat=repeat, say=say, words=words, batches=BATCHES[size]
                )
            finally:
                run_sync(engine.aclose)
        write(out, kind, made, model)


def main(argv: Sequence[str] | None = None) -> int:
    about = "Latency profiles of this machine's GPU, with models of random weights."
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="output folder; created if missing")
    parser.add_argument("--size", choices=tuple(LLAMAS), default="8b", help="of the models (8b)")
    parser.add_argument("--repeat", type=positive, default=5, help="runs of each, at least 3 (5)")
    given = parser.parse_args(argv)
    if given.repeat < 3:
        parser.error(f"--repeat is {given.repeat}; it must be at least 3")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and given.size != "tiny":
        parser.error("there is no GPU that PyTorch can use; --size tiny tests the script without one")
    given.out.mkdir(parents=True, exist_ok=True)
    print(hardware())
    if not llm(given.size, device, "bfloat16" if device == "cuda" else "float32", given.repeat, given.out):
        return 1
    if importlib.util.find_spec("sentence_transformers") is None:
        print("no profiles of an embedding model and a reranker: sentence-transformers is not installed")
        return 0
    encoders(given.size, device, given.repeat, given.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
