"""Changes the source in one small place, runs the tests that are about it, and says which changes no test notices.

A mutant is a module with one change (``mutations.py``), chosen at random, evenly over the targets and over their files.
Each runs in a child, forked from a parent that has imported the frameworks: an import hook gives the child the changed
module, no file is written. Tests that start an interpreter of their own do not see the change. The files of tests that
name the module come first, and a failure ends the run. Before that, each target's tests have to pass without a change.

Usage: python tools/mutants.py --count 200 --seed 1 [--only passes ...] [--json FILE] [--resume FILE] [--all-killers]

With --all-killers (slow) all tests run, and those are listed that were never the only ones to notice a change. A mutant
without end is stopped, and counts as noticed. The JSON file is written after each mutant, for --resume.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pytest
from forked_tests import Outcome, preload, run
from mutations import mutated, mutations

ROOT = Path(__file__).resolve().parents[1]
_L, _G, _I = (f"tests/adapters/{name}/test_" for name in ("langchain", "langgraph", "llamaindex"))


@dataclass(frozen=True)
class Target:
    """A package, as a folder of src/fineflow. tests: patterns of files, most specific first. without: patterns of
    files, or beginnings of the ids of tests, that take long or start interpreters. torch: it is imported anyway, so
    before the fork.
    """

    package: str
    tests: tuple[str, ...]
    without: tuple[str, ...] = ()
    torch: bool = False


def _each(start: str, names: str) -> tuple[str, ...]:
    return tuple(f"{start}{name}.py" for name in names.split())


TARGETS = (
    Target(
        "passes",
        (
            *("tests/passes/test_*.py", "tests/ir/test_*.py"),
            *_each(_L, "effects_gain effects prefill_ahead retriever_lists item_streams growing_prefills"),
            *_each(_L, "pipelined_maps"),
            "tests/test_api.py",
        ),
        without=("tests/passes/test_never_slower.py",),
        torch=True,
    ),
    Target(
        "runtime/queues",
        (
            *("tests/runtime/test_*.py", "tests/semantic/test_semantic_programs.py"),
            *_each(_L, "llm_queue rate_limited several_instances identity limit_nesting component_limits deadlines"),
            *_each(_L, "together waste provider_cache"),
            *_each(_I, "store_queues store_limits"),
            "tests/passes/test_arms.py",
        ),
        without=("tests/runtime/test_interpreter_exit.py",),
    ),
    Target(
        "adapters/core",
        (
            *("tests/adapters/third/test_*.py", "tests/adapters/test_durations.py"),
            *_each(_L, "shadows shared_shadows trust nested_runs optimized_inside pure_claims max_concurrency"),
            *_each(_L, "ways_of_plans changes store_sessions branches routing_functions prefill_ahead"),
            *_each(_I, "prompts_ahead index_objects index_sessions store_limits"),
            *("tests/verification/test_*.py", "tests/semantic/test_semantic_programs.py"),
            *("tests/passes/test_shared_cores.py", "tests/passes/test_arms.py", "tests/adaptation/test_values.py"),
            *_each(_L, "vendored_framework together calls interrupts same_answer first_plans plans_renewed"),
            *_each("tests/adapters/test_", "installers nested_graphs paced_streams unfinished"),
            *_each(_L, "growing_prefills limit_nesting streams_as_made"),
            "tests/runtime/test_contexts.py",
        ),
        without=("tests/verification/test_reruns.py::test_the_process_ends",),
        torch=True,
    ),
    Target(
        "adapters/inner_calls",
        (
            "tests/adapters/test_walk_costs.py",
            *_each(_L, "inner_calls made_in_functions made_chains unordered queries_ahead vectors_ahead"),
            *_each(_I, "index_inner_calls"),
            *_each(_G, "quiet_visits across_nodes"),
            *("tests/watching/test_*.py", "tests/testing/test_routing.py", "tests/instrumentation/test_instrument.py"),
            *_each(_L, "random_programs optimized_functions"),
            *_each(_G, "searches_ahead"),
            "tests/adapters/test_declared_as_stock.py",
        ),
    ),
    Target(
        "adapters/lookahead",
        (
            *("tests/adapters/test_walks.py", "tests/adapters/test_walk_costs.py"),
            *_each(_L, "unordered made_in_functions made_chains inner_calls"),
            *_each(_I, "index_inner_calls"),
            *_each(_G, "quiet_visits"),
            *_each(_L, "changed_containers random_programs"),
        ),
    ),
)


@dataclass(frozen=True)
class Mutant:
    """One change to one module. name: stable while the source is the same; before, after: the line that differs."""

    name: str
    target: str
    file: str
    line: int
    number: int
    before: str = ""
    after: str = ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the chosen mutants; 0 also if some survive. Exits with a message if tests fail without a change."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=50, help="mutants, over all targets")
    parser.add_argument("--seed", type=int, default=1)
    names = [target.package for target in TARGETS]
    parser.add_argument("--only", nargs="*", default=[], choices=names, metavar="TARGET", help=", ".join(names))
    parser.add_argument("--json", type=Path, help="where the results are kept")
    parser.add_argument("--resume", type=Path, help="results of an earlier run: its mutants are not run again")
    parser.add_argument("--all-killers", action="store_true", help="run all tests, and find those that nothing needs")
    parser.add_argument("--list", action="store_true", help="print the mutants and stop")
    asked = parser.parse_args(arguments)
    targets = [target for target in TARGETS if not asked.only or target.package in asked.only]
    mutants = chosen(targets, asked.count, asked.seed)
    if asked.list:
        print("\n".join(mutant.name for mutant in mutants))
        return 0
    results = Results(asked.json or asked.resume, asked.resume, asked.all_killers)
    open_ones = [mutant for mutant in mutants if not results.has(mutant)]
    preload(ROOT, torch=any(target.torch for target in targets))
    for target in targets:
        own = [mutant for mutant in open_ones if mutant.target == target.package]
        if own:
            _run(target, own, results)
    print("\n".join(report([results.found[mutant.name] for mutant in mutants], results.tests)))
    return 0


def chosen(targets: Sequence[Target], count: int, seed: int) -> list[Mutant]:
    """Returns that many mutants, or all there are: the same ones for the same source and seed."""
    found = []
    for place, target in enumerate(targets):
        draw = random.Random(f"{seed} {target.package}")
        of_files = [
            list(of_file(target, path)) for path in sorted((ROOT / "src/fineflow" / target.package).rglob("*.py"))
        ]
        for mutants in of_files:
            draw.shuffle(mutants)
        draw.shuffle(of_files)
        in_turn = [ms[n] for n in range(max(map(len, of_files))) for ms in of_files if n < len(ms)]
        found += in_turn[: count // len(targets) + (place < count % len(targets))]
    return [_with_lines(mutant) for mutant in found]


def of_file(target: Target, path: Path) -> Iterator[Mutant]:
    """All mutants of a file, without the lines before and after."""
    file = path.relative_to(ROOT).as_posix()
    for m in mutations(path.read_text(encoding="utf-8")):
        name = f"{file.removeprefix('src/fineflow/')}:{m.line} {m.change}"
        yield Mutant(name, target.package, file, m.line, m.number)


def _with_lines(mutant: Mutant) -> Mutant:
    _, before, after = mutated((ROOT / mutant.file).read_text(encoding="utf-8"), mutant.number)
    return replace(mutant, before=before, after=after)


def files_of(target: Target) -> list[str]:
    """Returns the files of a target's tests, in the order of its row."""
    found = dict.fromkeys(p.relative_to(ROOT).as_posix() for t in target.tests for p in sorted(ROOT.glob(t)))
    return [file for file in found if file not in target.without]


