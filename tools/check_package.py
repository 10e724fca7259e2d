"""Builds the sdist and the wheel, looks at what is in them, and tries each in a new environment outside the checkout.

Usage: python tools/check_package.py [--work FOLDER]

Needs a package registry, and pip 23 or newer: the wheel is installed by pip, as users do, the rest by uv where it is on
the path. PyTorch is not installed. Exits with 1 at the first thing that is wrong.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "src" / "fineflow"

SMOKE = """
import importlib.metadata, importlib.resources, sys, fineflow
assert "langchain_core" not in sys.modules, "import fineflow imports LangChain"
assert sys.argv[1] not in fineflow.__file__, f"the checkout was imported: {fineflow.__file__}"
assert importlib.resources.files("fineflow").joinpath("py.typed").is_file()

from app import chain
from langchain_core.runnables.utils import AddableDict
fast = fineflow.optimize(chain)
for value in ({"about": "one"}, {"about": "two"}):
    assert fast.invoke(value) == chain.invoke(value), value
    assert sum(fast.stream(value), start=AddableDict()) == chain.invoke(value), value
plan = str(fineflow.explain(chain))
assert "Runs as stock" not in plan, plan
print(importlib.metadata.version("fineflow"), "of", fineflow.__file__)
"""

APP = """
import fineflow
from langchain_core.language_models import SimpleChatModel
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough

@fineflow.external
class Model(SimpleChatModel):
    answer: str
    _llm_type = "constant"

    def _call(self, messages, stop=None, run_manager=None, **kwargs):
        return self.answer

def asking(text):
    return ChatPromptTemplate.from_template(text) | Model(answer=text) | StrOutputParser()

pro, con = asking("For {about}"), asking("Against {about}")
chain = RunnablePassthrough.assign(pro=pro) | RunnablePassthrough.assign(con=con)
"""


def main() -> int:
    """Builds, looks and tries; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--work", type=Path, help="folder for the packages and environments, kept; default a temporary one"
    )
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = (asked.work or Path(temporary)).resolve()
        try:
            built = build(work)
            for problem in (look_at_sdist(built[0]), look_at_wheel(built[1])):
                if problem:
                    print(problem)
                    return 1
            sdist, wheel = built
            tried(sdist, work / "sdist")
            tried(wheel, work / "wheel", by_pip=True)
        except subprocess.CalledProcessError as error:
            print(f"{error.cmd} failed:\n{(error.stdout or '')[-4000:]}")
            return 1
    print("the sdist and the wheel install and run")
    return 0


def build(work: Path) -> tuple[Path, Path]:
    """Builds the sdist from the checkout and the wheel from the sdist. Returns both files."""
    dist = work / "dist"
    builder = _environment(work / "build")
    _install(builder, "build")
    by_uv = ("--installer", "uv") if shutil.which("uv") else ()
    _call(builder, "-m", "build", *by_uv, "--outdir", dist, ROOT)
    (sdist,), (wheel,) = dist.glob("*.tar.gz"), dist.glob("*.whl")
    print(f"built {sdist.name} ({sdist.stat().st_size:,} bytes) and {wheel.name} ({wheel.stat().st_size:,} bytes)")
    return sdist, wheel


def look_at_wheel(wheel: Path) -> str:
    """Returns what is wrong with a wheel: a file of ours that it lacks, or another that it holds; "" if nothing."""
    names = set(zipfile.ZipFile(wheel).namelist())
    ours = {f"fineflow/{path.relative_to(SOURCES).as_posix()}" for path in _committed(SOURCES)}
    if lost := sorted(ours - names):
        return f"{wheel.name} lacks {', '.join(lost[:5])}"
    other = sorted(name for name in names - ours if ".dist-info" not in PurePosixPath(name).parts[0])
    return f"{wheel.name} holds {', '.join(other[:5])}" if other else ""


def look_at_sdist(sdist: Path) -> str:
    """Returns what is wrong with an sdist: a committed file, of those that its tests and tools need, that it lacks."""
    with tarfile.open(sdist) as archive:
        names = {"/".join(PurePosixPath(name).parts[1:]) for name in archive.getnames()}
    wanted = {path.relative_to(ROOT).as_posix() for path in _committed(ROOT)}
    lost = sorted(name for name in wanted - names if not name.startswith(".") and name != "pyproject.toml")
    return f"{sdist.name} lacks {', '.join(lost[:5])}" if lost else ""


def tried(package: Path, folder: Path, by_pip: bool = False) -> None:
    """Installs a package with the extra for LangChain, and runs the smoke test and the command. Raises if one fails."""
    python = _environment(folder / "venv")
    _install(python, "-c", ROOT / "constraints.txt", f"{package}[langchain]", by_pip=by_pip)
    (folder / "app.py").write_text(APP, encoding="utf-8")
    (folder / "smoke.py").write_text(SMOKE, encoding="utf-8")
    shown = _call(python, "smoke.py", ROOT, cwd=folder)
    print(f"{package.name}: {shown.splitlines()[-1]}")
    for arguments in (("--version",), ("explain", "app:chain")):
        shown = _call(python.with_name("fineflow"), *arguments, cwd=folder)
        assert shown.strip(), f"fineflow {' '.join(arguments)} printed nothing"
        print(f"  fineflow {' '.join(arguments)}: {shown.splitlines()[0]}")
    listed = _call(python, "-m", "pip", "list")
    assert "torch " not in listed, "the extra for LangChain brought PyTorch"


def _committed(folder: Path) -> list[Path]:
    """The files below a folder that git knows."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=folder, capture_output=True, text=True, check=True).stdout
    return [folder / name for name in listed.split("\0") if name]


def _environment(folder: Path) -> Path:
    venv.create(folder, with_pip=True, clear=True)
    return folder / "bin" / "python"


def _install(python: Path, *arguments: str | Path, by_pip: bool = False) -> None:
    uv = shutil.which("uv")
    if by_pip or not uv:
        _call(python, "-m", "pip", "install", "--quiet", *arguments)
    else:
        _call(uv, "pip", "install", "--quiet", "--python", python, *arguments)


def _call(*command: str | Path, cwd: Path | None = None) -> str:
    unset = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    options = {"cwd": cwd, "env": unset, "text": True, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.run([str(part) for part in command], check=True, **options).stdout


if __name__ == "__main__":
    sys.exit(main())
