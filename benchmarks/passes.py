"""Gain of each pass and policy: alone, and of all without it, on emulated engines in virtual time.

For each pass there is a pipeline shape that profits from it. Then come the applications of ``benchmarks run``, one
request at a time and under load, and random pipelines (``benchmarks.ablation``; left out with ``--shapes``). What gains
nowhere has no place in the library.

The engines follow latency profiles (an LLM with continuous batching and a prefix cache, a batching embedding model and
a batching reranker; for the sources of the figures see ``fineflow.backends.emulated``), and the clock is virtual: the
seconds are exact, the same on every machine, and take no real time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_classic.retrievers import ContextualCompressionRetriever, MultiQueryRetriever
from langchain_core.documents import Document
from langchain_core.output_parsers import CommaSeparatedListOutputParser, StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePassthrough, RunnablePick

import fineflow
from benchmarks.report import arguments, finish, hardware, table
from fineflow.cost_model.costs import costs
from fineflow.engines import EmulatedEmbedding, EmulatedLLM, EmulatedReranker
from fineflow.langchain import ChatEngine, EngineEmbeddings, EngineReranker
from fineflow.passes import PASSES, Pass, decode, prefill, prune, stages
from fineflow.testing import virtual
from fineflow.testing.langchain import FakeVectorStore

QUESTION = {"question": "Which bridge crosses the river in the old harbour?"}
SEARCH_SECONDS = 0.06
PASSAGES = [
    f"{subject} {verb} {place}, {since}."
    for subject in ("The oldest stone bridge", "A ferry", "The northern lighthouse", "Every tunnel")
    for verb in ("crosses the broad river in", "was built on the rocks of")
    for place in ("the old harbour", "the harbour town", "the northern bay")
    for since in ("three hundred years ago", "after the great flood")
]
LINES = "\n".join(
    f"{kind} that cross the broad river near the old harbour and the rocks of the northern bay"
    for kind in ("stone bridges", "ferries and tunnels", "lighthouses", "old crossings")
)
TOPICS = ", ".join(
    f"{part} of the bridge that crosses the river in the old harbour"
    for part in (
        "the builders and the first plans",
        "the stones and the quarries",
        "the floods and repairs",
        "the name",
    )
)
SAID = {
    "Classify": '{"complexity": "low", "joint_reasoning": false, "pieces": 1, "summary_words": 30}',
    "different versions": LINES,
    "Topics": TOPICS,
    "Answer": "It is the Kelmora Bridge, built of grey stone three hundred years ago, where the river meets the bay.",
    "Suggest": "Who built it, how long is it, when was it last repaired, and what is it called by sailors?",
    "Summarize": "The passage tells when it was built and where.",
}
EXAMPLES = "\n".join(
    f"Example {i}: asked for place number {i}, reply with its name, its age and the source, in one short sentence."
    for i in range(40)
)  # several hundred tokens: few-shot instructions, the same for every request
PASSAGES_KEPT = 3


@dataclass
class World:
    """Engines of one pipeline, new for every measurement."""

    llm: ChatEngine = field(init=False)
    store: FakeVectorStore = field(init=False)
    reranker: EngineReranker = field(init=False)

    def __post_init__(self) -> None:
        self.llm = ChatEngine(engine=EmulatedLLM(said))
        filled = FakeVectorStore()
        filled.add_texts(PASSAGES)
        self.store = FakeVectorStore(EngineEmbeddings(EmulatedEmbedding()), latency=SEARCH_SECONDS)
        self.store._rows = filled._rows
        self.reranker = EngineReranker(engine=EmulatedReranker(), top_n=PASSAGES_KEPT)

    def retriever(self, k: int = 8) -> Any:
        return self.store.as_retriever(search_kwargs={"k": k})

    def reranked(self, retriever: Any) -> Any:
        return ContextualCompressionRetriever(base_retriever=retriever, base_compressor=self.reranker)

    def ask(self, text: str, *, system: str = "") -> Runnable[Any, Any]:
        messages = [("system", system)] if system else []
        return ChatPromptTemplate.from_messages([*messages, ("human", text)]) | self.llm | StrOutputParser()


def said(prompt: str) -> str:
    return next((answer for key, answer in SAID.items() if key in prompt), "nothing to say")


def joined(docs: list[Document]) -> str:
    return "\n".join(doc.page_content for doc in docs)


def steps(world: World) -> Runnable[Any, Any]:
    """A sequence of steps of which only one needs another: a retrieval next to generations."""
    question: Any = RunnablePick("question")
    return (
        RunnablePassthrough.assign(category=world.ask("Classify {question}"))
        | RunnablePassthrough.assign(context=question | world.retriever() | RunnableLambda(joined))
        | RunnablePassthrough.assign(answer=world.ask("Answer {question} from {context}"))
        | RunnablePassthrough.assign(related=world.ask("Suggest questions like {question}"))
    )


def expansion(world: World) -> Runnable[Any, Any]:
    """Several queries for one question, and many documents to rerank."""
    queries = MultiQueryRetriever.from_llm(world.retriever(12), world.llm, include_original=True)
    return RunnablePick("question") | world.reranked(queries)


def late_context(world: World) -> Runnable[Any, Any]:
    """Long instructions and the question before a context that is searched and reranked first."""
    question: Any = RunnablePick("question")
    context = question | world.reranked(world.retriever(32)) | RunnableLambda(joined)
    text = "Answer {question} from what follows.\n{context}"
    return RunnablePassthrough.assign(context=context) | world.ask(text, system=EXAMPLES)


def topics(world: World) -> Runnable[Any, Any]:
    """A list of topics; documents are searched and reranked for each."""
    queries = ChatPromptTemplate.from_template("Topics of {question}") | world.llm | CommaSeparatedListOutputParser()
    one = world.reranked(world.retriever(12))
    return queries | one.map()


@dataclass(frozen=True)
class Shape:
    """Pipeline that profits from a pass.

    bounds: minimum ratios of the time in stock, and without that pass, to the time with all passes.
    """

    about: str
    build: Callable[[World], Runnable[Any, Any]]
    off: Pass
    bounds: tuple[float, float]


SHAPES = (
    Shape("retrieval next to generation", steps, prune, (1.8, 1.8)),
    Shape("queries, many documents reranked", expansion, stages, (1.2, 1.15)),
    Shape("long instructions, late context", late_context, prefill, (1.08, 1.08)),
    Shape("list of queries, each reranked", topics, decode, (1.3, 1.3)),
)


def seconds(shape: Shape, passes: Sequence[Pass] | None) -> tuple[Any, float]:
    """Returns the result of a call and its seconds; stock if ``passes`` is None."""
    costs.forget()  # every measurement is that of a first call
    chain = shape.build(World())
    if passes is not None:
        chain = fineflow.optimize(chain, passes=passes, strict=True)
    return virtual.run(chain.ainvoke(dict(QUESTION)))


def measure(shape: Shape) -> dict[str, float]:
    """Returns the seconds of stock, of all passes, and without one. All calls must return the same as stock."""
    without = tuple(each for each in PASSES if each is not shape.off)
    found = {name: seconds(shape, passes) for name, passes in (("stock", None), ("all", PASSES), ("without", without))}
    assert all(value == found["stock"][0] for value, _ in found.values()), "an optimized call gave another answer"
    return {name: taken for name, (_, taken) in found.items()}


def main(argv: list[str] | None = None) -> int:
    from benchmarks import ablation  # imports the harness, which the pipelines above do without

    parser = arguments(__doc__ or "", runs=1)
    parser.add_argument("--shapes", action="store_true", help="the shapes of pipelines only (3 s)")
    ablation.add_arguments(parser)
    given = parser.parse_args(argv)
    print(f"Gain of each pass: emulated engines, virtual seconds of ainvoke.\n{hardware()}\n")
    rows = [("shape", "stock", "all passes", "stock / all", "pass", "without it", "without / all")]
    figures, checks = {}, {}
    for shape in SHAPES:
        took = figures[shape.off.__name__] = measure(shape)
        ratios = [took[name] / took["all"] for name in ("stock", "without")]
        times = [f"{took[name]:.3f}" for name in ("stock", "all", "without")]
        rows.append((shape.about, *times[:2], f"{ratios[0]:.2f}", shape.off.__name__, times[2], f"{ratios[1]:.2f}"))
        for what, ratio, bound in zip(("in stock", f"without {shape.off.__name__}"), ratios, shape.bounds, strict=True):
            checks[f"{shape.about}: {what} at least {bound:.2f} times as long"] = ratio >= bound
    print(table(rows), end="\n\n")
    found: dict[str, Any] = {"seconds": figures}
    if not given.shapes:
        gains = {name: took["without"] / took["all"] for name, took in figures.items()}
        found |= ablation.measured(given, gains, checks)
    return finish(found, checks, given.json)


if __name__ == "__main__":
    sys.exit(main())
