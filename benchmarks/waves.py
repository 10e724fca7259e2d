"""``python -m benchmarks.waves``: what holding requests back would gain in contextual retrieval, and what bounds it.

A light LLM with two instances writes 32 contexts, each of which is embedded when it is there. The embedding model is
idle until the first ends. Here the iterations of both instances and the batches of the embedding model are computed for
a request of the app with the profiles of the benchmarks: for chunks of prefill of other sizes, for at most so many
requests at a time, and for the best of random schedules, which admit requests in waves of any size on each instance.
Seconds to the last context's end and to the last vector, emulated; the rest of the call takes 3.0 s.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

from benchmarks.apps import contextual_retrieval as app
from benchmarks.apps.app import INSTRUCTIONS
from benchmarks.harness.limits import count
from benchmarks.harness.setting import BLOCK
from benchmarks.report import arguments, finish, hardware, positive, table
from fineflow.backends.emulated import BatchProfile, LLMProfile

LLM, EMBEDDER = app.APP.setting.small, app.APP.setting.embedder
Admit = Callable[[int, int], int]  # of requests that run, and that have ended: how many more to admit
Waves = list[tuple[int, int]]  # each: requests that may still run when it begins, and those admitted by then


def prompts() -> list[int]:
    """Returns the tokens of each prompt that are not in the prefix cache."""
    system = count(INSTRUCTIONS) + 4
    given = app.seen({"chunks": app.cut(app.APP.asked(2, 0))})
    return [system % BLOCK + 8 + count(each["chunk"]) + count(each["around"]) for each in given]


def written(sizes: Sequence[int], admit: Admit, model: LLMProfile = LLM) -> list[float]:
    """Returns when each context ends on one instance, in the order of their ends."""
    waiting, running, ends = list(sizes), list[list[int]](), list[float]()
    now = 0.0
    while waiting or running:
        for _ in range(min(admit(len(running), len(ends)), len(waiting))):
            running.append([waiting.pop(0), app.CONTEXT])
        if not running:
            raise ValueError("the schedule admits nothing to an idle instance")
        decoding, budget = [each for each in running if not each[0]], model.prefill_tokens
        for each in running:
            if each[0] and budget:
                done = min(each[0], budget)
                each[0], budget = each[0] - done, budget - done
                decoding += [each] * (not each[0])
        prefilled = sum(not each[0] and each[1] == app.CONTEXT for each in running)  # in this iteration
        now += model.seconds(model.prefill_tokens - budget, len(decoding) - prefilled)
        for each in decoding:
            each[1] -= 1
        ends += [now] * sum(not each[1] for each in running)
        running = [each for each in running if each[1]]
    return ends


def embedded(ends: Sequence[float], model: BatchProfile = EMBEDDER) -> float:
    """Returns when the last text is embedded, if an idle engine takes what is there."""
    left, now = sorted(ends), 0.0
    while left:
        now = max(now, left[0])
        size = sum(end <= now + 1e-9 for end in left[: model.max_batch])
        now, left = now + model.seconds(size), left[size:]
    return now


def embedded_at_best(ends: Sequence[float], model: BatchProfile = EMBEDDER) -> float:
    """Returns the same for the best division into batches, which knows all ends."""
    ends, best = sorted(ends), [0.0]
    for j in range(1, len(ends) + 1):
        first = max(0, j - model.max_batch)
        best.append(min(max(best[i], ends[j - 1]) + model.seconds(j - i) for i in range(first, j)))
    return best[-1]


def at_most(number: int) -> Admit:
    return lambda running, ended: number - running


def in_waves(waves: Waves) -> Admit:
    def admit(running: int, ended: int) -> int:
        admitted = running + ended
        least, upto = next((wave for wave in waves if wave[1] > admitted), (0, admitted))
        return upto - admitted if running <= least or not running else 0

    return admit


def some_waves(chosen: random.Random, number: int) -> Waves:
    cuts = sorted(chosen.sample(range(1, number), chosen.choice((1, 1, 2, 2, 3, 5))))
    return [(chosen.randint(0, 12), upto) for upto in (*cuts, number)]


def changed(waves: Waves, chosen: random.Random) -> Waves:
    found, place = list(waves), chosen.randrange(len(waves))
    least, upto = found[place]
    if place < len(found) - 1:
        upto = min(max(1, upto + chosen.randint(-2, 2)), found[-1][1] - 1)
    found[place] = max(0, least + chosen.randint(-2, 2)), upto
    return sorted(found, key=lambda wave: wave[1])


def main(argv: list[str] | None = None) -> int:
    parser = arguments(__doc__ or "", runs=1)
    parser.add_argument("--schedules", type=positive, default=5000, help="random schedules (5,000)")
    given = parser.parse_args(argv)
    sizes, chosen = prompts(), random.Random(0)
    parts = [sizes[0::2], sizes[1::2]]
    print(f"Contexts of contextual retrieval: emulated, computed seconds.\n{hardware()}\n")

    def ends(admits: Sequence[Admit], model: LLMProfile = LLM) -> list[float]:
        return [end for part, admit in zip(parts, admits, strict=True) for end in written(part, admit, model)]

    rows: list[tuple[str, ...]] = [("", "first context", "last context", "last vector", "at best")]
    figures: dict[str, list[float]] = {}

    def add(name: str, found: list[float]) -> None:
        figures[name] = [min(found), max(found), embedded(found), embedded_at_best(found)]
        rows.append((name, *(f"{seconds:.3f}" for seconds in figures[name])))

    for tokens in (2048, 1024, 512, 256, 128):
        add(f"chunks of {tokens}", ends([at_most(16)] * 2, replace(LLM, prefill_tokens=tokens)))
    for number in (12, 10, 8, 6, 4):
        add(f"at most {number}", ends([at_most(number)] * 2))
    best: list[tuple[float, list[Waves]]] = []
    for _ in range(given.schedules):
        if best and chosen.random() < 0.6:
            waves = [changed(each, chosen) for each in chosen.choice(best)[1]]
        else:
            waves = [some_waves(chosen, len(part)) for part in parts]
        best.append((embedded(ends(list(map(in_waves, waves)))), waves))
        best = sorted(best, key=lambda each: each[0])[:20]
    add(f"best of {given.schedules:,} schedules", ends(list(map(in_waves, best[0][1]))))
    print(table(rows) + "\n")
    return finish(figures, {}, given.json)


if __name__ == "__main__":
    sys.exit(main())
