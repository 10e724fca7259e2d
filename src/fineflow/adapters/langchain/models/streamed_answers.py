"""Models of providers that are asked for a stream where stock asks for the whole answer (``stream_answers``).

Stock's ``invoke`` makes one request and gets the answer at once. With the option the same request asks for a stream,
and the answer is the sum of its chunks, made as LangChain makes it in ``invoke`` with ``streaming=True``. No tokens
are reported to handlers. Content and calls of tools are the same; ids and metadata may differ (docs/langchain.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.language_models.chat_models import generate_from_stream
from langchain_core.outputs import ChatResult

from fineflow.adapters.core.trust import owner, put_on

_METHODS = ("_generate", "_agenerate", "_stream", "_astream")
# Packages of LangChain's own whose models stream what they generate.
_PACKAGES = frozenset(
    [
        *("langchain_openai", "langchain_anthropic", "langchain_google_genai", "langchain_google_vertexai"),
        *("langchain_aws", "langchain_groq", "langchain_mistralai", "langchain_deepseek", "langchain_xai"),
    ]
)


def sums_up(model: Any) -> bool:
    """Returns True for a provider's chat model as its package defines it, unless streaming is turned off."""
    if not isinstance(model, BaseChatModel) or put_on(model, _METHODS):
        return False
    modules = [owner(type(model), name).__module__.partition(".")[0] for name in _METHODS]
    return len(set(modules)) == 1 and modules[0] in _PACKAGES and model.disable_streaming is False


def summed(pieces: Sequence[Any]) -> ChatResult:
    """Returns the answer that the chunks of a stream (``ChatGenerationChunk``) make. Raises ValueError for none."""
    return generate_from_stream(iter(pieces))
