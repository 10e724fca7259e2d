"""Attributes of spans: those of the GenAI semantic conventions where they have one, else ``fineflow.*``.

Names are those of opentelemetry-semantic-conventions 0.66b2, where they are marked as moved to a repository of their
own; they are written out here, so that the package is not needed. None of them holds content.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from fineflow.ir import Effect, Op
from fineflow.telemetry.finished import FinishedCall, FinishedPart, FinishedStep

Attributes = dict[str, str | int | float | bool]

OPERATION = "gen_ai.operation.name"
MODEL = "gen_ai.request.model"
PROVIDER = "gen_ai.provider.name"
WORKFLOW = "gen_ai.workflow.name"
ERROR = "error.type"

# Operations for which the conventions have a name.
_OPERATIONS = {
    Op.DECODE: "chat",
    Op.PARTIAL_DECODE: "chat",
    Op.EMBED: "embeddings",
    Op.SEARCH: "retrieval",
    Op.TOOL: "execute_tool",
}
_MODELS = frozenset({Op.DECODE, Op.PARTIAL_DECODE, Op.PARTIAL_PREFILL, Op.EMBED, Op.RERANK})
# The conventions' names of providers, by what the names of packages end with or contain.
_PROVIDERS = {
    "azure": "azure.ai.openai",
    "openai": "openai",
    "anthropic": "anthropic",
    "cohere": "cohere",
    "mistralai": "mistral_ai",
    "groq": "groq",
    "deepseek": "deepseek",
    "perplexity": "perplexity",
    "xai": "x_ai",
    "bedrock": "aws.bedrock",
    "aws": "aws.bedrock",
    "vertexai": "gcp.vertex_ai",
    "google_genai": "gcp.gemini",
    "gemini": "gcp.gemini",
    "ibm": "ibm.watsonx.ai",
}


def of_call(call: FinishedCall) -> tuple[str, Attributes]:
    """Returns the name and the attributes of the span of a call."""
    name = call.call.name
    found: Attributes = {
        OPERATION: "invoke_workflow",
        WORKFLOW: name,
        "fineflow.entry": call.call.entry,
        "fineflow.ahead": call.ahead,
        "fineflow.outcome": call.outcome,
    }
    if call.ahead:
        found |= {f"fineflow.claims.{what}": count for what, count in call.claims.items()}
        found["fineflow.saved_seconds"] = call.saved
    if call.outcome in ("failed", "overloaded") and call.call.error is not None:
        found[ERROR] = call.call.error.__qualname__
    return f"invoke_workflow {name}", found


def of_part(part: FinishedPart) -> tuple[str, Attributes]:
    """Returns the name and the attributes of the span of a call inside a call."""
    name = part.graph.name
    found: Attributes = {OPERATION: "invoke_workflow", WORKFLOW: name, "fineflow.entry": part.trace.entry}
    return f"invoke_workflow {name}", found


def of_step(step: FinishedStep) -> tuple[str, Attributes]:
    """Returns the name and the attributes of the span of a step."""
    p, op = step.primitive, step.op
    named = _OPERATIONS.get(op, "") if op is not None else ""
    component = None if p is None else p.component
    model = (_model(component) or step.engine) if op in _MODELS else ""
    found: Attributes = {
        "fineflow.step": step.name,
        "fineflow.queue_seconds": step.waited,
        "fineflow.run_seconds": step.ran,
    }
    if op is not None:
        found["fineflow.op"] = op.value
    if named:
        found[OPERATION] = named
    if model:
        found[MODEL] = model
    if op in _MODELS and (provider := _provider(component)):
        found[PROVIDER] = provider
    if op is Op.TOOL and isinstance(name := getattr(component, "name", None), str):
        found["gen_ai.tool.name"] = name
    if step.engine:
        found["fineflow.engine"] = step.engine
    if p is not None and p.depth >= 0:
        found["fineflow.depth"] = p.depth
    if step.result:
        found["fineflow.result"] = step.result
    if step.cancelled:
        found["fineflow.cancelled"] = True
    if step.error:
        found[ERROR] = step.error
    found |= _work(step)
    called = "" if p is None else str(p.meta.get("called") or "")
    return f"{named or op or 'work'} {model or step.engine or called or step.name}", found


def _work(step: FinishedStep) -> Attributes:
    """Returns what engines told of a step."""
    found: Attributes = {}
    batches = [each for each in step.work if each.batch >= 0 and each.tokens is None]
    if batches:
        found["fineflow.batch.size"] = max(each.together for each in batches)
        found["fineflow.batch.items"] = sum(each.items for each in batches)
        found["fineflow.batch.count"] = len(batches)
    if step.work and step.work[0].lane:
        found["fineflow.instance"] = step.work[0].lane
    if (tokens := step.tokens) is not None:
        found["gen_ai.usage.input_tokens"] = tokens.prompt
        found["gen_ai.usage.output_tokens"] = tokens.decoded
        found["gen_ai.usage.cache_read.input_tokens"] = tokens.cached
        for name, count in (("cache_creation.input", tokens.written), ("reasoning.output", tokens.reasoning)):
            if count:
                found[f"gen_ai.usage.{name}_tokens"] = count
    return found


def remote(step: FinishedStep) -> bool:
    """Returns True if the step is a request to something outside of the process."""
    return step.primitive is not None and step.primitive.effects.kind is Effect.EXTERNAL


def _model(component: Any) -> str:
    """Returns the name of the model that a component holds, "" if it does not say."""
    for name in ("model_name", "model", "model_id"):
        with suppress(Exception):  # may be a property of a class of the user's
            found = getattr(component, name, None)
            if isinstance(found, str) and found not in ("", "unknown"):  # the default of LlamaIndex's embeddings
                return found
    return ""


def _provider(component: Any) -> str:
    module = type(component).__module__.lower()
    return next((provider for part, provider in _PROVIDERS.items() if part in module), "")
