"""``import fineflow`` is light, its modules of short names too: no optional library, and done in a blink."""

from __future__ import annotations

import json
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
OURS, ALL = 90, 240  # modules at most; 89 and 218 on Python 3.11

PROBE = """
import json, sys
before = set(sys.modules)
import fineflow, fineflow.engines, fineflow.langchain, fineflow.llamaindex
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def _probe(bytecode: Path) -> list[str]:
    """Imports fineflow in a new interpreter: the modules that it loaded.

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
    return list(json.loads(done.stdout))


def test_import_loads_no_optional_library(tmp_path: Path) -> None:
    modules = _probe(tmp_path)
    assert "fineflow" in modules
    loaded = {name.partition(".")[0] for name in modules}
    assert not loaded & set(HEAVY)


def test_import_loads_little(tmp_path: Path) -> None:
    """What it takes in seconds is in ``python -m benchmarks micro starting``."""
    modules = _probe(tmp_path)
    ours = [name for name in modules if name.startswith("fineflow")]
    assert len(ours) <= OURS and len(modules) <= ALL, (len(ours), len(modules))
