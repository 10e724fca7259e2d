"""RAGServe (Ray et al., 2024): the configuration of each RAG query, chosen together with scheduling.

It changes answers, so it is no part of ``fineflow.optimize``. Start at ``api.adaptive``.
"""

from fineflow.adaptation.configuration import GOLDEN, Configurable, Configuration, Space
from fineflow.adaptation.decisions import AdaptiveStatistics, Decision
from fineflow.adaptation.profile import Profile
from fineflow.adaptation.profiler import Profiler

__all__ = ["GOLDEN", "AdaptiveStatistics", "Configurable", "Configuration", "Decision", "Profile", "Profiler", "Space"]
