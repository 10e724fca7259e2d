"""The user's options, in one immutable value."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict

from fineflow.declare import trust_in
from fineflow.ir.objectives import wrong_objective
from fineflow.passes import PASSES, Pass, checked
from fineflow.verification.settings import Verify, settings


class OptionsGiven(TypedDict, total=False):
    """The arguments of ``optimize`` besides the object: the fields of :class:`Options`, by name."""

    passes: Sequence[Pass]
    strict: bool
    assume_pure: bool
    eager: bool
    timeout: float | None
    max_concurrency: int | None
    trust: str
    verify: float | Verify | None
    objective: str | None
    across_nodes: bool | None
    cache: str | None
    stream_answers: bool
    trust_tools: Any
    waste: float | None


@dataclass(frozen=True, slots=True)
class Options:
    """Options of ``optimize``.

    passes: the rewrites, in order; any subset of ``fineflow.PASSES``, or functions of your own.
    strict: raise PlanningError instead of falling back to stock when fineflow itself fails.
    assume_pure: treat every user function as pure, whatever the analysis says.
    eager: run the graph ahead even where no gain is expected (for fidelity tests).
    trust: ``"packages"`` believes that components of installed packages, and those declared ``@fineflow.external``, do
        no more than their interface says: models answer, retrievers and stores read, embeddings embed, compressors
        select. ``"interfaces"`` believes it of classes of your own, too; they may be called earlier than in stock.
    max_concurrency: component calls (of models, stores, rerankers, …) that one call makes at a time; where LangChain's
        config has a ``max_concurrency``, that one counts. None: no limit, but 16 for calls inside your own functions.
    timeout: seconds that a call may take; then all of its work is stopped and it raises TimeoutError. None: no limit.
        See docs/runtime.md for blocking code in threads.
    across_nodes: start component calls of a graph's next nodes when the state that they need is known, without waiting
        for the end of the superstep. None: in graphs whose code shows that some node does not need one before it, and
        in calls that nobody reads meanwhile. See docs/langgraph.md.
    objective: what the answers of the calls are wanted for: ``"latency"``, ``"throughput"``, ``"ttft"`` or ``"tpot"``,
        see :func:`fineflow.identity`. None: as the calls say, or else ``"latency"``.
    cache: ``"warm"``: of requests ahead that share a long beginning, the first goes, and the others follow when its
        response begins, so that a provider's prompt cache is written once. ``"ignore"``: they go together. None: as
        ``"warm"`` where requests ask for such a cache, where responses tell of one, and before the first response of
        a model. See docs/cost.md.
    stream_answers: ask chat models of providers for a stream where stock's ``invoke`` asks for the whole answer: calls
        of tools, and items of lists, are used while the model writes the next. See docs/langchain.md.
    trust_tools: tools of MCP servers whose ``readOnlyHint`` is believed in this graph, as for
        :func:`fineflow.trust_tools`: the name of a server, a list of tools, or a function of a tool. None: only those
        that are trusted everywhere.
    waste: largest share of the object's requests, from 0 to 1, that may be sent in vain: ahead of stock, which then
        never makes them, as a step before fails or a call is left early. 0: none, calls run as stock. None, or 1: no
        bound. See docs/cost.md.
    verify: share of the calls, from 0 to 1, that are run again on stock when they have ended, in the background; the
        answers are compared, and a difference is reported. Or a :class:`fineflow.Verify`. None: no call. See
        docs/verify.md.

    Raises: TypeError for ``passes`` that are not functions; ValueError for a timeout or max_concurrency that is not a
    positive number, for an unknown ``trust``, ``objective`` or ``cache``, and for shares that are not from 0 to 1;
    TypeError for a switch that is neither True nor False, and for ``trust_tools`` of another kind.
    """

    passes: Sequence[Pass] = PASSES
    strict: bool = False
    assume_pure: bool = False
    eager: bool = False
    timeout: float | None = None
    max_concurrency: int | None = None
    trust: str = "packages"
    verify: float | Verify | None = None
    objective: str | None = None
    across_nodes: bool | None = None
    cache: str | None = None
    stream_answers: bool = False
    trust_tools: Any = None
    waste: float | None = None

    @property
    def trusting(self) -> bool:
        """True if the user's own classes are believed to do what their interfaces say."""
        return self.assume_pure or self.trust == "interfaces"

    def __post_init__(self) -> None:
        object.__setattr__(self, "passes", checked(self.passes))
        for switch in ("strict", "assume_pure", "eager", "stream_answers"):
            self._check_switch(switch)
        if self.across_nodes is not None:
            self._check_switch("across_nodes")
        if self.trust not in ("packages", "interfaces"):
            raise ValueError(f'trust is "packages" or "interfaces"; got {self.trust!r}')
        if self.trust_tools is not None:
            trust_in(self.trust_tools)
        if self.cache not in (None, "warm", "ignore"):
            raise ValueError(f'cache is "warm" or "ignore", or None; got {self.cache!r}')
        share: Any = self.waste
        number = isinstance(share, (int, float)) and not isinstance(share, bool)
        if share is not None and not (number and 0 <= share <= 1):
            raise ValueError(f"waste is a share of requests from 0 to 1, or None for no bound; got {share!r}")
        if wrong := wrong_objective(self.objective):
            raise ValueError(f"objective is {wrong}")
        object.__setattr__(self, "verify", settings(self.verify))
        most: Any = self.max_concurrency
        if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
            raise ValueError(f"max_concurrency is a whole number from 1 on, or None for no limit; got {most!r}")
        seconds: Any = self.timeout
        if seconds is None:
            return
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds < math.inf:
            raise ValueError(f"timeout is a number of seconds above 0, or None for no limit; got {seconds!r}")

    def _check_switch(self, name: str) -> None:
        """Raises TypeError for what is neither True nor False: a list of functions would be true for all functions."""
        value: Any = getattr(self, name)
        if not isinstance(value, bool):
            hint = "; to declare single functions, mark them @fineflow.pure" if name == "assume_pure" else ""
            raise TypeError(f"{name} is True or False; got {value!r}{hint}")


def changes_nothing(options: Options) -> bool:
    """Returns True if calls with these options are as those of any other optimized object around them."""
    return replace(options, strict=False, eager=False, across_nodes=None) == _DEFAULT


_DEFAULT = Options()


def disabled() -> bool:
    """Returns True if the environment asks to leave everything as it is."""
    return os.environ.get("FINEFLOW_DISABLE", "") not in ("", "0")