def by_nearness(files: Iterable[str], module: str, source: str) -> tuple[list[str], list[str]]:
    """Returns the files of tests that name a module, or else something public of it, and the other files."""
    package, _, name = module.rpartition(".")
    naming = rf"\b{re.escape(module)}\b|\bfrom {re.escape(package)} import .*\b{name}\b"
    public = [node.name for node in ast.parse(source).body if hasattr(node, "name") and not node.name.startswith("_")]
    texts = {file: (ROOT / file).read_text(encoding="utf-8") for file in files}
    near = [file for file, text in texts.items() if file.endswith(f"/test_{name}.py") or re.search(naming, text)]
    near = near or [file for file, text in texts.items() if any(re.search(rf"\b{it}\b", text) for it in public)]
    return near, [file for file in texts if file not in near]


@dataclass(frozen=True)
class Result(Mutant):
    """What became of a mutant: killed, survived or stopped. by: the tests that failed, or the one that had no end."""

    result: str = ""
    by: tuple[str, ...] = ()
    seconds: float = 0.0
    all_tests: bool = False  # also after the first failure


class Results:
    """Results by the names of mutants, kept in a file. tests: what ran without a change, by target."""

    def __init__(self, path: Path | None, earlier: Path | None, all_tests: bool) -> None:
        self._path, self.all_tests = path, all_tests
        kept = json.loads(earlier.read_text(encoding="utf-8")) if earlier is not None else {}
        self.tests: dict[str, list[str]] = kept.get("tests", {})
        read = (Result(**{**each, "by": tuple(each["by"])}) for each in kept.get("mutants", ()))
        self.found = {result.name: result for result in read}

    def has(self, mutant: Mutant) -> bool:
        """Whether there is a result that still holds: of the same lines, and with all tests if these are asked for."""
        found = self.found.get(mutant.name)
        same = found is not None and (found.before, found.after) == (mutant.before, mutant.after)
        return same and found is not None and (found.all_tests or not self.all_tests)

    def add(self, result: Result) -> None:
        self.found[result.name] = result
        if self._path is not None:
            whole = {"tests": self.tests, "mutants": [asdict(each) for each in self.found.values()]}
            beside = self._path.with_name(f"{self._path.name}.new")
            beside.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            beside.replace(self._path)


