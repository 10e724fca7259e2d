"""One text, several questions about it: a service class calls one chain after the other.

The calls need nothing from each other and run concurrently.
"""

from __future__ import annotations

import json
import logging
from typing import Any

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda
from services import compare
from texts import PASSAGES

TEXTS: list[str] = []
INPUT = " ".join(PASSAGES)
logger = logging.getLogger(__name__)


def says(prompt: str) -> str:
    """Returns the scripted answer to a prompt."""
    if "keywords" in prompt:
        return '["agent", "task", "memory"]'
    return f"{prompt.split()[0]}: {len(prompt)} characters."


class ArticleAnalyzer:
    """Summary, keywords, sentiment and a title of an article."""

    def __init__(self, llm: Any) -> None:
        self.llm = llm
        self.summary_chain = self._chain("Summarize in two sentences: {article}")
        self.keyword_chain = self._chain("List the keywords as JSON: {article}")
        self.sentiment_chain = self._chain("Classify the sentiment: {article}")
        self.title_chain = self._chain("Title for this summary: {summary}")

    def _chain(self, template: str) -> Runnable[Any, str]:
        return ChatPromptTemplate.from_template(template) | self.llm | StrOutputParser()

    def analyze(self, article: str) -> dict[str, Any]:
        """Returns all that is known about an article."""
        logger.info("analyzing %d characters", len(article))
        summary = self.summary_chain.invoke({"article": article})
        raw = self.keyword_chain.invoke({"article": article})
        try:
            keywords = json.loads(raw)
        except json.JSONDecodeError:
            logger.warning("no JSON: %s", raw)
            keywords = []
        sentiment = self.sentiment_chain.invoke({"article": article}).strip().lower()
        title = self.title_chain.invoke({"summary": summary})
        return {"title": title, "summary": summary, "keywords": keywords, "sentiment": sentiment}


def build(llm: Any, vectorstore: Any) -> Runnable[Any, Any]:
    """Builds the app with stock LangChain."""
    return RunnableLambda(ArticleAnalyzer(llm).analyze)


if __name__ == "__main__":
    compare(build, says, TEXTS, INPUT)
