"""``fineflow run``: a program runs as python runs it, only that its calls are routed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

APP = """
import sys
from langchain_core.runnables import RunnableLambda
print(__name__, sys.argv, sys.path[0] != "", __file__)
print((RunnableLambda(lambda text: text + "!") | RunnableLambda(len)).invoke("abc"))
import pickle
class Mine: pass
assert pickle.loads(pickle.dumps(Mine())).__class__ is Mine
if "fail" in sys.argv:
    raise ValueError("the program's own")
sys.exit(3 if "exit" in sys.argv else 0)
"""


def _ran(folder: Path, *command: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], cwd=folder, capture_output=True, text=True, env={**os.environ, **env}, timeout=120
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("how", [("app.py",), ("-m", "app")])
@pytest.mark.parametrize("argument", ["", "exit", "--flag"])
def test_as_python_runs_it(folder: Path, how: tuple[str, ...], argument: str) -> None:
    given = [argument] if argument else []
    stock, routed = _ran(folder, *how, *given), _ran(folder, "-m", "fineflow", "run", *how, *given)
    assert (routed.stdout, routed.returncode) == (stock.stdout, stock.returncode)
    assert "1 call routed" in routed.stderr


def test_errors_look_as_in_python(folder: Path) -> None:
    stock, routed = _ran(folder, "app.py", "fail"), _ran(folder, "-m", "fineflow", "run", "-q", "app.py", "fail")
    assert (routed.stderr, routed.returncode) == (stock.stderr, stock.returncode)


def test_disabled_it_is_silent(folder: Path) -> None:
    found = _ran(folder, "-m", "fineflow", "run", "app.py", FINEFLOW_DISABLE="1")
    assert (found.returncode, found.stderr) == (0, "")


def test_bad_input_is_explained(folder: Path) -> None:
    nothing = _ran(folder, "-m", "fineflow", "run")
    assert nothing.returncode == 2
    assert "expected a script or -m MODULE" in nothing.stderr
    missing = _ran(folder, "-m", "fineflow", "run", "-q", "missing.py")
    assert missing.returncode == 1
    assert missing.stderr.strip() == "fineflow run: cannot open 'missing.py': No such file or directory"


LIES = """
from operator import itemgetter
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnablePassthrough
import fineflow
calls = []
@fineflow.external
class Search(BaseRetriever):
    def _get_relevant_documents(self, query, *, run_manager):
        calls.append(query)
        return [Document(str(min(len(calls), 3)))]
first = RunnablePassthrough.assign(a=itemgetter("q") | Search())
print((first | RunnablePassthrough.assign(b=itemgetter("q") | Search())).invoke({"q": "?"}).keys())
"""


def test_calls_are_verified(tmp_path: Path) -> None:
    (tmp_path / "lies.py").write_text(LIES, encoding="utf-8")
    found = _ran(tmp_path, "-m", "fineflow", "run", "--verify", "1", "lies.py")
    assert found.stdout == "dict_keys(['q', 'a', 'b'])\n"
    assert "RunnableSequence.invoke differs from stock in its value (100.00% of calls are verified)" in found.stderr
    assert "verified: 1 call, 0 equal, 1 different, 0 unsteady; 0 skipped" in found.stderr
    bad = _ran(tmp_path, "-m", "fineflow", "run", "--verify", "2", "lies.py")
    assert bad.returncode == 2 and "expected a share from 0 to 1" in bad.stderr
