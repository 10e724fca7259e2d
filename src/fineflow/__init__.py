"""fineflow: runs LangChain and LlamaIndex pipelines faster on your own models, with the same answer.

import fineflow
rag = fineflow.optimize(chain)
print(fineflow.explain(chain))
"""

from typing import TYPE_CHECKING

from fineflow._lazy import Lazy, lazily
from fineflow.api import explain, optimize
from fineflow.cost_model.costs import costs
from fineflow.declare import effects, external, pure, trust_tools
from fineflow.errors import (
    BackendError,
    FineflowError,
    FineflowWarning,
    GraphError,
    Overloaded,
    PlanningError,
    SemanticError,
    UntestedVersionWarning,
)
from fineflow.options import Options
from fineflow.passes import PASSES
from fineflow.runtime.bill import Usage, prices
from fineflow.runtime.call.identity import identity
from fineflow.runtime.process import Runtime, shutdown
from fineflow.runtime.reruns import VerificationStatistics, verified
from fineflow.runtime.statistics import Statistics, statistics
from fineflow.servers import engine
from fineflow.verification.settings import Difference, Verify

if TYPE_CHECKING:  # imported on first use, see below
    from fineflow import telemetry as telemetry
    from fineflow.adaptation.api import adaptive
    from fineflow.adapters.semantic.functions import semantic_engine, semantic_function
    from fineflow.adapters.semantic.variables import SemanticVariable
    from fineflow.instrumentation.instrument import instrument, paused, status, uninstrument
    from fineflow.recording.recorder import record
    from fineflow.sessions import session

__version__ = "0.1.0"

__all__ = [
    "PASSES",
    "BackendError",
    "Difference",
    "FineflowError",
    "FineflowWarning",
    "GraphError",
    "Options",
    "Overloaded",
    "PlanningError",
    "Runtime",
    "SemanticError",
    "UntestedVersionWarning",
    "Usage",
    "SemanticVariable",
    "Statistics",
    "VerificationStatistics",
    "Verify",
    "adaptive",
    "costs",
    "effects",
    "engine",
    "explain",
    "external",
    "identity",
    "instrument",
    "optimize",
    "paused",
    "prices",
    "pure",
    "record",
    "semantic_engine",
    "semantic_function",
    "session",
    "shutdown",
    "statistics",
    "status",
    "trust_tools",
    "uninstrument",
    "verified",
]

# What most programs do not use: routing, telemetry, recording with what it shows itself with, semantic functions.
_ROUTING = Lazy("fineflow.instrumentation.instrument")
__getattr__, __dir__ = lazily(
    __name__,
    {
        "adaptive": Lazy("fineflow.adaptation.api"),
        "instrument": _ROUTING,
        "paused": _ROUTING,
        "SemanticVariable": Lazy("fineflow.adapters.semantic.variables"),
        "record": Lazy("fineflow.recording.recorder"),
        "semantic_engine": Lazy("fineflow.adapters.semantic.functions"),
        "semantic_function": Lazy("fineflow.adapters.semantic.functions"),
        "session": Lazy("fineflow.sessions"),
        "status": _ROUTING,
        "telemetry": Lazy("fineflow.telemetry"),
        "uninstrument": _ROUTING,
    },
)
