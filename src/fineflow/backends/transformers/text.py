"""Tokenizer and chat template of a model."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from transformers import AutoTokenizer

from fineflow.backends.transformers.grammars import tokenizer_of
from fineflow.backends.transformers.loading import loading
from fineflow.errors import RequestError
from fineflow.protocols import Message


class Text:
    """Converts conversations and text to tokens, and tokens to text. Thread-safe.

    model_id: model whose tokenizer is loaded on first use, without the model itself.
    """

    def __init__(self, model_id: str) -> None:
        self._model_id = model_id
        self._lock = threading.RLock()  # fast tokenizers raise if two threads use them at once
        self._tokenizer: Any = None

    @property
    def tokenizer(self) -> Any:
        """Tokenizer of the model. BackendError if it cannot be loaded."""
        if self._tokenizer is None:
            with self._lock, loading(self._model_id):
                if self._tokenizer is None:
                    self._tokenizer = AutoTokenizer.from_pretrained(self._model_id)
        return self._tokenizer

    def render(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool
    ) -> str:
        """See ``LLMEngine.render_chat``."""
        tokenizer = self.tokenizer
        if not getattr(tokenizer, "chat_template", None):
            raise RequestError(f"LLM {self._model_id!r} has no chat template; use it for plain completions")
        try:
            text: str = tokenizer.apply_chat_template(
                [message.as_dict() for message in messages],
                tools=list(tools) or None,
                add_generation_prompt=add_generation_prompt,
                tokenize=False,
            )
        except Exception as error:  # templates may raise anything
            raise RequestError(f"the chat template of LLM {self._model_id!r} refuses the messages: {error}") from error
        return text

    def encode(self, text: str) -> list[int]:
        """Returns the tokens of a text, without adding special ones."""
        tokenizer = self.tokenizer
        with self._lock:
            found: list[int] = tokenizer(text, add_special_tokens=False).input_ids
        return found

    def decode(self, tokens: list[int]) -> str:
        """Returns the text of tokens, without special ones."""
        text: str = self.tokenizer.decode(tokens, skip_special_tokens=True)
        return text

    def decode_all(self, tokens: list[int], eos: Collection[int] = ()) -> str:
        """Returns the text of tokens, special ones included except those of ``eos``."""
        text: str = self.tokenizer.decode([token for token in tokens if token not in eos])
        return text

    def of_grammars(self, vocabulary: int, eos: Sequence[int]) -> Any:
        """Returns llguidance's tokenizer for the model. vocabulary: number of the model's scores."""
        with self._lock:
            return tokenizer_of(self.tokenizer, vocabulary, list(eos))
