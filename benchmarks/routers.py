"""Random routers, stock against fineflow: prefilling arms that may not be taken must never lose, and gain where it can.

The routers are those of tests/passes/timed_routers.py: 2 to 6 arms, prompts of 5 to 4,000 words, decisions of 1 to 90
words or searches of 0.02 to 3 seconds, calls one after the other or at random times on shared engines. Emulated engines
with the latencies of Llama-2-7B or of an 8B model on an H100, virtual seconds of ``ainvoke``, all calls of each router
together, the first ones included, in which nothing is known of the engines.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import Any

from benchmarks.report import arguments, finish, hardware, positive
from fineflow.cost_model.costs import costs

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "passes"))
from timed_routers import router, took

BOUND = 1.02
GAIN = 0.98


def main(argv: list[str] | None = None) -> int:
    parser = arguments(__doc__ or "", runs=1)
    parser.add_argument("--routers", type=positive, default=200, help="number of routers (200)")
    parser.add_argument("--seed", type=int, default=0, help="of the first router (0)")
    given: Any = parser.parse_args(argv)
    ratios: dict[int, float] = {}
    steady: dict[int, float] = {}
    tokens = [0, 0]
    same = True
    for seed in range(given.seed, given.seed + given.routers):
        costs.forget()
        (said, stock, computed), (answered, mine, more) = (took(router(seed), optimized=on) for on in (False, True))
        ratios[seed], steady[seed] = sum(mine) / sum(stock), mine[-1] / stock[-1]
        tokens = [tokens[0] + computed, tokens[1] + more]
        same = same and said == answered
        if ratios[seed] > BOUND:
            print(f"slower: {ratios[seed]:.3f} {router(seed)}")
    gains = [ratio for ratio in ratios.values() if ratio < GAIN]
    print(f"{len(ratios)} random routers, emulated, virtual seconds. {hardware()}\n")
    print(f"fineflow / stock: mean {statistics.mean(ratios.values()):.3f}, worst {max(ratios.values()):.3f}")
    print(f"more than {BOUND:.2f}: {sum(ratio > BOUND for ratio in ratios.values())}")
    print(f"less than {GAIN:.2f}: {len(gains)}, best {min(ratios.values()):.3f}; last call: {min(steady.values()):.3f}")
    print(f"prompt tokens that the arms' engines computed: {tokens[1] / tokens[0]:.2f} times those of stock\n")
    checks = {"none is slower": max(ratios.values()) <= BOUND, "some gain": bool(gains), "answers are the same": same}
    return finish({"ratios": ratios}, checks, given.json)


if __name__ == "__main__":
    sys.exit(main())
