"""fineflow: runs LangChain and LlamaIndex pipelines faster on your own models, with the same answer.

import fineflow
rag = fineflow.optimize(chain)
print(fineflow.explain(chain))
"""

from fineflow._lazy import Lazy, lazily
from fineflow.api import explain, optimize
from fineflow.cost_model.costs import costs
from fineflow.declare import effects, external, pure
from fineflow.errors import BackendError, FineflowError, FineflowWarning, GraphError, Overloaded, PlanningError
from fineflow.instrumentation import instrument, paused, status, uninstrument
from fineflow.options import Options
from fineflow.passes import PASSES
from fineflow.runtime.call.identity import identity
from fineflow.runtime.process import Runtime, shutdown
from fineflow.runtime.statistics import Statistics, statistics
from fineflow.servers import engine

__version__ = "0.1.0"

__all__ = [
    "PASSES",
    "BackendError",
    "FineflowError",
    "FineflowWarning",
    "GraphError",
    "Options",
    "Overloaded",
    "PlanningError",
    "Runtime",
    "Statistics",
    "costs",
    "effects",
    "engine",
    "explain",
    "external",
    "identity",
    "instrument",
    "optimize",
    "paused",
    "pure",
    "record",
    "shutdown",
    "statistics",
    "status",
    "uninstrument",
]

# Recording imports what it shows itself with, and a framework's handlers.
__getattr__, __dir__ = lazily(__name__, {"record": Lazy("fineflow.recording.recorder")})
