"""Prompts for a model on vLLM: chat template and tokenizer, which need no running vLLM."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from fineflow.backends.vllm.startup import check_process, environment
from fineflow.errors import BackendError, RequestError
from fineflow.protocols import Message


class Prompts:
    """Tokenizer of a model, loaded as vLLM does. options: vLLM's own, some of which concern the tokenizer."""

    def __init__(self, model: str, options: Mapping[str, Any]) -> None:
        self.model = model
        self._options = options
        self._tokenizing = threading.RLock()  # fast tokenizers raise if two threads use them at once
        self._tokenizer: Any = None

    def forget_locks(self) -> None:
        """Replaces the locks in a forked child, where their holders do not exist."""
        self._tokenizing = threading.RLock()

    def render_chat(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> str:
        conversation = [message.as_dict() for message in messages]
        try:
            text: str = self.tokenizer.apply_chat_template(
                conversation,
                tools=list(tools) or None,
                add_generation_prompt=add_generation_prompt,
                tokenize=False,
            )
        except BackendError:
            raise
        except Exception as error:  # templates may raise anything
            if not getattr(self.tokenizer, "chat_template", True):
                raise RequestError(f"LLM {self.model!r} has no chat template; use it for plain completions") from error
            raise RequestError(f"the chat template of LLM {self.model!r} refuses the messages: {error}") from error
        return text

    def encode(self, text: str) -> list[int]:
        tokenizer = self.tokenizer
        with self._tokenizing:
            found: list[int] = tokenizer.encode(text, add_special_tokens=False)
        return found

    @property
    def tokenizer(self) -> Any:
        """Tokenizer, loaded on first use, without starting vLLM."""
        if self._tokenizer is None:
            with self._tokenizing:
                if self._tokenizer is None:
                    self._tokenizer = self._load_tokenizer()
        return self._tokenizer

    def _load_tokenizer(self) -> Any:
        given = self._options
        check_process()
        try:
            with environment():
                from vllm.tokenizers import get_tokenizer

                return get_tokenizer(
                    given.get("tokenizer") or self.model,
                    tokenizer_mode=given.get("tokenizer_mode", "auto"),
                    trust_remote_code=given.get("trust_remote_code", False),
                    revision=given.get("tokenizer_revision") or given.get("revision"),
                    download_dir=given.get("download_dir"),
                )
        except Exception as error:  # from vLLM, transformers, tokenizers or the hub
            raise BackendError(f"the tokenizer of LLM {self.model!r} could not be loaded: {error}") from error
