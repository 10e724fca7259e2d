"""Step-back prompting: a more general question is searched besides the question itself.

Stock's parallel step already overlaps the two searches; only one of them is on the critical path.
"""

from __future__ import annotations

from typing import Any

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, FewShotChatMessagePromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda
from services import compare
from texts import PASSAGES as TEXTS

INPUT = {"question": "Which steps does a planner write?"}
EXAMPLES = [
    {"input": "Could the members of The Police perform lawful arrests?", "output": "what can the members do?"},
    {"input": "Jan Sindel was born in what country?", "output": "what is Jan Sindel's personal history?"},
]


def says(prompt: str) -> str:
    """Returns the scripted answer to a prompt."""
    if "step back" in prompt:
        return "what does a planner do?"
    return f"The steps of a task ({len(prompt)} characters read)."


def build(llm: Any, vectorstore: Any) -> Runnable[Any, Any]:
    """Builds the app with stock LangChain."""
    retriever = vectorstore.as_retriever(search_kwargs={"k": 2})
    example_prompt = ChatPromptTemplate.from_messages([("human", "{input}"), ("ai", "{output}")])
    few_shot_prompt = FewShotChatMessagePromptTemplate(example_prompt=example_prompt, examples=EXAMPLES)
    prompt = ChatPromptTemplate.from_messages(
        [
            ("system", "Your task is to step back and paraphrase a question to a more generic one. Here are examples:"),
            few_shot_prompt,
            ("user", "{question}"),
        ]
    )
    generate_queries_step_back = prompt | llm | StrOutputParser()
    response_prompt = ChatPromptTemplate.from_template(
        "Answer the question.\n{normal_context}\n{step_back_context}\nOriginal Question: {question}\nAnswer:"
    )
    return (
        {
            "normal_context": RunnableLambda(lambda x: x["question"]) | retriever,
            "step_back_context": generate_queries_step_back | retriever,
            "question": lambda x: x["question"],
        }
        | response_prompt
        | llm
        | StrOutputParser()
    )


if __name__ == "__main__":
    compare(build, says, TEXTS, INPUT)
