"""Plan-and-execute: a planner writes steps, an agent executes the first one, and the plan is made again.

Each call needs the one before: there is nothing to gain inside the nodes.
"""

from __future__ import annotations

import operator
from typing import Annotated, Any

from graph_services import Said, Services, compare
from langchain.agents import create_agent
from langchain_core.prompts import ChatPromptTemplate
from langgraph.graph import END, START, StateGraph
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

INPUT = {"input": "Who wrote the first planner?"}


class Plan(BaseModel):
    """Plan to follow in future; with no steps left, the answer."""

    steps: list[str] = Field(description="different steps to follow, in sorted order")
    response: str = Field(default="", description="the answer, if no step is left")


class PlanExecute(TypedDict):
    input: str
    plan: list[str]
    past_steps: Annotated[list[tuple[str, str]], operator.add]
    response: str


def says(prompt: str) -> Said:
    """Returns the scripted answer to a prompt."""
    if "objective" in prompt:
        done = prompt.count("found:")
        steps = ["search for planners", "find the first one"][done:]
        return Plan(steps=steps, response="" if steps else "It was STRIPS.").model_dump_json()
    return [("web_search", {"query": "planners"})] if "What the web" not in prompt else "found: STRIPS"


def build(services: Services) -> Any:
    """Builds the graph with stock LangGraph."""
    agent_executor = create_agent(services.chat(1.0), [services.web_search(0.9)])
    prompt = ChatPromptTemplate.from_template("For the objective {objective} write a plan. Done so far: {past}")
    planner = prompt | services.chat(2.0).with_structured_output(Plan)

    async def execute_step(state: PlanExecute):
        task = state["plan"][0]
        response = await agent_executor.ainvoke({"messages": [("user", f"Execute step: {task}.")]})
        return {"past_steps": [(task, response["messages"][-1].content)]}

    async def plan_step(state: PlanExecute):
        plan = await planner.ainvoke({"objective": state["input"], "past": ""})
        return {"plan": plan.steps}

    async def replan_step(state: PlanExecute):
        plan = await planner.ainvoke({"objective": state["input"], "past": state["past_steps"]})
        return {"plan": plan.steps, "response": plan.response}

    def should_end(state: PlanExecute):
        return END if state.get("response") else "agent"

    workflow = StateGraph(PlanExecute)
    workflow.add_node("planner", plan_step)
    workflow.add_node("agent", execute_step)
    workflow.add_node("replan", replan_step)
    workflow.add_edge(START, "planner")
    workflow.add_edge("planner", "agent")
    workflow.add_edge("agent", "replan")
    workflow.add_conditional_edges("replan", should_end, ["agent", END])
    return workflow.compile()


if __name__ == "__main__":
    compare(build, says, INPUT, entries=("astream",))  # its nodes are coroutines
