"""``fineflow profile``: measures the costs of an engine on this machine, and writes them to a file.

The file has two readers: ``fineflow.costs.load`` starts a process with these costs, and emulated engines follow it
(``fineflow.engines.llm_profile`` and ``batch_profile``).
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import math
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from fineflow.backends.emulated import BatchProfile, LLMProfile
from fineflow.cost_model.costs import Costs
from fineflow.cost_model.lines import PRIORS, Line, fit, fit_together
from fineflow.errors import BackendError, installing
from fineflow.installation import processor
from fineflow.ir import Op
from fineflow.protocols import BatchEngine, LLMEngine, Sampling
from fineflow.runtime import events
from fineflow.runtime.loop.submission import run_sync

PREFILLS = (32, 64, 128, 256)  # tokens, as far as the context of the model allows
DECODES = (1, 2, 4)  # concurrent sequences
STEPS = 32
_ROUNDS = 100  # of fitting
_RANDOM = Sampling(temperature=8.0)  # random tokens, so that answers do not end early
_ENDLESS = Sampling(temperature=2.0, extra=(("ignore_eos", True),))  # the same for vLLM, whose maximum is 2.0
SHORT = 16  # prompt tokens of a decode run
BATCHES = (1, 2, 4, 8, 16, 32)
_WORDS = ("harbour", "bridge", "tower", "market", "river", "station", "mill", "tunnel", "garden", "school", "castle")

Say = Callable[[str], None]


@dataclass
class Profile:
    """Measurements of one engine, and the fits to them.

    ``emulated`` is fitted to ``measured``, the fastest runs, because other load on the machine only ever adds time.
    ``lines``, for the cost model, are fitted to all runs.
    """

    engine: str
    source: str
    emulated: dict[str, Any]
    lines: dict[Op, Line]
    measured: list[dict[str, Any]] = field(default_factory=list)

    def to_json(self) -> str:
        """Returns the content of the file."""
        known = Costs()
        for op, line in self.lines.items():
            known.know(self.engine, op, line)
        learned = json.loads(known.to_json())
        return json.dumps(
            {"source": self.source, **learned, "emulated": self.emulated, "measured": self.measured}, indent=1
        )


def text(words: int, rng: random.Random) -> str:
    """Returns random words, so that no two prompts share a prefix."""
    return " ".join(rng.choice(_WORDS) for _ in range(words))


@dataclass
class _Samples:
    """A meter (``events.Meter``) that records the reports of one engine."""

    engine: str
    prefills: list[tuple[float, float]] = field(default_factory=list)  # tokens, seconds
    decodes: list[tuple[float, float, float]] = field(default_factory=list)  # steps, seconds, concurrent sequences

    def observe(self, engine: str, op: Any, size: float | None, seconds: float, *, together: float = 1.0) -> None:
        if engine == self.engine and size is not None:
            if op is Op.PREFILL:
                self.prefills.append((size, seconds))
            elif op is Op.DECODE and size > STEPS / 2:  # measured from the first token on
                self.decodes.append((size - 1, seconds, together))

    def observe_size(self, engine: str, op: Any, name: str, size: float) -> None:
        """Ignored: the sizes are chosen here."""


def profile_llm(
    engine: LLMEngine,
    *,
    model: str,
    context: int,
    repeat: int,
    say: Say = lambda _: None,
    seed: int = 1,
    sampling: Sampling = _RANDOM,
    prefills: Sequence[int] | None = None,
    decodes: Sequence[int] | None = None,
) -> Profile:
    """Measures prefills of several lengths, alone, and decodes of several concurrent sequences, interleaved. Blocks.

    context: maximum tokens of prompt plus answer. repeat: runs of each. sampling: one whose answers do not end early.
    prefills: prompt lengths in tokens (None: ``PREFILLS``). decodes: numbers of concurrent sequences (None:
    ``DECODES``).
    """
    samples, rng = _Samples(engine.name), random.Random(seed)
    lengths = sorted({min(size, context - 8) for size in prefills or PREFILLS})
    together = tuple(decodes or DECODES)
    steps: dict[int, list[tuple[float, float]]] = {count: [] for count in together}  # together, seconds of a step

    async def ask(tokens: int, most: int) -> None:
        prompt = engine.encode(text(2 * tokens, rng))[:tokens]
        async for _ in engine.generate(prompt, replace(sampling, max_tokens=most)):
            pass

    async def side_by_side(count: int) -> None:
        await asyncio.gather(*(ask(SHORT, STEPS) for _ in range(count)))

    run_sync(lambda: ask(SHORT, STEPS))  # loads the model
    events.meters.append(samples)
    try:
        for number in range(repeat):
            say(f"run {number + 1} of {repeat}: prefills of {lengths} tokens, decodes of {together} sequences at once")
            for tokens in lengths:
                run_sync(partial(ask, tokens, 1))
            alone = len(samples.prefills)
            for count in together:
                before = len(samples.decodes)
                run_sync(partial(side_by_side, count))
                steps[count] += ((t, seconds / size) for size, seconds, t in samples.decodes[before:])
            del samples.prefills[alone:]
    finally:
        events.meters.remove(samples)
    measured: list[dict[str, Any]] = [
        {"what": "prefill", "tokens": [tokens], "seconds": min(s for n, s in samples.prefills if n == tokens)}
        for tokens in sorted({round(n) for n, _ in samples.prefills})
        if sum(n == tokens for n, _ in samples.prefills) >= repeat / 2  # else part of it was in the cache
    ]
    alone_took = [(float(row["tokens"][0]), row["seconds"]) for row in measured]
    companies = [(median(t for t, _ in found), min(s for _, s in found)) for found in steps.values() if found]
    if len(companies) < 2:
        raise BackendError(f"LLM {engine.name!r} ends its answers before {STEPS // 2} tokens; expected longer ones")
    measured += [{"what": "step", "together": round(t, 2), "seconds": seconds} for t, seconds in companies]
    emulated = _llm_profile(alone_took, companies)
    lines = {
        Op.PREFILL: fit(samples.prefills, PRIORS[Op.PREFILL]),
        Op.DECODE: fit_together(samples.decodes, PRIORS[Op.DECODE]),
    }
    return Profile(engine.name, _source(model, repeat), {"kind": "llm", **asdict(emulated)}, lines, measured)


def _llm_profile(prefills: Sequence[tuple[float, float]], steps: Sequence[tuple[float, float]]) -> LLMProfile:
    """Fits the costs of an iteration to (tokens, seconds) of prefills and (sequences, seconds) of steps."""
    (started, token), (iteration, sequence) = near(prefills), near(steps)
    if started >= iteration:
        return LLMProfile(iteration, token, sequence, prefill=started - iteration)
    return _with_free_tokens(prefills, LLMProfile(iteration, 0.0, sequence))  # a prefill takes at least one iteration


def _with_free_tokens(prefills: Sequence[tuple[float, float]], profile: LLMProfile) -> LLMProfile:
    """Returns the profile whose free tokens and seconds per further token have the least maximum relative error."""

    def error(found: LLMProfile) -> float:
        return max(abs(prefill_seconds(found, round(tokens)) / seconds - 1) for tokens, seconds in prefills)

    tried = [profile]
    for free in range(0, profile.prefill_tokens, 16):
        costs = [
            (seconds - rounds * profile.iteration) / (tokens - rounds * free)
            for tokens, seconds in prefills
            if tokens > (rounds := -(-tokens // profile.prefill_tokens)) * free
        ]
        means = [(one + other) / 2 for one in costs for other in costs]
        tried += (replace(profile, prefill_token=cost, free=free) for cost in means if cost > 0)
    return min(tried, key=error)


def prefill_seconds(profile: LLMProfile, tokens: int) -> float:
    """Returns the seconds of a prefill that is alone, in chunks of ``prefill_tokens``."""
    whole, rest = divmod(tokens, profile.prefill_tokens)
    return whole * profile.seconds(profile.prefill_tokens, 0) + (profile.seconds(rest, 0) if rest else 0.0)


def profile_batches(
    engine: BatchEngine,
    op: Op,
    *,
    model: str,
    repeat: int,
    say: Say = lambda _: None,
    words: int = 12,
    seed: int = 1,
    batches: Sequence[int] | None = None,
) -> Profile:
    """Measures batches of several sizes (None: ``BATCHES``), interleaved, of texts or pairs of ``words``. Blocks."""
    rng = random.Random(seed)
    took: dict[int, list[float]] = {count: [] for count in batches or BATCHES}

    def item() -> tuple[str, str]:
        return ("document", text(words, rng)) if op is Op.EMBED else (text(words, rng), text(words, rng))

    def once(count: int) -> float:
        items = [item() for _ in range(count)]
        start = events.now()
        run_sync(partial(engine.execute, op, items))
        return events.now() - start

    for count in took:  # loads the model
        once(count)
    for number in range(repeat):
        say(f"run {number + 1} of {repeat}: batches of {tuple(took)}")
        for count, found in took.items():
            found.append(once(count))
    line = fit([(count, seconds) for count, found in took.items() for seconds in found], PRIORS[op])
    best = [(count, min(found)) for count, found in took.items()]
    known = Costs()
    known.know(engine.name, op, line)
    emulated = BatchProfile(*near(best), known.efficient_batch(engine.name, op) or engine.max_batch)
    measured = [{"what": "batches", "items": count, "batch": count, "seconds": seconds} for count, seconds in best]
    return Profile(engine.name, _source(model, repeat), {"kind": "batch", **asdict(emulated)}, {op: line}, measured)


def near(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Returns the line (seconds at 0, seconds per unit) with the least maximum relative error; no part is negative.

    Least squares of relative errors, reweighted by these errors until the largest are alike (Lawson, 1961).
    """
    weights = [1.0] * len(points)
    best, least = (0.0, 0.0), math.inf
    for _ in range(_ROUNDS):
        fixed, each = _least_squares([(1 / s, x / s) for x, s in points], weights)
        errors = [abs((fixed + each * x) / s - 1) for x, s in points]
        if max(errors) < least:
            best, least = (fixed, each), max(errors)
        weights = [w * error for w, error in zip(weights, errors, strict=True)]
        total = sum(weights)
        if not total:
            break
        weights = [w / total for w in weights]
    return best


