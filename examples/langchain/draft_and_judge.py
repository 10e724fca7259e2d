"""Search answering with drafts and a judge: each source gets a draft, a judge scores each draft, the best one is kept.

Searches run concurrently, then drafts, then scores; stock takes one after the other.
"""

from __future__ import annotations

import re
from typing import Any

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, chain
from services import compare
from texts import PASSAGES as TEXTS

INPUT = {"question": "How do agents use memory and tools?", "topics": ["memory", "tools", "planner"]}


def says(prompt: str) -> str:
    """Returns the scripted answer to a prompt."""
    if "Rate" in prompt:
        return f"Score: {len(prompt) % 10}/10"
    return f"They call them ({len(prompt)} characters read)."


def build(llm: Any, vectorstore: Any) -> Runnable[Any, Any]:
    """Builds the app with stock LangChain."""
    draft_chain = (
        ChatPromptTemplate.from_template("Draft an answer to {question} from\n{notes}") | llm | StrOutputParser()
    )
    judge_chain = ChatPromptTemplate.from_template("Rate this answer to {question}: {draft}") | llm | StrOutputParser()

    def parse_score(text: str) -> int:
        match = re.search(r"(\d+)/10", text)
        return int(match.group(1)) if match else 0

    @chain
    def answer(inputs: dict[str, Any]) -> dict[str, Any]:
        question = inputs["question"]
        drafts = []
        for topic in inputs["topics"]:
            docs = vectorstore.similarity_search(f"{topic} {question}", k=2)
            notes = "\n".join(f"- {doc.page_content}" for doc in docs)
            drafts.append(draft_chain.invoke({"question": question, "notes": notes}))
        scores = [parse_score(judge_chain.invoke({"question": question, "draft": draft})) for draft in drafts]
        best = max(range(len(drafts)), key=lambda i: scores[i])
        return {"answer": drafts[best], "score": scores[best]}

    return answer


if __name__ == "__main__":
    compare(build, says, TEXTS, INPUT)
