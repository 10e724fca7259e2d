"""Entry methods of the object that ``optimize`` returns for a chain of langchain-classic."""

from __future__ import annotations

from types import MethodType
from typing import Any

from langchain_core.runnables import RunnableConfig

from fineflow.adapters.core.trust import of_packages_class
from fineflow.adapters.langchain.calls import ChainCall
from fineflow.adapters.langchain.proxy import Optimized
from fineflow.adapters.langchain.several_prompts import Applied

_BY_OTHERS = frozenset({"acall", "apredict", "apredict_and_parse", "arun", "predict", "predict_and_parse", "run"})
_BY_OTHERS |= {"apply_and_parse"}
_OF_INVOKE = frozenset({"include_run_info", "return_only_outputs"})


class OptimizedChain(Optimized):
    """A chain that runs ahead, also by the older entry methods, which end in ``invoke``, ``ainvoke`` or ``apply``."""

    _self_applied: Any = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        kind: Any = type(self.__wrapped__)
        if not of_packages_class(kind, "__call__"):
            return self.__wrapped__(*args, **kwargs)
        return kind.__call__(self, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        kind = type(self.__wrapped__)
        if name in _BY_OTHERS | {"apply"} and hasattr(kind, name) and of_packages_class(kind, name):
            return self._self_apply if name == "apply" else MethodType(getattr(kind, name), self)
        return super().__getattr__(name)

    def _self_apply(self, input_list: Any, callbacks: Any = None) -> Any:
        if self._self_applied is None:
            self._self_applied = self._self_optimized(Applied(self.__wrapped__))
        return self._self_applied.invoke((input_list, callbacks))

    def _self_chain_call(
        self,
        entry: str,
        input: Any,
        config: RunnableConfig | None,
        kwargs: dict[str, Any],
        **how: Any,
    ) -> ChainCall:
        call = super()._self_chain_call(entry, input, config, kwargs, **how)
        if kwargs.keys() <= _OF_INVOKE:  # what they change is made when the chain has run
            call.plannable, call.way = True, self._self_way(input, config)
        return call
