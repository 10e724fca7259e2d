"""The mutation tester of tools/: what it changes, what it leaves alone, and that it tells noticed from unnoticed."""

from __future__ import annotations

import ast
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import programs

TOOLS = Path(__file__).parents[1] / "tools"


def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, TOOLS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up, and mutants the two others
    spec.loader.exec_module(module)
    return module


mutations: Any = tool("mutations")
forked_tests: Any = tool("forked_tests")
mutants: Any = tool("mutants")


def changes(source: str) -> list[tuple[str, str]]:
    """What differs in the line of each mutation, in order."""
    return [mutations.mutated(source, m.number)[1:] for m in mutations.mutations(source)]


@pytest.mark.parametrize(
    ("line", "becomes"),
    [
        ("x = a < b", ["x = a <= b"]),
        ("x = a == b is c", ["x = a != b is c", "x = a == b is not c"]),
        ("x = a not in b", ["x = a in b"]),
        ("x = a and b", ["x = a or b"]),
        ("x = not a", ["x = a"]),
        ("x = a + b", ["x = a - b"]),
        ("x -= b", ["x += b"]),
        ("x = a[0] + a[-1]", ["x = a[0] - a[-1]"]),
        ("x = a[2]", ["x = a[3]"]),
        ("x = a[1:]", ["x = a[2:]"]),
        ("x = True", ["x = False"]),
        ("call(a)", ["pass"]),
        ("x = [y for y in a if y]", ["x = [y for y in a if not y]"]),
        ("x = a if b else c", ["x = a if not b else c"]),
        ("x = zip(a, b, strict=True)", []),
        ("x = open(strict=True)", ["x = open(strict=False)"]),
        ("x = a * 1.5", []),
    ],
)
def test_each_operator_is_changed(line: str, becomes: list[str]) -> None:
    assert changes(line) == [(line, other) for other in becomes]


def test_statements_are_changed() -> None:
    source = (
        "def f(a):\n    for b in a:\n        if b:\n            continue\n        break\n"
        "    if not a:\n        return None\n    elif a is b:\n        return False\n    return a\n"
    )
    assert changes(source) == [
        ("if b:", "if not b:"),
        ("continue", "break"),
        ("break", "continue"),
        ("if not a:", "if a:"),  # once: the negation of the condition is the same
        ("if a is b:", "if a is not b:"),
        ("return False", "return True"),  # and not None, which is false, too
        ("return a", "return None"),
    ]


def test_texts_annotations_and_declarations_are_left_alone() -> None:
    source = '''
"""1 + 1 and not True."""
if TYPE_CHECKING:
    from a import b if 0 else c
@decorated(True, 1)
def f(a: Literal[1, True] = 2.5) -> Literal[0]:
    """Returns 1 < 2."""
    b: Annotated[int, 1 < 2] = "1" + f"{1 + 1}"
    assert a == 1, "or" + "and"
    raise ValueError("not" + a, 1 if a else 2)
class C:
    a: int = field(repr=False)
    def __repr__(self):
        return f(1)
'''.replace("    from a import b if 0 else c\n", "    from a import b\n    c = 1 < 2\n")
    assert mutations.mutations(source) == []


