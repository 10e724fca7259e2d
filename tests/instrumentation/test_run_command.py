"""``fineflow run``: a program runs as python runs it, only that its calls are routed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from subprocess import CompletedProcess

import pytest

import programs
from fineflow.testing import virtual_threads

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


def _ran(folder: Path, *command: str, **env: str) -> CompletedProcess[str]:
    return programs.run(*command, cwd=folder, env={**os.environ, **env})


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


GAINS = """
import asyncio
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from fineflow.testing import virtual_threads
from fineflow.testing.langchain import FakeChat
ask = ChatPromptTemplate.from_template("{question}") | FakeChat(prefill=0.1)
chain = RunnablePassthrough.assign(first=ask) | RunnablePassthrough.assign(second=ask)
def calls():
    for _ in range(2):
        chain.invoke({"question": "who?"})
    asyncio.run(chain.ainvoke({"question": "who?"}))
    list(chain.stream({"question": "who?"}))
    RunnableLambda(str).invoke(3)
virtual_threads.run(calls)
"""


@pytest.mark.skipif(not virtual_threads.available, reason="the machine does not tell what threads do")
def test_says_what_was_saved(folder: Path) -> None:
    """Each call of the chain asks twice, 0.1 s each; optimized, both at once. All entry points count at their end."""
    (folder / "gains.py").write_text(GAINS, encoding="utf-8")
    done = _ran(folder, "-m", "fineflow", "run", "--json", "routed.json", "gains.py")
    assert (done.returncode, done.stderr) == (0, "routed.json is written\n")
    found = json.loads((folder / "routed.json").read_text(encoding="utf-8"))
    assert (found["active"], found["calls"], found["ahead"], found["faults"]) == (True, 5, 4, 0)
    rows = {each["name"]: each for each in found["routed"]}
    assert (rows["RunnableSequence"]["calls"], rows["RunnableSequence"]["ahead"]) == (4, 4)
    assert rows["RunnableSequence"]["saved_s"] == pytest.approx(0.1)
    assert (rows["RunnableSequence"]["looked"], rows["RunnableSequence"]["gained"]) == (4, 4)
    assert rows["RunnableLambda"]["saved_s"] == 0
    assert found["saved_s"] == pytest.approx(4 * rows["RunnableSequence"]["saved_s"])
    said = _ran(folder, "-m", "fineflow", "run", "gains.py", COLUMNS="60").stderr
    assert "ms of waiting saved, computed from the calls' traces" in " ".join(said.split())
    assert "saved a call" in said
    assert max(map(len, said.splitlines())) <= 60


NOTHING = """
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda
from fineflow.testing.langchain import FakeChat
ask = ChatPromptTemplate.from_template("{question}") | FakeChat()
def twice(question):
    return ask.invoke({"question": ask.invoke({"question": question}).text})
RunnableLambda(twice).invoke("who?")
ask.invoke({"question": "who?"})
"""


def test_says_that_nothing_was_gained(folder: Path) -> None:
    """The second call needs the first one's answer; calls that may start earlier are looked for all the same."""
    (folder / "nothing.py").write_text(NOTHING, encoding="utf-8")
    said = _ran(folder, "-m", "fineflow", "run", "nothing.py", COLUMNS="200").stderr.splitlines()
    assert said[0] == (
        "fineflow instrumentation is on: 2 calls routed. Nothing was gained: no step in them started earlier than in "
        "stock."
    )
    rows = {line.split()[0]: line.split("  ")[-1] for line in said[1:]}
    assert rows == {
        "RunnableLambda": "gained nothing: no step started earlier than in stock",
        "RunnableSequence": "nothing to gain, see fineflow.explain",
    }


def test_disabled_it_says_so_and_nothing_else(folder: Path) -> None:
    found = _ran(folder, "-m", "fineflow", "run", "app.py", FINEFLOW_DISABLE="1")
    assert (found.returncode, found.stderr) == (0, "FINEFLOW_DISABLE is set, so the program runs as it is.\n")
    quiet = _ran(folder, "-m", "fineflow", "run", "-q", "app.py", FINEFLOW_DISABLE="1")
    assert (quiet.returncode, quiet.stderr) == (0, "")


def test_bad_input_is_explained(folder: Path) -> None:
    nothing = _ran(folder, "-m", "fineflow", "run")
    assert nothing.returncode == 2
    assert "expected a script or -m MODULE" in nothing.stderr
    missing = _ran(folder, "-m", "fineflow", "run", "-q", "missing.py")
    assert missing.returncode == 2
    assert missing.stderr.startswith("fineflow run: cannot open 'missing.py': No such file or directory; give the file")
    module = _ran(folder, "-m", "fineflow", "run", "-m", "no_such_module")
    assert (module.returncode, module.stderr.count("\n")) == (2, 1)
    assert "there is no module 'no_such_module'" in module.stderr


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
    for share in ("2", "all"):
        bad = _ran(tmp_path, "-m", "fineflow", "run", "--verify", share, "lies.py")
        assert bad.returncode == 2 and f"expected a share from 0 to 1, such as 0.1, got {share}" in bad.stderr
