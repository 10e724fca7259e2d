"""What each split of a prompt gains once its instructions are cached: emulated Llama-2-7B engines, virtual seconds.

Each app is ordinary LangChain code, asked three questions one after the other; the last one counts, so its instructions
are in the prefix cache and are not sent again. With all passes, and without ``prefill``.

judge and core: a small model writes a draft and judges it, a search follows, and the core model answers from all of
that; its prompt begins with the question and the draft. two searches: the question as it is in a store, and rewritten
by the small model on the web; what is found first comes first in the prompt. refine: an answer from one passage,
refined by two more, each before the answer so far. history: the question is rewritten from a conversation, searched,
and answered with the conversation. summaries: a model summarizes each of some long parts, and the core model the
summaries in their order; by the small model, or by the core model itself. graded: the small model grades long
documents, and the core model answers from the good ones, in their order.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePassthrough, RunnablePick

import fineflow
from benchmarks.report import arguments, finish, hardware, table
from fineflow.cost_model.costs import costs
from fineflow.engines import EmulatedLLM
from fineflow.langchain import ChatEngine
from fineflow.passes import PASSES, prefill
from fineflow.testing import virtual
from fineflow.testing.langchain import FakeVectorStore

RULES = "\n".join(f"Rule {i}: reply with the name of the place and its age." for i in range(40))
DRAFT, ANSWER, PASSAGE, TURNS = 200, 48, 300, 600  # tokens
NEAR, FAR = 0.03, 0.25  # seconds of a search in a store of one's own, and on the web
LENGTHS = {"Draft": DRAFT, "Judge": 1, "Rewrite": 20}
PARTS, PART, SHORTEST, LONGEST = 20, 800, 50, 250  # parts of a text, tokens of each, and of their summaries
DOCUMENTS, DOCUMENT = 10, 1000  # documents that are graded, and tokens of each


def words(count: int, name: str) -> str:
    return " ".join(f"{name}{i}" for i in range(count))


def say(prompt: str) -> str:
    """Answers with as many words as the task at the end of a prompt asks for."""
    task, own = prompt.rsplit("TASK ", 1)[1].split()[0], sum(map(ord, prompt))
    if task == "Grade":
        return "no" if own % 3 == 0 else "yes"
    if task == "Summarize":
        return words(SHORTEST + own % (LONGEST - SHORTEST), f"s{own}x")
    return words(LENGTHS.get(task, ANSWER), f"w{len(prompt) % 89}x")


class World:
    """Engines and stores of one app, new for every measurement."""

    def __init__(self) -> None:
        self.stores = 0
        self.core, self.small = (ChatEngine(engine=EmulatedLLM(say, name=name)) for name in ("core", "small"))

    def ask(self, text: str, *, small: bool = False) -> Runnable[Any, str]:
        prompt = ChatPromptTemplate.from_messages([("system", RULES), ("human", text)])
        return prompt | (self.small if small else self.core) | StrOutputParser()

    def found(self, seconds: float, count: int = 1) -> Runnable[Any, str]:
        """Returns a search for some passages, in a store of its own."""
        self.stores += 1
        store = FakeVectorStore(latency=seconds)
        store.add_texts([words(PASSAGE, f"s{self.stores}n{i}x") for i in range(4)])
        return RunnablePick("question") | store.as_retriever(search_kwargs={"k": count}) | text_of


def text_of(docs: list[Document]) -> str:
    return "\n".join(doc.page_content for doc in docs)


def judge_and_core(world: World) -> Runnable[Any, Any]:
    known = "Question: {question} Draft: {draft} "
    return (
        RunnablePassthrough.assign(draft=world.ask("Question: {question} TASK Draft", small=True))
        | RunnablePassthrough.assign(judged=world.ask(known + "TASK Judge", small=True))
        | RunnablePassthrough.assign(context=world.found(FAR))
        | world.ask(known + "Judged: {judged} Results: {context} TASK Answer")
    )


def two_searches(world: World) -> Runnable[Any, Any]:
    web = RunnablePassthrough.assign(question=world.ask("Question: {question} TASK Rewrite", small=True))
    return RunnablePassthrough.assign(near=world.found(NEAR, 2), far=web | world.found(FAR)) | world.ask(
        "Question: {question} Passages: {near} From the web: {far} TASK Answer"
    )


def refine(world: World) -> Runnable[Any, Any]:
    better = "Question: {question} Passage: {%s} Answer so far: {answer} TASK Refine"
    return (
        RunnablePassthrough.assign(one=world.found(NEAR), two=world.found(NEAR), three=world.found(NEAR))
        | RunnablePassthrough.assign(answer=world.ask("Question: {question} Passage: {one} TASK Answer"))
        | RunnablePassthrough.assign(answer=world.ask(better % "two"))
        | world.ask(better % "three")
    )


def history(world: World) -> Runnable[Any, Any]:
    talk = "Conversation: {talk} "
    search = RunnablePassthrough.assign(question=world.ask(talk + "{question} TASK Rewrite"))
    return RunnablePassthrough.assign(context=search | world.found(NEAR)) | world.ask(
        "You answer. " + talk + "{question} {context} TASK Answer"
    )


def texts(x: dict[str, Any]) -> list[dict[str, str]]:
    return [{"text": text} for text in x["texts"]]


def summaries(world: World, *, small: bool = True) -> Runnable[Any, Any]:
    each = world.ask("Text: {text} TASK Summarize", small=small)
    return {"context": RunnableLambda(texts) | each.map() | "\n\n".join} | world.ask("Summaries: {context} TASK Answer")


def summaries_by_core(world: World) -> Runnable[Any, Any]:
    return summaries(world, small=False)


def good(x: dict[str, Any]) -> str:
    return "\n\n".join(text for text, grade in zip(x["texts"], x["grades"], strict=True) if grade == "yes")


def graded(world: World) -> Runnable[Any, Any]:
    return (
        RunnablePassthrough.assign(
            grades=RunnableLambda(texts) | world.ask("Text: {text} TASK Grade", small=True).map()
        )
        | RunnablePassthrough.assign(context=good)
        | world.ask("Documents: {context} Question: {question} TASK Answer")
    )


APPS: dict[str, Callable[[World], Runnable[Any, Any]]] = {
    "judge and core": judge_and_core,
    "two searches": two_searches,
    "refine": refine,
    "history": history,
    "summaries": summaries,
    "summaries by core": summaries_by_core,
    "graded": graded,
}

PAYING = (
    "judge and core",
    "two searches",
    "summaries",
    "graded",
)  # they wait for another engine; the others for texts of their own


def given(name: str, number: int) -> dict[str, Any]:
    """Returns the input of a question."""
    count, length = (DOCUMENTS, DOCUMENT) if name == "graded" else (PARTS, PART)
    many = {"texts": [words(length, f"t{number}p{i}x") for i in range(count)]}
    talk = {"question": f"where {number}", "talk": words(TURNS, f"t{number}x")}
    return talk | (many if name in ("graded", "summaries", "summaries by core") else {})


def seconds(name: str, passes: Any) -> tuple[Any, float]:
    """Returns the answer to the third question, and its seconds; stock if ``passes`` is None."""
    costs.forget()
    chain = APPS[name](World())
    if passes is not None:
        chain = fineflow.optimize(chain, passes=passes, strict=True)

    async def main() -> tuple[Any, float]:
        for number in range(3):
            begun = asyncio.get_running_loop().time()
            answer = await chain.ainvoke(given(name, number))
        return answer, asyncio.get_running_loop().time() - begun

    return virtual.run(main()).value


def main(argv: list[str] | None = None) -> int:
    options = arguments(__doc__ or "", runs=1).parse_args(argv)
    print(f"Splits of prompts: emulated engines, virtual seconds of ainvoke.\n{hardware()}\n")
    rows = [("app", "stock", "all passes", "without prefill", "gain of the split")]
    figures, checks = {}, {}
    for name in APPS:
        sides = {"stock": None, "all": PASSES, "without": tuple(each for each in PASSES if each is not prefill)}
        found = {side: seconds(name, passes) for side, passes in sides.items()}
        took = figures[name] = {side: each[1] for side, each in found.items()}
        rows.append((name, *(f"{took[side]:.3f}" for side in took), f"{took['without'] / took['all']:.3f}"))
        checks[f"{name}: the answer is that of stock"] = len({each[0] for each in found.values()}) == 1
        checks[f"{name}: not slower than stock"] = took["all"] <= 1.02 * took["stock"]
        if name in PAYING:
            checks[f"{name}: the split pays"] = took["all"] < took["without"]
    print(table(rows), end="\n\n")
    return finish({"seconds": figures}, checks, options.json)


if __name__ == "__main__":
    sys.exit(main())
