"""Group of engine instances under one name, used like one engine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, cast

from fineflow.ir import Op
from fineflow.protocols import BatchEngine, Constrains, Delta, LLMEngine, Message, Releases, Sampling, salted
from fineflow.runtime.queues.batch_queue import batch_queue_of
from fineflow.runtime.queues.llm_queue import llm_queue_of
from fineflow.runtime.queues.placement import Instance, in_service
from fineflow.runtime.queues.prompts import Prompt

PATIENCE = 60.0  # seconds without an answer, above what its work may take, after which an instance may hang


class _Instances:
    """Base of both groups: the instances, and their loss and return to service."""

    def __init__(self, engines: Sequence[Any], name: str | None, patience: float | None) -> None:
        self.name: str = name or engines[0].name
        self.patience = patience
        self.instances = tuple(Instance(engine, f"{self.name}[{i}]") for i, engine in enumerate(engines))

    def __repr__(self) -> str:
        serving = f"{len(in_service(self.instances))} of {len(self.instances)} in service"
        return f"{type(self).__name__}({self.name!r}, {serving})"

    @property
    def lost(self) -> dict[str, Exception]:
        """Instances that are out of service, by name, with the BackendError that says what they raised."""
        return {instance.name: instance.lost for instance in self.instances if instance.lost is not None}

    def restore(self) -> None:
        """Puts all instances back into service, after their fault is repaired."""
        for instance in self.instances:
            instance.lost = None

    async def aclose(self) -> None:
        """Closes all instances. Raises the first error, after trying all."""
        errors = []
        for instance in self.instances:
            try:
                await instance.engine.aclose()
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]


class BatchInstances(_Instances):
    """``BatchEngine`` made of several: an idle instance takes the next batch from the common queue."""

    def __init__(
        self, engines: Sequence[BatchEngine], name: str | None = None, *, patience: float | None = PATIENCE
    ) -> None:
        super().__init__(engines, name, patience)
        self.ops = frozenset.intersection(*(engine.ops for engine in engines))
        self.max_batch = min(engine.max_batch for engine in engines)
        self.repeats = all(getattr(engine, "repeats", False) for engine in engines)
        if not self.ops:
            served = "; ".join(", ".join(sorted(engine.ops)) for engine in engines)
            raise ValueError(f"expected instances that serve the same operations, got engines that serve: {served}")

    async def execute(self, op: Op, items: Sequence[Any]) -> list[Any]:
        """Returns results in the order of ``items``, computed on any idle instances."""
        return await batch_queue_of(self).submit(op, items)


class LLMInstances(_Instances):
    """``LLMEngine`` made of several with one model: a request goes to the instance with room, or with its prefix."""

    def __init__(
        self,
        engines: Sequence[LLMEngine],
        name: str | None = None,
        *,
        affinity: bool = True,
        deduction: bool = True,
        patience: float | None = PATIENCE,
    ) -> None:
        super().__init__(engines, name, patience)
        self.affinity = affinity
        self.deduction = deduction
        sizes = sorted({engine.block_size for engine in engines})
        if len(sizes) > 1:
            raise ValueError(f"expected instances with one block_size, got {', '.join(map(str, sizes))}")
        self.block_size = sizes[0]
        self.can_prefill = all(engine.can_prefill for engine in engines)
        self.salts = any(getattr(engine, "salts", False) for engine in engines)

    def _any(self) -> LLMEngine:
        """Returns an instance in service; the first instance if none is."""
        return cast(LLMEngine, next(iter(in_service(self.instances)), self.instances[0]).engine)

    def render_chat(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> str:
        """Returns the prompt text of a conversation, by the model's chat template."""
        given = {"tools": tools} if tools else {}
        return self._any().render_chat(messages, add_generation_prompt=add_generation_prompt, **given)

    @property
    def constraints(self) -> frozenset[str]:
        """Forms of constrained output that all instances support."""
        engines = [instance.engine for instance in self.instances]
        return frozenset.intersection(*(e.constraints if isinstance(e, Constrains) else frozenset() for e in engines))

    def encode(self, text: str) -> list[int]:
        """Returns the token ids of a prompt text."""
        return self._any().encode(text)

    async def prefill(self, tokens: Sequence[int], *, priority: int = 0, salt: str = "") -> None:
        """Computes the KV cache of a prompt prefix on one instance; requests that begin with it go there."""
        await llm_queue_of(self).prefill(tokens)

    async def release(self, tokens: Sequence[int], *, salt: str = "") -> None:
        """Stops keeping a prefix, on every instance that keeps any."""
        for instance in in_service(self.instances):
            if isinstance(instance.engine, Releases):
                await instance.engine.release(tokens, **salted(instance.engine, salt))

    def generate(
        self, tokens: Sequence[int], sampling: Sampling, *, priority: int = 0, salt: str = ""
    ) -> AsyncIterator[Delta]:
        """Decodes on one instance; see ``LLMQueue.generate``, which also sets the priority and the salt."""
        return llm_queue_of(self).generate(tokens, sampling)

    def cached(self, tokens: Sequence[int], *, salt: str = "") -> int:
        """Returns the number of leading tokens of a prompt in the KV cache of the instance with most of them."""
        prompt = Prompt(tokens, self.block_size, shared=False, salt=salt)
        return max((prompt.cached_in(instance.engine) for instance in in_service(self.instances)), default=0)


def instances(
    engines: Iterable[Any],
    *,
    name: str | None = None,
    affinity: bool = True,
    deduction: bool = True,
    patience: float | None = PATIENCE,
) -> Any:
    """Combines engines into one, for ``EngineEmbeddings``, ``EngineReranker``, ``ChatEngine``, ``EngineLLM``.

    engines: distinct objects that serve the same model: all ``BatchEngine`` or all ``LLMEngine``, each in one group
    only and used only through it. name: in plans and timelines; default that of the first. affinity: False sends a
    request to an ``LLMEngine`` by load alone, wherever the prefix of its prompt is. deduction: False treats all
    requests to it alike, each as one that somebody waits for: no task groups, and objectives count for nothing. Both
    are for measuring what the other way is worth.

    An instance that raises BackendError (other than RequestError, which concerns one request) is taken out of service;
    its requests move to another instance, once. So is one that raises anything else, if another instance serves the
    same request, and one that hangs. Half a minute later one request tries it again; each time that this fails, the
    next try is twice as far away, up to eight minutes. If none is left, calls raise BackendError.

    patience: seconds. An instance hangs if it gives no piece of an answer for so long, and for ten times what its work
    is known to take, while another one answers. Its requests are cancelled there. None: this is not looked for.

    Raises ValueError if the engines are of different kinds, not distinct, or none are given, and for a patience of 0.
    """
    if patience is not None and not patience > 0:
        raise ValueError(f"patience is a number of seconds above 0, or None; got {patience!r}")
    found = list(engines)
    if not found or len({id(engine) for engine in found}) < len(found):
        raise ValueError(f"expected one or more distinct engine objects; got {found!r}")
    if all(isinstance(engine, BatchEngine) for engine in found):
        return BatchInstances(found, name, patience=patience)
    if all(isinstance(engine, LLMEngine) for engine in found):
        return LLMInstances(found, name, affinity=affinity, deduction=deduction, patience=patience)
    kinds = ", ".join(type(engine).__name__ for engine in found)
    raise ValueError(f"expected engines that are all a BatchEngine or all an LLMEngine, got: {kinds}")
