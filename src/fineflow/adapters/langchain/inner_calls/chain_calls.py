"""Calls of classic chains, and of ``generate``, in user functions: the searches and requests that they make.

A walk cannot follow code that configures callback managers and opens runs, so for a chain it asks here. What is not
named here, or is overridden, ends the walk: a memory, say, or settings of requests. A ``_call`` of the user's own is
walked through. As of langchain-classic 1.0 and langchain-core 1.7.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType, MethodType
from typing import Any

from langchain_core.documents import Document
from langchain_core.language_models import BaseChatModel

from fineflow.adapters.core.installers import if_imported, of_package
from fineflow.adapters.core.invocation import is_async
from fineflow.adapters.core.trust import of_packages_class, owner, unchanged
from fineflow.adapters.inner_calls.entry_wrappers import own_function
from fineflow.adapters.langchain.inner_calls.classic_chains import is_chain
from fineflow.adapters.langchain.inner_calls.made_components import computes
from fineflow.adapters.lookahead import UNKNOWN, Stop, Walk
from fineflow.adapters.lookahead.builtin_calls import SPECIAL
from fineflow.adapters.lookahead.objects import attribute
from fineflow.adapters.lookahead.values import Awaited, unknown

ASKED = ("_generate_with_cache", "_agenerate_with_cache")
"""Methods that a chat model's ``generate`` and ``agenerate`` call for each prompt."""

Inner = tuple[Any, Sequence[Any], Mapping[str, Any]]

_ENTRIES = frozenset({"invoke", "__call__", "run", "predict", "apply"})
_ASYNC_ENTRIES = frozenset({"ainvoke", "acall", "arun", "apredict", "aapply"})
_GENERATE = frozenset({"generate", "agenerate", "generate_prompt", "agenerate_prompt"})
_BASE = ("prep_inputs", "aprep_inputs", "prep_outputs", "aprep_outputs", "_validate_inputs", "_validate_outputs")
_SETTINGS = frozenset({"callbacks", "tags", "metadata", "run_name", "return_only_outputs", "include_run_info"})
_CHAINS = "langchain_classic.chains."


def within(obj: Any, name: str, args: Sequence[Any], named: Mapping[str, Any]) -> Inner | None:
    """Returns what a walk calls in place of a method of a chain or chat model; None for any other method."""
    if is_chain(type(obj)) and not name.endswith(("batch", "stream")):
        return _through_chain, [obj, name, *args], named
    if name in _GENERATE and isinstance(obj, BaseChatModel):
        return _through_generate, [obj, name, *args], named
    return None


def _through_chain(walk: Walk, args: list[Any], named: Mapping[str, Any]) -> Any:
    chain, name, *given = args
    kind: Any = type(chain)
    if not of_packages_class(kind, name):
        return walk.call(_of_user(chain, name), given, dict(named))
    awaits = name in _ASYNC_ENTRIES
    if not awaits and name not in _ENTRIES:
        raise Stop(f"calls .{name}() of a {kind.__name__}")
    calls, entry = _Chains(walk, awaits=awaits), name.removeprefix("a" if awaits else "")
    if entry == "apply":
        value = calls.applied(chain, given[0] if given else named["input_list"])
    elif entry in ("run", "predict"):
        if given and (entry == "predict" or len(given) > 1):
            raise Stop(f"calls .{name}() with arguments of its own")
        others = {key: value for key, value in named.items() if key not in ("callbacks", "tags", "metadata")}
        value = calls.run(chain, given[0] if given else walk.own(others))
    else:
        rest = {key: value for key, value in named.items() if key not in _SETTINGS | {"config"}}
        given_only = len(given) > 1 and entry != "invoke" and given[1]
        only = named.get("return_only_outputs", given_only)
        value = calls.called(chain, given[0] if given else next(iter(rest.values())), only_outputs=only)
    return Awaited(value) if awaits else value


def _through_generate(walk: Walk, args: list[Any], named: Mapping[str, Any]) -> Any:
    """Finds the requests of ``generate``. What it returns, with figures of the requests, is stock's to make."""
    model, name, *given = args
    awaits = is_async(name)
    several = given[0] if given else named.get("messages", named.get("prompts"))
    if not named.keys() <= {"messages", "prompts", "callbacks"} or len(given) > 1:
        raise Stop(f"calls .{name}() with settings")
    calls = _Chains(walk, awaits=awaits)
    for prompt in several if walk.whole(several) else (UNKNOWN,):
        messages = prompt if walk.known(prompt) else UNKNOWN
        if not unknown(messages) and name.endswith("prompt"):
            messages = walk.call(attribute(walk, prompt, "to_messages", method=True), [], {})
        calls.ask(model, messages)
    return Awaited(UNKNOWN) if awaits else UNKNOWN