def _least_squares(rows: Sequence[tuple[float, float]], weights: Sequence[float]) -> tuple[float, float]:
    """Returns the two parts of the line, at least 0, with ``fixed * u + each * v`` near 1 for the rows (u, v)."""
    uu, uv, vv, u1, v1 = (
        sum(w * part for w, part in zip(weights, column, strict=True))
        for column in zip(*((u * u, u * v, v * v, u, v) for u, v in rows), strict=True)
    )
    determinant = uu * vv - uv * uv
    fixed, each = ((u1 * vv - v1 * uv) / determinant, (uu * v1 - uv * u1) / determinant) if determinant else (-1.0, 0.0)
    if each < 0:
        return u1 / uu, 0.0
    return (fixed, each) if fixed >= 0 else (0.0, v1 / vv)


def _source(model: str, repeat: int) -> str:
    return (
        f"fineflow profile: {model} on {processor()}, {os.cpu_count()} cores, {time.strftime('%Y-%m-%d')}; "
        f"the quickest of {repeat} runs of each"
    )


def run(
    kind: str, model: str | None, out: Path, repeat: int, engine: str = "transformers", *, as_json: bool = False
) -> None:
    """Measures the engine of that kind ("llm", "embedding", "reranker") and writes its profile to ``out``.

    model: local folder or hub id; None is the one bundled with the demo. engine: that runs the LLM, "transformers" or
    "vllm". as_json: prints the profile itself instead of sentences. Progress goes to stderr. Raises UsageError if the
    engine cannot be measured.
    """
    from fineflow.demo.inputs import check_model_name, one_line
    from fineflow.errors import UsageError

    if repeat < 3:
        raise UsageError(f"--repeat is {repeat}; it must be at least 3")
    if model is not None:
        check_model_name("--model", model, writes=kind == "llm")
    say = lambda line: print(line, file=sys.stderr, flush=True)  # noqa: E731
    try:
        used, measure = _ENGINES["vllm" if (kind, engine) == ("llm", "vllm") else kind](model)
        try:
            made = measure(repeat, say)
        finally:
            run_sync(used.aclose)
    except BackendError as error:
        raise UsageError(one_line(error)) from error
    except ImportError as error:
        extra = {"llm": "vllm" if engine == "vllm" else "transformers"}.get(kind, "sentence-transformers")
        missing = error.name is not None and importlib.util.find_spec(error.name.partition(".")[0]) is None
        what = (
            f"{error.name}, which is not installed" if missing else f"a library in another version ({one_line(error)})"
        )
        raise UsageError(f"the engine needs {what}: {installing(extra)}") from error
    try:
        out.write_text(made.to_json() + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--out {out}: {error.strerror}; give the name of a file to write") from error
    if as_json:
        print(made.to_json())
        return
    for op, line in made.lines.items():
        company = f", and {line.beside * 1e3:.3f} ms for each sequence beside" if line.beside else ""
        print(f"{made.engine} {op.value}: {line.fixed * 1e3:.2f} ms + {line.each * 1e3:.3f} ms each{company}")
    print(f"{out} is written. Use it: fineflow.costs.load(Path({str(out)!r}))")


_Measure = Callable[[int, Say], Profile]


def _llm(model: str | None) -> tuple[Any, _Measure]:
    from fineflow.backends.transformers import TransformersEngine

    return _llm_engine(TransformersEngine, model)


def _vllm(model: str | None) -> tuple[Any, _Measure]:
    from fineflow.engines import VLLMEngine

    return _llm_engine(VLLMEngine, model, sampling=_ENDLESS)


def _llm_engine(kind: Any, model: str | None, **options: Any) -> tuple[Any, _Measure]:
    from fineflow.demo import data
    from fineflow.demo.inputs import locate

    engine = kind(str(data.default_model()) if model is None else locate("--model", model))

    def measure(repeat: int, say: Say) -> Profile:
        run_sync(engine.start)
        most = engine.context or max(PREFILLS)
        return profile_llm(engine, model=engine.name, context=most, repeat=repeat, say=say, **options)

    return engine, measure


def _embedding(model: str | None) -> tuple[Any, _Measure]:
    from fineflow.backends.sentence_transformers import SentenceTransformerEngine, bundled_minilm
    from fineflow.demo.inputs import locate

    engine = SentenceTransformerEngine(bundled_minilm() if model is None else locate("--model", model))
    name = "all-MiniLM-L6-v2" if model is None else model
    return engine, lambda repeat, say: profile_batches(engine, Op.EMBED, model=name, repeat=repeat, say=say)


def _reranker(model: str | None) -> tuple[Any, _Measure]:
    from fineflow.backends.sentence_transformers import CrossEncoderEngine
    from fineflow.demo.inputs import locate
    from fineflow.errors import UsageError

    if model is None:
        raise UsageError("no reranker is bundled; name a cross-encoder, a folder or a hub id: --model ...")
    engine = CrossEncoderEngine(locate("--model", model))
    return engine, lambda repeat, say: profile_batches(engine, Op.RERANK, model=model, repeat=repeat, say=say, words=40)


_ENGINES: dict[str, Callable[[str | None], tuple[Any, _Measure]]] = {
    "llm": _llm,
    "vllm": _vllm,
    "embedding": _embedding,
    "reranker": _reranker,
}
