"""Semantic functions: functions that a model computes, from the prompt in their docstring (Parrot, section 4.1)."""

from __future__ import annotations

import inspect
import weakref
from collections import namedtuple
from collections.abc import Callable, Mapping
from typing import Any, overload

from fineflow.adapters.core.decoding import checked
from fineflow.adapters.semantic.calls import Step, pending
from fineflow.adapters.semantic.prompts import FunctionPrompt, segments_of
from fineflow.adapters.semantic.variables import SemanticVariable
from fineflow.protocols import LLMEngine, Sampling
from fineflow.runtime.queues.prompts import INPUT, OUTPUT

_default: LLMEngine | None = None


def semantic_engine(engine: LLMEngine | None) -> None:
    """Sets the engine of all semantic functions that have none of their own, in this process. None: they have none.

    Raises: ValueError for an engine that does not decode.
    """
    global _default
    _default = None if engine is None else checked(engine)


class SemanticFunction:
    """A function that ``semantic_function`` made. Calling it returns its outputs as variables, at once.

    Inputs: texts, other values (``str`` of them; objects as JSON), semantic variables, and lists of these, which stand
    in the prompt with blank lines between.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        engine: LLMEngine | None,
        sampling: Sampling,
        outputs: Mapping[str, Sampling],
        chat: bool,
    ) -> None:
        self.__wrapped__ = function
        self.__doc__ = function.__doc__
        self.__name__ = name = function.__name__
        self.__qualname__, self.__module__ = function.__qualname__, function.__module__
        self.__signature__ = signature = inspect.signature(function)
        self.segments = segments_of(function.__doc__, name)
        self.outputs = [each.text for each in self.segments if each.kind == OUTPUT]
        self.chat = chat
        read = {each.text for each in self.segments if each.kind == INPUT}
        parameters = set(signature.parameters)
        if unknown := sorted(read - parameters):
            raise ValueError(f"the prompt of {name} reads {unknown[0]!r}, which is no parameter of {name}{signature}")
        if unread := [each for each in signature.parameters if each not in read]:
            raise ValueError(f"{name} has a parameter {unread[0]!r} that its prompt does not read")
        if other := sorted(set(outputs) - set(self.outputs)):
            raise ValueError(
                f"outputs={{{other[0]!r}: ...}} names no output of {name}; it has {', '.join(self.outputs)}"
            )
        self._engine = None if engine is None else checked(engine)
        self._sampling, self._of_outputs = sampling, dict(outputs)
        several: Any = namedtuple  # its name is not known before
        self._several = several(f"{name}_outputs", self.outputs, rename=True) if len(self.outputs) > 1 else None
        self._prompt: FunctionPrompt | None = None  # on the engine that it was called on last

    def __repr__(self) -> str:
        return f"<semantic function {self.__name__}{self.__signature__} -> {', '.join(self.outputs)}>"

    @property
    def engine(self) -> LLMEngine:
        """Its engine, or the one that ``semantic_engine`` set. Raises: RuntimeError if there is none."""
        found = self._engine or _default
        if found is None:
            raise RuntimeError(
                f"{self.__name__} has no engine; give it one by semantic_function(engine=...), by "
                f"{self.__name__}.on(engine), or for all functions by fineflow.semantic_engine(engine)"
            )
        return found

    def on(self, engine: LLMEngine) -> SemanticFunction:
        """Returns the same function on another engine. Raises: ValueError for an engine that does not decode."""
        return SemanticFunction(self.__wrapped__, checked(engine), self._sampling, self._of_outputs, self.chat)

    def prompt(self) -> FunctionPrompt:
        """Returns the prompt on the function's engine: the same object as long as the engine is the same."""
        engine, found = self.engine, self._prompt
        if found is None or found.engine is not engine:
            how = {output: self._of_outputs.get(output, self._sampling) for output in self.outputs}
            found = self._prompt = FunctionPrompt(self.__name__, self.segments, engine, how, self.chat)
        return found

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the variable of its output; of several outputs a named tuple of variables.

        Raises: TypeError for arguments that the function does not take; RuntimeError if it has no engine.
        """
        signature: inspect.Signature = self.__signature__
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.__name__}{signature}: {error}") from None
        bound.apply_defaults()
        step = Step(self.prompt(), dict(bound.arguments), pending())
        made = [SemanticVariable(f"{self.__name__}.{output}", step) for output in self.outputs]
        step.variables = tuple(map(weakref.ref, made))
        step.pending.add(step)
        return made[0] if self._several is None else self._several(*made)


@overload
def semantic_function(function: Callable[..., Any], /) -> SemanticFunction: ...


@overload
def semantic_function(
    *,
    engine: LLMEngine | None = None,
    chat: bool = False,
    outputs: Mapping[str, Sampling | Mapping[str, Any]] | None = None,
    sampling: Sampling | None = None,
    **settings: Any,
) -> Callable[[Callable[..., Any]], SemanticFunction]: ...


def semantic_function(
    function: Callable[..., Any] | None = None,
    /,
    *,
    engine: LLMEngine | None = None,
    chat: bool = False,
    outputs: Mapping[str, Sampling | Mapping[str, Any]] | None = None,
    sampling: Sampling | None = None,
    **settings: Any,
) -> Any:
    """Makes a function that a model computes of a function whose docstring is a prompt; its body never runs::

        @fineflow.semantic_function(engine=llm, max_tokens=200)
        def write_test(task, code):
            '''Task: {{input:task}}
            Code: {{input:code}}
            A test for it: {{output:test}}'''

        code = write_code("a snake game")
        print(write_test("a snake game", code).get(objective="latency"))

    Every parameter is an ``{{input:...}}``. Each ``{{output:...}}`` is a request: the model continues the prompt up to
    there, and with several outputs what it wrote is part of the prompt of the next. Text after the last output is not
    sent.

    engine: runs it; default the one of ``semantic_engine``. chat: sends the texts as messages by the engine's chat
    template, and outputs as the assistant's. sampling: decoding parameters (``fineflow.protocols.Sampling``); settings:
    its fields, instead. outputs: decoding parameters of single outputs, by name.

    Raises: ValueError for a prompt that cannot be used, a parameter without a placeholder, an output that does not
    exist, or an engine that does not decode; TypeError for settings that ``Sampling`` does not have.
    """
    if sampling is not None and settings:
        raise TypeError(f"expected either a Sampling or its fields, got both: {', '.join(settings)}")
    how = Sampling(**settings) if sampling is None else sampling
    own = {name: given if isinstance(given, Sampling) else Sampling(**given) for name, given in (outputs or {}).items()}

    def made(function: Any) -> SemanticFunction:
        if not callable(function) or not hasattr(function, "__name__"):
            raise TypeError(f"semantic_function expected a function with a prompt as docstring, got {function!r}")
        return SemanticFunction(function, engine, how, own, chat)

    return made if function is None else made(function)