class _Chains:
    """What chains do in one walk, in sync or in async calls. Outputs are dicts of the walk's own, or UNKNOWN."""

    def __init__(self, walk: Walk, *, awaits: bool) -> None:
        self._walk, self._awaits = walk, awaits

    def _call(self, obj: Any, name: str, arg: Any, **named: Any) -> Any:
        value = self._walk.host.call(obj, name, [arg], named, sure=not self._walk.unsure)
        return value.value if isinstance(value, Awaited) else value

    def _name(self, name: str) -> str:
        return f"a{name}" if self._awaits else name

    # --- entries ----------------------------------------------------------------------------------------------------

    def called(self, chain: Any, given: Any, *, only_outputs: bool = False) -> Any:
        """Returns what ``invoke`` returns."""
        inputs = self._inputs(chain, given)
        outputs = self._outputs(chain, inputs)
        if only_outputs or not self._walk.whole(outputs):
            return outputs
        return self._walk.own({**inputs, **outputs}) if self._walk.whole(inputs) else UNKNOWN

    def run(self, chain: Any, given: Any) -> Any:
        """Returns the only output of a chain."""
        outputs = self._outputs(chain, self._inputs(chain, given))
        if not self._walk.whole(outputs):
            return UNKNOWN
        return outputs[attribute(self._walk, chain, "_run_output_key", method=False)]

    def applied(self, chain: Any, inputs: Any) -> Any:
        """Returns what ``LLMChain.apply`` returns."""
        _written_by(chain, "llm.LLMChain", self._name("apply"))
        if self._walk.whole(inputs):
            return self._walk.own(self._answers(chain, inputs))
        self._answers(chain, [UNKNOWN])
        return UNKNOWN

    def _inputs(self, chain: Any, given: Any) -> Any:
        _written_by(chain, "base.Chain", *_BASE, self._name("invoke"), "acall" if self._awaits else "__call__")
        if chain.memory is not None:
            raise Stop(f"calls a {type(chain).__name__} with a memory")
        if not self._walk.whole(given) or isinstance(given, dict):
            return given
        (key,) = attribute(self._walk, chain, "input_keys", method=False)
        return self._walk.own({key: given})

    def _outputs(self, chain: Any, inputs: Any) -> Any:
        kind: Any = type(chain)
        name = "_acall" if self._awaits else "_call"
        own = owner(kind, name)
        if not of_package(own.__module__):
            return self._through(_of_user(chain, name), inputs)
        made = _OUTPUTS.get(f"{own.__module__}.{own.__name__}".removeprefix(_CHAINS))
        if made is None:
            raise Stop(f"calls a {kind.__name__}")
        return made(self, chain, inputs)

    def _through(self, func: MethodType, inputs: Any) -> Any:
        named = {"run_manager": UNKNOWN} if "run_manager" in inspect.signature(func).parameters else {}
        return self._walk.awaited(self._walk.call(func, [inputs], named), optional=True)

    # --- chains that ask a model ------------------------------------------------------------------------------------

    def llm(self, chain: Any, inputs: Any) -> Any:
        """Returns the outputs of an ``LLMChain``."""
        return self._answers(chain, [inputs])[0]

    def _answers(self, chain: Any, several: Sequence[Any]) -> list[Any]:
        names = ("generate", "agenerate", "prep_prompts", "aprep_prompts", "create_outputs")
        _written_by(chain, "llm.LLMChain", *names)
        plain = chain.return_final_only and not chain.llm_kwargs
        if not (plain and computes(chain.prompt) and computes(chain.output_parser)):
            raise Stop("calls an LLMChain with settings, a prompt or a parser of its own")
        made = []
        for inputs in several:
            message = self.ask(chain.llm, self._messages(chain.prompt, inputs))
            made.append(self._walk.own({chain.output_key: self._call(chain.output_parser, "invoke", message)}))
        return made

    def _messages(self, prompt: Any, inputs: Any) -> Any:
        value = self._formatted(prompt, inputs)
        return value if unknown(value) else self._walk.own(value.to_messages())

    def _formatted(self, prompt: Any, inputs: Any) -> Any:
        if not self._walk.whole(inputs):
            return UNKNOWN
        if "stop" in inputs:
            raise Stop("calls an LLMChain with settings")
        return self._call(prompt, "invoke", self._walk.own({name: inputs[name] for name in prompt.input_variables}))

    def ask(self, model: Any, messages: Any) -> Any:
        """Returns the message by which a chat model answers. Finds the request."""
        if not unchanged(model, BaseChatModel, _GENERATE):
            raise Stop(f"asks a {type(model).__name__}")
        return self._call(model, ASKED[self._awaits], messages, stop=None, run_manager=UNKNOWN)

    def combined(self, chain: Any, inputs: Any) -> Any:
        """Returns the outputs of a chain that answers from documents."""
        kind = owner(type(chain), "combine_docs").__name__
        if kind == "MapReduceDocumentsChain":
            return self._mapped(chain, inputs)
        if kind == "StuffDocumentsChain":
            return self._stuffed(chain, inputs)
        raise Stop(f"calls a {kind}")

    def _stuffed(self, chain: Any, inputs: Any) -> Any:
        _written_by(chain, "combine_documents.stuff.StuffDocumentsChain", *_COMBINE, "_get_inputs")
        text, others = UNKNOWN, {}
        if self._walk.whole(inputs):
            wanted = chain.llm_chain.prompt.input_variables
            others = {key: value for key, value in inputs.items() if key != chain.input_key and key in wanted}
            text = self._joined(chain, inputs[chain.input_key])
        given = self._walk.own({**others, chain.document_variable_name: text})
        return self._walk.own({chain.output_key: self.run(chain.llm_chain, given)})

    def _joined(self, chain: Any, docs: Any) -> Any:
        texts = []
        for doc in docs if self._walk.known(docs) else (UNKNOWN,):
            if unknown(doc):
                return UNKNOWN
            if type(doc) is not Document or not computes(chain.document_prompt):
                raise Stop("formats documents in a way of its own")
            info = self._walk.own({"page_content": doc.page_content, **doc.metadata})
            texts.append(self._formatted(chain.document_prompt, info))
        return (
            UNKNOWN if any(map(unknown, texts)) else chain.document_separator.join(each.to_string() for each in texts)
        )

    def _mapped(self, chain: Any, inputs: Any) -> Any:
        """Finds the request for each document. How many read the answers depends on these: stock makes them."""
        _written_by(chain, "combine_documents.map_reduce.MapReduceDocumentsChain", *_COMBINE)
        if self._walk.whole(inputs):
            docs, key = inputs[chain.input_key], chain.input_key
            others = {name: value for name, value in inputs.items() if name not in (key, "token_max")}
            texts = [doc.page_content for doc in docs] if self._walk.known(docs) else [UNKNOWN]
            several = [self._walk.own({chain.document_variable_name: text, **others}) for text in texts]
            self._answers(chain.llm_chain, several)
        return UNKNOWN

    # --- chains that call others ------------------------------------------------------------------------------------

    def sequence(self, chain: Any, inputs: Any) -> Any:
        """Returns the outputs of a ``SequentialChain``."""
        if not self._walk.whole(inputs):
            raise Stop("calls a SequentialChain with something that is not known yet")
        known = dict(inputs)
        for each in chain.chains:
            outputs = self._outputs(each, self._inputs(each, self._walk.own(dict(known))))
            keys = attribute(self._walk, each, "output_keys", method=False)
            known.update(outputs if self._walk.whole(outputs) else dict.fromkeys(keys, UNKNOWN))
        return self._walk.own({key: known[key] for key in chain.output_variables})

    def simple_sequence(self, chain: Any, inputs: Any) -> Any:
        """Returns the output of a ``SimpleSequentialChain``."""
        value = inputs[chain.input_key] if self._walk.whole(inputs) else UNKNOWN
        for each in chain.chains:
            value = self.run(each, value)
            value = value.strip() if chain.strip_outputs and isinstance(value, str) else value
        return self._walk.own({chain.output_key: value})

    def question_answering(self, chain: Any, inputs: Any) -> Any:
        """Returns the outputs of a ``RetrievalQA``."""
        _written_by(chain, "retrieval_qa.base.RetrievalQA", "_aget_docs" if self._awaits else "_get_docs")
        question = inputs[chain.input_key] if self._walk.whole(inputs) else UNKNOWN
        docs = self._call(chain.retriever, self._name("invoke"), question)
        given = self._walk.own({"input_documents": docs, "question": question})
        made = {chain.output_key: self.run(chain.combine_documents_chain, given)}
        return self._walk.own(made | ({"source_documents": docs} if chain.return_source_documents else {}))