def test_names_are_stable_and_unique(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    for name in ("one", "two", "three"):
        file = tmp_path / f"src/fineflow/sums/{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("a = b < c, d < e\nf = 5\n", encoding="utf-8")
    target = mutants.Target("sums", ())

    everything = mutants.chosen([target], 100, 1)

    assert sorted(m.name for m in everything if "one" in m.name) == [
        "sums/one.py:1 '<' -> '<='",
        "sums/one.py:1 '<' -> '<=' (no. 2)",
        "sums/one.py:2 '5' -> '6'",
    ]
    assert mutants.chosen([target], 4, 1) == everything[:4] != mutants.chosen([target], 4, 2)
    assert {m.file for m in everything[:3]} == {f"src/fineflow/sums/{name}.py" for name in ("one", "two", "three")}


def test_the_targets_have_tests_and_mutants() -> None:
    drawn = mutants.chosen(mutants.TARGETS, 2 * len(mutants.TARGETS) + 1, 1)
    for target in mutants.TARGETS:
        assert not [pattern for pattern in target.tests if not list(mutants.ROOT.glob(pattern))]
        assert all((mutants.ROOT / test.partition("::")[0]).exists() for test in target.without)
        assert len([m for m in drawn if m.target == target.package]) in (2, 3)
        for path in (mutants.ROOT / "src/fineflow" / target.package).rglob("*.py"):
            ast.parse(path.read_text(encoding="utf-8"))


def test_tests_that_name_a_module_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    texts = {
        "a.py": "",
        "b.py": "from fineflow.sums import one, two",
        "c.py": "fineflow.sums.twofold",
        "d.py": "added()",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")

    def near(module: str) -> list[str]:
        first, others = mutants.by_nearness(texts, module, "def added(): ...\ndef _own(): ...")
        assert sorted([*first, *others]) == sorted(texts)
        return list(first)

    assert near("fineflow.sums.two") == ["b.py"]
    assert near("fineflow.sums.twofold") == ["c.py"]
    assert near("fineflow.sums.three") == ["d.py"]  # nobody names it: who uses what it holds


SUMS = """
def total(numbers):
    result = 0
    for number in numbers:
        result += number
    return result


def largest(numbers):
    found = None
    while numbers:
        number, *numbers = numbers
        if found is None or number > found:
            found = number
    return found
"""
TESTS = """
from fineflow.sums import add


def test_total():
    assert add.total([3, 4]) == 7


def test_total_of_one():
    assert add.total([3]) == 3


def test_largest():
    assert add.largest([1, 2]) == 2
"""
PROGRAM = """
import sys
from pathlib import Path
sys.path.insert(0, {tools!r})
import mutants
mutants.ROOT = Path.cwd()
mutants.TARGETS = (mutants.Target("sums", ("tests/test_*.py",)),)
sys.exit(mutants.main(sys.argv[1:]))
"""
ENDS = """
import dataclasses, json, sys
from pathlib import Path
sys.path.insert(0, {tools!r})
import forked_tests
forked_tests.preload(Path.cwd())
outcome = forked_tests.run(["tests/test_ends.py"], Path.cwd(), silence=float(sys.argv[1]))
print(json.dumps(dataclasses.asdict(outcome)))
"""


@pytest.fixture
def sums(tmp_path: Path) -> Path:
    """A made-up package, with tests."""
    for name, text in (
        ("src/fineflow/__init__.py", ""),
        ("src/fineflow/sums/__init__.py", ""),
        ("src/fineflow/sums/add.py", SUMS),
        ("tests/test_sums.py", TESTS),
        ("pytest.ini", "[pytest]"),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def run(folder: Path, *arguments: str) -> tuple[str, dict[str, Any]]:
    """What the tool prints, and its results by the change."""
    ended = programs.run("-c", PROGRAM.format(tools=str(TOOLS)), *arguments, cwd=folder)
    assert ended.returncode == 0, ended.stderr
    kept = json.loads((folder / "kept.json").read_text(encoding="utf-8"))["mutants"]
    return ended.stdout, {each["name"].partition(" ")[2]: each for each in kept}


def test_what_tests_notice_is_told_from_what_they_do_not(sums: Path) -> None:
    printed, kept = run(sums, "--json", "kept.json", "--all-killers")

    assert {change: each["result"] for change, each in kept.items()} == {
        "'0' -> '1'": "killed",
        "'+' -> '-'": "killed",
        "'return result' -> 'return None'": "killed",
        "'if found is None or number > found' -> 'if not (found is None or number > found)'": "killed",
        "'or' -> 'and'": "killed",
        "'is' -> 'is not'": "killed",
        "'>' -> '>='": "survived",
        "'return found' -> 'return None'": "killed",
    }
    assert kept["'+' -> '-'"]["by"] == [f"tests/test_sums.py::test_total{end}" for end in ("", "_of_one")]
    assert "survived: sums/add.py:13 '>' -> '>='\n  - if found is None or number > found:\n  + if" in printed
    assert "tests/test_sums.py: 2 of 3\n  - test_total\n  - test_total_of_one\n" in printed

    (sums / "src/fineflow/sums/add.py").write_text(SUMS.replace("number > found", "number >= found"), encoding="utf-8")
    printed, _ = run(sums, "--resume", "kept.json")
    assert printed.count("/4 ") == 4 and "'>=' -> '>'" in printed  # those of the line that is another one now


@pytest.mark.parametrize(("end", "stopped"), [("os._exit(3)", False), ("threading.Event().wait()", True)])
def test_children_that_die_or_hang(sums: Path, end: str, stopped: bool) -> None:
    text = f"import os, threading\n\ndef test_ends():\n    {end}\n"
    (sums / "tests/test_ends.py").write_text(text, encoding="utf-8")
    ended = programs.run("-c", ENDS.format(tools=str(TOOLS)), "0" if stopped else "900", cwd=sums)
    outcome = json.loads(ended.stdout)
    assert (outcome["code"], outcome["stopped"]) == (None, stopped)
    assert (outcome["running"], outcome["failed"]) == ("tests/test_ends.py::test_ends", [])


def test_failing_tests_without_a_change_end_the_run(sums: Path) -> None:
    (sums / "tests/test_sums.py").write_text(TESTS.replace("== 7", "== 8"), encoding="utf-8")
    ended = programs.run("-c", PROGRAM.format(tools=str(TOOLS)), cwd=sums)
    assert ended.returncode == 1
    assert ended.stderr == "sums: tests/test_sums.py::test_total fails without a change\n"
