"""A search of the user's own that takes virtual seconds."""

from __future__ import annotations

import asyncio
from typing import Any

from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever

import fineflow


@fineflow.external
class Slow(BaseRetriever):
    """Finds the same passage, after some seconds."""

    seconds: float = 1.0

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        raise NotImplementedError

    async def _aget_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        await asyncio.sleep(self.seconds)
        return [Document("the wheel turns by water " * 20)]


def joined(found: list[Document]) -> str:
    return "\n".join(doc.page_content for doc in found)