_COMBINE = ("combine_docs", "acombine_docs")
_OUTPUTS: dict[str, Callable[[_Chains, Any, Any], Any]] = {
    "llm.LLMChain": _Chains.llm,
    "sequential.SequentialChain": _Chains.sequence,
    "sequential.SimpleSequentialChain": _Chains.simple_sequence,
    "retrieval_qa.base.BaseRetrievalQA": _Chains.question_answering,
    "combine_documents.base.BaseCombineDocumentsChain": _Chains.combined,
}


def _of_user(chain: Any, name: str) -> MethodType:
    """Returns a method of the user's own. Raises Stop if it is no plain function."""
    func = own_function(vars(owner(type(chain), name))[name])
    if not isinstance(func, FunctionType):
        raise Stop(f"calls .{name}() of a {type(chain).__name__}")
    return MethodType(func, chain)


def _written_by(chain: Any, name: str, *methods: str) -> None:
    """Raises Stop unless a chain has these methods as a class of langchain-classic defines them."""
    module, _, kind = f"{_CHAINS}{name}".rpartition(".")
    base = if_imported(module, kind)
    if base is None or not unchanged(chain, base, methods):
        raise Stop(f"calls a {type(chain).__name__}, which has methods of its own")


SPECIAL.update({id(each): each for each in (_through_chain, _through_generate)})
