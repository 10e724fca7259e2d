"""An LLM agent with tools (Ayo, Figure 2b): it looks up three things, then drafts a mail and answers.

LangChain's ``create_agent``: the model calls three searches at once, then a tool that drafts, then it answers.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

from langchain.agents import create_agent
from langchain_core.runnables import Runnable
from langchain_core.tools import StructuredTool

from benchmarks.apps.app import App, prose, question
from benchmarks.harness.limits import Path, count
from benchmarks.harness.world import World

SEARCHES, RESULT, MAIL, ANSWER = 3, 80, 40, 48
SYSTEM = "You are an assistant with tools. Look up what you need, draft the mail, then say what you have done."


def build(world: World) -> Runnable[Any, Any]:
    seconds = world.setting.web

    def found(query: str) -> str:
        return f"Found: {prose(query, RESULT)}"

    def look_up(query: str) -> str:
        """Looks something up on the web."""
        time.sleep(seconds)
        return found(query)

    async def alook_up(query: str) -> str:
        await asyncio.sleep(seconds)
        return found(query)

    def draft_mail(text: str) -> str:
        """Keeps a draft of a mail."""
        return f"Drafted: {len(text)} characters."

    async def adraft_mail(text: str) -> str:
        return draft_mail(text)

    tools = [
        StructuredTool.from_function(look_up, coroutine=alook_up),
        StructuredTool.from_function(draft_mail, coroutine=adraft_mail),
    ]
    model = world.llm.model_copy(update={"tool_format": "hermes"})
    return create_agent(model, tools, system_prompt=SYSTEM)


def calls(name: str, arguments: list[dict[str, str]]) -> str:
    asked = (json.dumps({"name": name, "arguments": each}) for each in arguments)
    return "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in asked)


def says(prompt: str) -> str:
    if "Drafted:" in prompt:
        return prose(prompt, ANSWER)
    if "Found:" in prompt:
        return calls("draft_mail", [{"text": prose(prompt, MAIL)}])
    return calls("look_up", [{"query": prose(f"{prompt} {i}", 10)} for i in range(SEARCHES)])


def limit(path: Path, x: dict[str, Any]) -> None:
    asked = count(x["messages"][0]["content"])
    first = calls("look_up", [{"query": prose(str(i), 10)} for i in range(SEARCHES)])
    second = calls("draft_mail", [{"text": prose("mail", MAIL)}])
    tools = 130  # tokens of the system message and of the tools
    known = (tools + asked, None)
    written = path.write(
        "calls of searches", [known], count(first), cached=tools, items=[count(first) // SEARCHES] * SEARCHES
    )
    found = [path.wait(f"search {i}", path.setting.web, item) for i, item in enumerate(written.items)]
    prompt = [known, (count(first), written), *((RESULT, each) for each in found)]
    mail = path.write("call of the mail", prompt, count(second), cached=tools)
    path.write("answer", [*prompt, (count(second), mail), (4, mail)], ANSWER, cached=tools)


def final(state: Any) -> str:
    return str(state["messages"][-1].content)


APP = App(
    "agent",
    "LLM agent with tools: three searches, a mail, an answer",
    build,
    build,
    lambda number, seed: {"messages": [{"role": "user", "content": question(number, seed)}]},
    says,
    limit,
    streams=False,
    answer=final,
)
