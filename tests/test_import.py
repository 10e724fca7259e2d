"""``import fineflow`` is light, its modules of short names too: no optional library, and done in a blink."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import fineflow

HEAVY = (
    "accelerate",
    "chromadb",
    "langchain",
    "langchain_chroma",
    "langchain_classic",
    "langchain_core",
    "langchain_text_splitters",
    "langgraph",
    "langsmith",
    "llama_index",
    "numpy",
    "opentelemetry",
    "prometheus_client",
    "pydantic",
    "sentence_transformers",
    "torch",
    "transformers",
    "vllm",
)
LIMIT = 0.2  # seconds
RUNS = 20  # at most: what other processes take of the machine is not fineflow's

PROBE = """
import json, sys, time
before = set(sys.modules)
start = time.perf_counter()
import fineflow, fineflow.engines, fineflow.langchain, fineflow.llamaindex
seconds = time.perf_counter() - start
print(json.dumps({"seconds": seconds, "modules": sorted(set(sys.modules) - before)}))
"""


def _probe(bytecode: Path) -> dict[str, object]:
    """Imports fineflow in a new interpreter: the seconds that took, and the modules it loaded.

    bytecode: folder of the compiled modules. An installed package is compiled, whatever the environment says here.
    """
    source = str(Path(fineflow.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", PROBE],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, "PYTHONPATH": source, "PYTHONPYCACHEPREFIX": str(bytecode), "PYTHONDONTWRITEBYTECODE": ""},
    )
    return dict(json.loads(done.stdout))


def test_import_loads_no_optional_library(tmp_path: Path) -> None:
    modules = _probe(tmp_path)["modules"]
    assert isinstance(modules, list)
    assert "fineflow" in modules
    loaded = {name.partition(".")[0] for name in modules}
    assert not loaded & set(HEAVY)


def test_import_is_quick(tmp_path: Path) -> None:
    best = math.inf
    for _ in range(RUNS):
        best = min(best, float(str(_probe(tmp_path)["seconds"])))
        if best < LIMIT:
            break
    assert best < LIMIT, f"import fineflow took {best:.3f} s at best of {RUNS}; the limit is {LIMIT} s"
