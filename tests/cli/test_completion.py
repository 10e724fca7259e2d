"""``fineflow completion``: the shells themselves complete by the scripts."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from fineflow import cli
from fineflow.cli.main import COMMANDS


def _script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert cli.main(["completion", shell]) == 0
    return capsys.readouterr().out


def _ran(shell: str, script: str, folder: Path) -> str:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed here")
    quiet = {"bash": "--norc", "zsh": "-f", "fish": "--no-config"}[shell]
    done = subprocess.run([shell, quiet, "-c", script], cwd=folder, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "plan.html").touch()
    (tmp_path / "app.py").touch()
    return tmp_path


WORDS = [
    (("",), {*COMMANDS, "--help", "--version"}),
    (("ex",), {"explain"}),
    (("explain", "--h"), {"--help", "--html"}),
    (("explain", "--trust", ""), {"packages", "interfaces"}),
    (("explain", "--html", "pl"), {"plan.html"}),
    (("explain", "--input", ""), set()),
    (("profile", ""), {"llm", "embedding", "reranker"}),
    (("run", "ap"), {"app.py"}),
    (("report", "--j"), {"--json"}),
]


@pytest.mark.parametrize(
    ("words", "expected"), WORDS, ids=lambda each: " ".join(each) if isinstance(each, tuple) else ""
)
def test_bash(words: tuple[str, ...], expected: set[str], capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    """By the function that ``complete`` has registered, as readline calls it."""
    quoted = " ".join(f"'{word}'" for word in ("fineflow", *words))
    found = _ran(
        "bash",
        f"{_script('bash', capsys)}\n"
        "function_of() { local spec; spec=$(complete -p fineflow); spec=${spec##*-F }; echo ${spec%% *}; }\n"
        f"COMP_WORDS=({quoted}); COMP_CWORD={len(words)}\n"
        "$(function_of)\n"
        'printf "%s\\n" "${COMPREPLY[@]}"',
        folder,
    )
    assert set(found.split()) == expected


@pytest.mark.parametrize(
    ("words", "expected"), WORDS, ids=lambda each: " ".join(each) if isinstance(each, tuple) else ""
)
def test_fish(words: tuple[str, ...], expected: set[str], capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    script = f"{_script('fish', capsys)}\ncomplete -C 'fineflow {' '.join(words)}'; exit 0"
    found = [line.split("\t")[0] for line in _ran("fish", script, folder).splitlines()]
    assert set(found) == {word for word in expected if words[-1] or not word.startswith("-")}


def test_zsh(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    """Its completion needs a terminal; so the two functions that the script hands its tables to print them."""
    script = _script("zsh", capsys)
    printing = 'compdef() { :; }; _describe() { print -l -- $commands; }; _arguments() { print -l -- "$@"; }\n'
    names = _ran("zsh", f"{printing}{script}\nwords=(fineflow ''); CURRENT=2; _fineflow", folder)
    assert {name for name in COMMANDS if f"\n{name}:" in f"\n{names}"} == set(COMMANDS)
    options = _ran("zsh", f"{printing}{script}\nwords=(fineflow explain ''); CURRENT=3; _fineflow", folder)
    assert {each.partition("[")[0] for each in options.splitlines() if each.startswith("--")} == {
        *("--help", "--input", "--trust", "--html", "--mermaid", "--json"),
    }
    assert ":value:(packages interfaces)" in options
