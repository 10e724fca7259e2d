"""Chains whose steps share one LLM engine: measures how often, and by how much, running ahead is slower than stock.

Random chains and latencies (from tests/passes/test_never_slower.py, where every step has its own model), one emulated
engine with the latencies of Llama-2-7B for all models, virtual seconds of ``ainvoke``. An early prefill takes
iterations from the requests that the engine decodes meanwhile, so the bound of that test does not hold here.
"""

from __future__ import annotations

import statistics
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, seed, settings

import fineflow
from benchmarks.report import arguments, finish, hardware, positive
from fineflow.cost_model.costs import costs
from fineflow.engines import LLMProfile
from fineflow.testing import virtual

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "passes"))
from timed_chains import INPUT, Spec, Times, World, build, chains, times

BOUND = 1.02
LATENCIES = LLMProfile(iteration=0.03, prefill_token=0.00023, decode_sequence=0.0003)


def seconds(spec: Spec, at: Times, *, optimized: bool) -> float:
    costs.forget()  # every measurement is that of a first call
    chain = build(spec, World(at))
    if optimized:
        chain = fineflow.optimize(chain, strict=True, eager=True)
    return virtual.run(chain.ainvoke(dict(INPUT))).seconds


def ratios(examples: int, number: int, dearer: float) -> list[float]:
    """Returns optimized / stock of ``examples`` chains. dearer: factor for the time of a prefilled token."""
    llm = replace(LATENCIES, prefill_token=LATENCIES.prefill_token * dearer)
    found: list[float] = []

    @seed(number)
    @settings(max_examples=examples, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(chains(), times())
    def measure(spec: Spec, at: Times) -> None:
        at = replace(at, models=(llm,) * 3, shared=True)
        stock = seconds(spec, at, optimized=False)
        if stock:
            found.append(seconds(spec, at, optimized=True) / stock)

    measure()
    return found


def main(argv: list[str] | None = None) -> int:
    parser = arguments(__doc__ or "", runs=1)
    parser.add_argument("--examples", type=positive, default=300, help="chains (300)")
    parser.add_argument("--seed", type=int, default=5, help="of the generator (5)")
    parser.add_argument("--dearer", type=positive, default=1, help="factor for the time of a prefilled token (1)")
    given_: Any = parser.parse_args(argv)
    found = ratios(given_.examples, given_.seed, given_.dearer)
    slower = [ratio for ratio in found if ratio > BOUND]
    print(f"Steps that share one LLM, emulated, virtual seconds, prefill {given_.dearer} x as slow. {hardware()}\n")
    print(f"optimized / stock of {len(found)} chains: mean {statistics.mean(found):.3f}, worst {max(found):.3f}")
    print(f"more than {BOUND:.2f}: {len(slower)}\n")
    return finish({"ratios": found}, {"faster on average": statistics.mean(found) < 1}, given_.json)


if __name__ == "__main__":
    sys.exit(main())
