"""A hook of mkdocs: pages load nothing from other hosts, so that search works in pages that are opened as files."""

from __future__ import annotations

from typing import Any

from mkdocs.utils import get_relative_url

THERE = "https://unpkg.com/iframe-worker/shim"  # what the plugin "offline" of mkdocs-material loads (9.8.1)
HERE = "javascripts/iframe-worker.js"


def on_post_page(output: str, *, page: Any, config: Any) -> str:
    """Returns a page that loads our copy."""
    return output.replace(THERE, get_relative_url(HERE, page.url))
