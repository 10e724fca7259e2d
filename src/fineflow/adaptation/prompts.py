"""Prompts of the configured pipelines, and what their answers say."""

from __future__ import annotations

import re

SUMMARY = """\
Summarize what the passage says about the question, in at most {words} words. If it says nothing about it, reply: \
unknown

Passage: {context}

Question: {question}

Summary:"""
"""Prompt that summarizes one chunk. Fields: question, context (the chunk), words."""

_NOTHING = re.compile(
    r"(unknown|none|nothing|n/a|not (mentioned|stated|given|found|specified|available|enough)"
    r"|no (answer|information|mention)|(i|we) (do not|don't|cannot|can't) (know|answer|say|find|determine)"
    r"|(the|this) (passage|context|document|text|given context|provided context) (does not|doesn't|do not))\b",
    re.IGNORECASE,
)


def says_nothing(text: str) -> bool:
    """Returns True for an answer that says that it knows none."""
    text = text.strip(" \n\t\"'.*-")
    return not text or _NOTHING.match(text) is not None


def words_of(tokens: int) -> int:
    """Returns the number of words that fit into so many tokens, in English text."""
    return max(tokens * 3 // 4, 1)
