"""Search engine-empowered generation (Ayo, Figure 2a): a draft, a judgement of it, a web search, the answer.

A small LLM writes a heuristic answer and judges whether a search is needed. It is, and the top 4 results go to the core
LLM with the question.
"""

from __future__ import annotations

from typing import Any

from langchain_core.runnables import Runnable, RunnableBranch, RunnableLambda, RunnablePassthrough, RunnablePick

from benchmarks.apps.app import INSTRUCTIONS, App, prose, question, scripted
from benchmarks.harness.limits import Path, count
from benchmarks.harness.world import JOINED, World, joined

RESULTS, DRAFT, ANSWER = 4, 32, 64
DRAFTING = "Draft an answer, from what you know. Question: {question}"
JUDGING = "Judge whether the draft needs a search, yes or no. Question: {question} Draft: {draft}"
ANSWERING = "Answer the question. Question: {question} Results of a search: {context}"
PASSAGES = [f"Result {i}: {prose(f'web {i}', 150)}." for i in range(24)]


def build(world: World) -> Runnable[Any, Any]:
    question: Any = RunnablePick("question")
    searched = question | world.web(RESULTS) | JOINED
    return (
        RunnablePassthrough.assign(draft=world.ask(DRAFTING, system=INSTRUCTIONS, small=True))
        | RunnablePassthrough.assign(judged=world.ask(JUDGING, system=INSTRUCTIONS, small=True))
        | RunnablePassthrough.assign(context=RunnableBranch((needs_search, searched), RunnableLambda(nothing)))
        | world.ask(ANSWERING, system=INSTRUCTIONS)
    )


def tuned(world: World) -> Runnable[Any, Any]:
    """Each step needs the one before; nothing is left to a writer of asyncio code."""
    draft = world.ask(DRAFTING, system=INSTRUCTIONS, small=True)
    judge = world.ask(JUDGING, system=INSTRUCTIONS, small=True)
    web, answer = world.web(RESULTS), world.ask(ANSWERING, system=INSTRUCTIONS)

    async def run(x: dict[str, Any]) -> str:
        x = {**x, "draft": await draft.ainvoke(x)}
        x["judged"] = await judge.ainvoke(x)
        x["context"] = joined(await web.ainvoke(x["question"])) if needs_search(x) else ""
        return await answer.ainvoke(x)

    return RunnableLambda(run)


def needs_search(x: dict[str, Any]) -> bool:
    return "yes" in x["judged"]


def nothing(x: dict[str, Any]) -> str:
    return ""


def limit(path: Path, x: dict[str, Any]) -> None:
    asked, system = count(x["question"]), count(INSTRUCTIONS) + 4
    draft = path.write("draft", [(system + asked + 10, None)], DRAFT, cached=system, on="small")
    prompt = [(system + asked + 15, None), (DRAFT, draft)]
    judged = path.write("judgement", prompt, 1, cached=system, on="small")
    found = path.wait("web search", path.setting.web, judged)
    results = RESULTS * count(PASSAGES[0])
    path.write("answer", [(system + asked + 9, None), (results, found)], ANSWER, cached=system)


APP = App(
    "search_generation",
    "search engine-empowered generation: draft, judgement, web search, answer",
    build,
    tuned,
    lambda number, seed: {"question": question(number, seed)},
    scripted({"Draft an": DRAFT, "Judge": "yes", "Answer the": ANSWER}),
    limit,
    passages=PASSAGES,
)
