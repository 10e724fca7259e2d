"""Grammars for constrained output, compiled by llguidance if it is installed."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from fineflow.errors import RequestError
from fineflow.protocols import Sampling

# JSON as ``json.dumps`` writes it: with flexible white space, small models write it without end.
_WRITTEN = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
CONSTRAINTS = frozenset({"schema", "regex", "choices"})


def available() -> bool:
    """Returns True if llguidance is installed."""
    return find_spec("llguidance") is not None


class Grammars:
    """Compiles the forms of one model's requests. tokenizer: makes llguidance's tokenizer; takes about 1 s, once."""

    def __init__(self, tokenizer: Callable[[], Any]) -> None:
        self._make = tokenizer
        self._tokenizer: Any = None
        self._lock = threading.Lock()

    def matcher(self, sampling: Sampling) -> Any:
        """Returns an ``LLMatcher`` for the form of the sampling. RequestError for a form that cannot be followed."""
        from llguidance import LLMatcher

        with self._lock:
            if self._tokenizer is None:
                self._tokenizer = self._make()
        name = next(name for name in ("schema", "regex", "choices") if getattr(sampling, name))
        try:
            matcher = LLMatcher(self._tokenizer, _grammar(sampling, LLMatcher), log_level=0)
            if wrong := matcher.get_error():
                raise ValueError(wrong)
        except ValueError as error:
            raise RequestError(f"{name}={getattr(sampling, name)!r} cannot be followed: {error}") from error
        return matcher


def _grammar(sampling: Sampling, kind: Any) -> Any:
    if sampling.schema:
        return kind.grammar_from_json_schema(sampling.schema, defaults=_WRITTEN)
    if sampling.regex:
        return kind.grammar_from_regex(sampling.regex)
    texts = " | ".join(json.dumps(choice, ensure_ascii=False) for choice in sampling.choices)
    return kind.grammar_from_lark(f"start: {texts}")


def tokenizer_of(tokenizer: Any, vocabulary: int, eos: list[int]) -> Any:
    """Returns llguidance's tokenizer for a model. vocabulary: number of the model's scores."""
    import llguidance.hf

    return llguidance.hf.from_tokenizer(tokenizer, n_vocab=vocabulary, eos_token=eos or None)
