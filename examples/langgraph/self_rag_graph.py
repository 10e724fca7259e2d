"""Self-RAG: grade the documents, generate, then grade the answer against the documents and the question.

The documents are graded side by side. The two grades of the answer stay one after the other: the second one is asked
for only if the first says yes.
"""

from __future__ import annotations

from typing import Any

from graph_parts import GraphState, parts, says
from graph_services import Services, compare
from langgraph.graph import END, START, StateGraph

INPUT = {"question": "What is a planner of tasks?"}


def build(services: Services) -> Any:
    """Builds the graph with stock LangGraph."""
    retriever, retrieval_grader, hallucination_grader, answer_grader, rag_chain, question_rewriter = parts(services)

    def retrieve(state):
        return {"documents": retriever.invoke(state["question"]), "question": state["question"]}

    def generate(state):
        generation = rag_chain.invoke({"context": state["documents"], "question": state["question"]})
        return {"documents": state["documents"], "question": state["question"], "generation": generation}

    def grade_documents(state):
        question = state["question"]
        filtered_docs = []
        for d in state["documents"]:
            score = retrieval_grader.invoke({"question": question, "document": d.page_content})
            grade = score.binary_score
            if grade == "yes":
                filtered_docs.append(d)
            else:
                continue
        return {"documents": filtered_docs, "question": question}

    def transform_query(state):
        return {"documents": state["documents"], "question": question_rewriter.invoke({"question": state["question"]})}

    def decide_to_generate(state):
        return "generate" if state["documents"] else "transform_query"

    def grade_generation_v_documents_and_question(state):
        score = hallucination_grader.invoke({"documents": state["documents"], "generation": state["generation"]})
        if score.binary_score == "yes":
            score = answer_grader.invoke({"question": state["question"], "generation": state["generation"]})
            return "useful" if score.binary_score == "yes" else "not useful"
        return "not supported"

    workflow = StateGraph(GraphState)
    workflow.add_node("retrieve", retrieve)
    workflow.add_node("grade_documents", grade_documents)
    workflow.add_node("generate", generate)
    workflow.add_node("transform_query", transform_query)
    workflow.add_edge(START, "retrieve")
    workflow.add_edge("retrieve", "grade_documents")
    workflow.add_conditional_edges("grade_documents", decide_to_generate, ["transform_query", "generate"])
    workflow.add_edge("transform_query", "retrieve")
    workflow.add_conditional_edges(
        "generate",
        grade_generation_v_documents_and_question,
        {"not supported": "generate", "useful": END, "not useful": "transform_query"},
    )
    return workflow.compile()


if __name__ == "__main__":
    compare(build, says, INPUT)
