"""Fetches the own tests of LangChain's and LangGraph's packages and runs them in a subprocess.

The tests are not in the wheel but in the source distribution, which is downloaded once, from the package index that
pip is configured for, into a cache folder of the checkout. Only its tests are unpacked, so that what they import is
the installed package.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import fineflow

HERE = Path(__file__).resolve().parent
CACHE = HERE.parents[1] / ".cache" / "upstream"


@dataclass(frozen=True)
class Run:
    """outcomes: passed, failed, skipped or xfailed, by test id. calls, types: what was routed, by name."""

    outcomes: dict[str, str]
    calls: dict[str, int]
    types: dict[str, int]
    output: str


def fetch(package: str) -> Path:
    """The folder with the tests of the installed version of ``package``."""
    release = f"{package.replace('-', '_')}-{version(package)}"
    folder = CACHE / release
    if folder.exists():
        return folder
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as temporary:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", temporary]
        command += [f"--no-binary={package}", f"{package}=={version(package)}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        archive = Path(temporary) / f"{release}.tar.gz"
        if done.returncode or not archive.exists():
            raise RuntimeError(
                f"expected the package index to have the source distribution of {package} {version(package)}; pip "
                f"could not download it. Check the index that pip is configured for.\n{done.stderr}"
            )
        with tarfile.open(archive) as tar:
            wanted = (f"{release}/tests/", f"{release}/pyproject.toml")
            tar.extractall(temporary, [m for m in tar.getmembers() if m.name.startswith(wanted)], filter="data")
        try:
            (Path(temporary) / release).rename(folder)
        except OSError:
            if not folder.exists():  # another process may have been quicker
                raise
    return folder


def run(folder: Path, *arguments: str, tests: tuple[str, ...], timeout: float = 1800, **environment: str) -> Run:
    """Runs ``tests`` of the suite in ``folder``; ``arguments`` go to pytest. environment: added variables."""
    with tempfile.TemporaryDirectory() as temporary:
        outcomes, report = Path(temporary) / "outcomes.json", Path(temporary) / "report.json"
        # No sockets, as upstream's own Makefile has it: tests with a half-mocked tracing client would try the network.
        command = [sys.executable, "-m", "pytest", *tests, "-q", "-p", "no:cacheprovider", "-p", "upstream_plugin"]
        command += ["--disable-socket", "--allow-unix-socket", f"--outcomes={outcomes}", *arguments]
        if "fineflow.testing.routing" in arguments:
            command.append(f"--fineflow-report={report}")
        done = subprocess.run(
            command,
            cwd=folder,
            env=_environment() | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
        )
        if not outcomes.exists():
            raise RuntimeError(f"the upstream suite did not run; pytest said:\n{done.stdout[-5000:]}")
        routed = json.loads(report.read_text()) if report.exists() else {"calls": {}, "types": {}}
        return Run(json.loads(outcomes.read_text()), routed["calls"], routed["types"], done.stdout)


def _environment() -> dict[str, str]:
    # Tracing variables of the developer change what langchain-core does.
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("LANGCHAIN_", "LANGSMITH_", "PYTEST_"))}
    source = str(Path(fineflow.__file__).resolve().parents[1])
    environment["PYTHONPATH"] = os.pathsep.join([source, str(HERE)])
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    return environment
