"""Exit statuses, and what all subcommands do first."""

from __future__ import annotations

import logging
import os

FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130


def quieten() -> None:
    """Silences library logs; we report errors once ourselves."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    for name in ("sentence_transformers", "ContinuousBatchingLogger"):
        logging.getLogger(name).setLevel(logging.ERROR)