def _run(target: Target, mutants: Sequence[Mutant], results: Results) -> None:
    """Runs the mutants of a target, after its tests without a change."""
    files = files_of(target)
    control = run(files, ROOT, without=target.without)
    if control.code != 0:
        why = "does not end" if control.stopped else "fails"
        sys.exit(f"{target.package}: {[*control.failed, control.running][0]} {why} without a change")
    results.tests[target.package] = control.tests
    print(f"{target.package}: {len(control.tests)} tests take {control.seconds:.0f} s without a change", flush=True)
    for place, mutant in enumerate(mutants, 1):
        result = tried(mutant, files, target.without, control, results.all_tests)
        results.add(result)
        by = f"  by {result.by[0]}" if result.by else ""
        print(f"{place:4}/{len(mutants)} {result.result:8} {result.seconds:6.1f} s  {mutant.name}{by}", flush=True)


def tried(mutant: Mutant, files: Sequence[str], without: Sequence[str], control: Outcome, all_tests: bool) -> Result:
    """Runs one mutant. Its time is ten times that of the tests without a change, and 30 s."""
    source = (ROOT / mutant.file).read_text(encoding="utf-8")
    module = mutant.file.removeprefix("src/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    change = (module, mutated(source, mutant.number)[0])
    near, far = by_nearness(files, module, source)
    limits = {"limit": 10 * control.seconds + 30, "silence": 10 * control.longest + 30}
    seconds = 0.0
    for part in [[*near, *far]] if all_tests else [part for part in (near, far) if part]:
        outcome = run(part, ROOT, change, to_first=not all_tests, without=without, **limits)
        seconds += outcome.seconds
        if outcome.code not in (0, pytest.ExitCode.NO_TESTS_COLLECTED):
            break
    else:
        return Result(**asdict(mutant), result="survived", seconds=round(seconds, 1), all_tests=all_tests)
    result = "stopped" if outcome.stopped else "killed"
    by = outcome.failed if outcome.failed and outcome.code is not None else [*outcome.failed, outcome.running]
    return Result(**asdict(mutant), result=result, by=tuple(by), seconds=round(seconds, 1), all_tests=all_tests)


def report(results: Sequence[Result], tests: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """The lines to print: shares by target, what survived, and with all tests those that nothing needs."""
    yield f"\n{'target':22}mutants  killed  stopped  survived  noticed  seconds each"
    of_targets: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        of_targets[result.target].append(result)
    for name, own in [*of_targets.items(), ("all", list(results))]:
        counts = Counter(result.result for result in own)
        noticed = 1 - counts["survived"] / max(1, len(own))
        each = sum(result.seconds for result in own) / max(1, len(own))
        columns = f"{counts['killed']:8}{counts['stopped']:9}{counts['survived']:10}{noticed:9.0%}{each:14.1f}"
        yield f"{name:22}{len(own):7}{columns}"
    for result in results:
        if result.result == "survived":
            yield f"\nsurvived: {result.name}\n  - {result.before}\n  + {result.after}"
    for name, own in of_targets.items():
        if all(result.all_tests for result in own):
            yield from not_needed(name, own, tests.get(name, ()))


def not_needed(target: str, results: Sequence[Result], tests: Iterable[str]) -> Iterator[str]:
    """Lists, by file, the tests that were never the only one to notice a change; with any parameters, a test is one."""
    killers = [{_function(test) for test in result.by} for result in results]
    noticing = set().union(*killers)
    alone = set().union(*(names for names in killers if len(names) == 1))
    of_files: dict[str, list[str]] = defaultdict(list)
    for test in dict.fromkeys(map(_function, tests)):
        of_files[test.partition("::")[0]].append(test)
    yield f"\n{target}: tests that no change needs, as others notice it (-) or as they notice none (0)"
    for file, own in of_files.items():
        if spare := [test for test in own if test not in alone]:
            yield f"{file}: {len(spare)} of {len(own)}"
            yield from (f"  {'-' if test in noticing else '0'} {test.partition('::')[2]}" for test in spare)


def _function(test: str) -> str:
    return test.partition("[")[0]


if __name__ == "__main__":
    sys.exit(main())
