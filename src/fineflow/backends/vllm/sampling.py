"""Conversion of ``Sampling`` to vLLM's ``SamplingParams``, and of vLLM's outputs back."""

from __future__ import annotations

from typing import Any

from fineflow.errors import BackendError, RequestError
from fineflow.protocols import Sampling, TokenLogprob

# Fields of SamplingParams that are set from Sampling, or that this engine sets to read the output.
_TAKEN = {
    "n",
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "stop",
    "seed",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "min_tokens",
    "logprobs",
    "structured_outputs",
    "skip_special_tokens",
    "output_kind",
    "stream_interval",
    "detokenize",
    "flat_logprobs",
    "prompt_logprobs",
    "skip_clone",
    "output_text_buffer_length",
}


def params(sampling: Sampling, name: str, room: int) -> Any:
    """Returns vLLM's ``SamplingParams``. room: tokens that the context leaves for the output, 1 or more.

    Raises RequestError for settings that vLLM refuses. name: of the engine, for the message.
    """
    from vllm.exceptions import VLLMClientError
    from vllm.sampling_params import RequestOutputKind

    from vllm import SamplingParams

    possible = [field for field in SamplingParams.__struct_fields__ if field[0] != "_" and field not in _TAKEN]
    extra = dict(sampling.extra)
    if unknown := sorted(extra.keys() - possible):
        raise RequestError(
            f"LLM {name!r} knows no argument {', '.join(unknown)}; it takes the common ones, and those of vLLM's "
            f"SamplingParams: {', '.join(possible)}"
        )
    try:
        return SamplingParams(
            max_tokens=min(sampling.max_tokens, room),
            min_tokens=min(sampling.min_tokens, room),
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            seed=sampling.seed,
            stop=[stop for stop in sampling.stop if stop],
            presence_penalty=sampling.presence_penalty,
            frequency_penalty=sampling.frequency_penalty,
            repetition_penalty=sampling.repetition_penalty,
            logprobs=sampling.logprobs,
            structured_outputs=_form(sampling),
            skip_special_tokens=not sampling.special_tokens,
            output_kind=RequestOutputKind.DELTA,
            **extra,
        )
    except (TypeError, ValueError, VLLMClientError) as error:
        raise RequestError(f"LLM {name!r} refuses the request: {error}") from error


def _form(sampling: Sampling) -> Any:
    from vllm.sampling_params import StructuredOutputsParams

    if sampling.schema is not None:
        return StructuredOutputsParams(json=sampling.schema)
    if sampling.regex is not None:
        return StructuredOutputsParams(regex=sampling.regex)
    return StructuredOutputsParams(choice=list(sampling.choices)) if sampling.choices else None


def warming() -> Any:
    """Returns the ``SamplingParams`` of a request that only puts its prompt into the prefix cache."""
    from vllm.sampling_params import RequestOutputKind

    from vllm import SamplingParams

    return SamplingParams(max_tokens=1, temperature=0.0, detokenize=False, output_kind=RequestOutputKind.DELTA)


def finish_reason(completion: Any, name: str) -> str | None:
    """Returns the finish reason in the terms of ``Delta``. BackendError if vLLM aborted the request."""
    reason: str | None = completion.finish_reason
    if reason in ("abort", "error"):
        raise BackendError(f"LLM engine {name!r} aborted a request ({reason})")
    return reason if reason in (None, "length") else "stop"


def logprobs(completion: Any, most: int | None) -> tuple[TokenLogprob, ...]:
    """Returns the logprobs of each token of a piece, with ``most`` alternatives; nothing if ``most`` is None."""
    if most is None:
        return ()
    pairs = zip(completion.token_ids, completion.logprobs or (), strict=False)
    return tuple(_logprob(token, found, most) for token, found in pairs)


def _logprob(token: int, found: Any, most: int) -> TokenLogprob:
    ranked = sorted((each for each in found.values() if (each.rank or 0) <= most), key=lambda each: each.rank)
    own = found[token]
    top = tuple((each.decoded_token or "", each.logprob) for each in ranked)
    return TokenLogprob(own.decoded_token or "", own.logprob, top)
