"""RAGServe (Ray et al., 2024): the configuration of each RAG query, chosen together with scheduling.

It changes answers, so it is no part of ``fineflow.optimize``. Start at ``api.adaptive``.
"""

from typing import TYPE_CHECKING

from fineflow._lazy import Lazy, lazily
from fineflow.adaptation.configuration import GOLDEN, Configurable, Configuration, Space
from fineflow.adaptation.decisions import AdaptiveStatistics, Decision
from fineflow.adaptation.profile import Profile
from fineflow.adaptation.profiler import Profiler

if TYPE_CHECKING:
    from fineflow.adaptation.distilled import DistilledProfiler

__all__ = [
    "GOLDEN",
    "AdaptiveStatistics",
    "Configurable",
    "Configuration",
    "Decision",
    "DistilledProfiler",
    "Profile",
    "Profiler",
    "Space",
]

__getattr__, __dir__ = lazily(
    __name__, {"DistilledProfiler": Lazy("fineflow.adaptation.distilled", "sentence-transformers", ("numpy",))}
)
