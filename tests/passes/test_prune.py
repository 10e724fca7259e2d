"""Pass 1: which order edges stay, and that dropping the others changes no answer."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from langchain_core.output_parsers import StrOutputParser
from langchain_core.runnables import RunnableLambda, RunnablePassthrough, RunnablePick
from pass_shapes import CHAINS, QUESTION, ask, chat, engine_chat, format_docs, lowered, store, two_models, without

import fineflow
from fineflow.ir import Effect, Effects, Graph, Note, Op, Primitive, Ref
from fineflow.ir.spec import verify
from fineflow.ir.text import format_graph
from fineflow.ir.traverse import ancestors
from fineflow.passes import PASSES, prune
from fineflow.testing.differential import assert_same
from fineflow.testing.gates import Gate
from fineflow.testing.langchain import FakeChat

LLM = Effects(Effect.EXTERNAL)


def chained(*primitives: Primitive) -> Graph:
    """Every primitive after the one before, the last one is the answer."""
    names = [p.name for p in primitives]
    ordered = [p.with_(after=(names[i - 1],) if i else ()) for i, p in enumerate(primitives)]
    return Graph(tuple(ordered), Ref(names[-1]))


def opaque(name: str, *received: str) -> Primitive:
    args = {f"arg{i}": Ref(source) for i, source in enumerate(received or ("input",))}
    effects = Effects(Effect.OPAQUE, reason="calls print")
    return Primitive(
        name,
        Op.CALL,
        args,
        {},
        effects,
        meta={"received": received, "where": "app.py:7", "called": name},
        by_stock=True,
    )


def decode(name: str, source: str = "input", effects: Effects = LLM) -> Primitive:
    return Primitive(name, Op.DECODE, {"prompt": Ref(source)}, effects=effects)


def search(name: str, effect: Effect = Effect.READ, store: str = "chroma") -> Primitive:
    return Primitive(name, Op.SEARCH, {"query": Ref("input")}, effects=Effects(effect, store))


def call(name: str, source: str) -> Primitive:
    return Primitive(name, Op.CALL, {"value": Ref(source)})


def test_before_and_after() -> None:
    graph = chained(decode("classify"), search("find"), call("join", "find"), decode("answer", "join"))
    assert format_graph(graph, title="before") == (
        "before: 4 primitives, reads input\n"
        "   #  name      depth  operation, engine, effects, order edges\n"
        "   1  classify         decode(prompt=input)  external\n"
        "   2  find             search(query=input)  read(chroma)  after 1\n"
        "   3  join             call(value=2)\n"
        "   4  answer           decode(prompt=3)  external\n"
        "output: 4"
    )
    pruned = prune(graph)
    assert format_graph(pruned, title="after") == (
        "after: 4 primitives, reads input\n"
        "   #  name      depth  operation, engine, effects, order edges\n"
        "   1  classify         decode(prompt=input)  external\n"
        "   2  find             search(query=input)  read(chroma)\n"
        "   3  join             call(value=2)\n"
        "   4  answer           decode(prompt=3)  external\n"
        "output: 4"
    )
    # Said of the search only: the answer waits for no classification because the search does not.
    assert pruned.notes == (Note("prune", "find", True, "does not wait for classify, whose result it does not use"),)


def test_declared_effects_before_and_after() -> None:
    def by_stock(name: str, op: Op, effects: Effects) -> Primitive:
        return Primitive(name, op, {"arg0": Ref("input")}, {}, effects, by_stock=True)

    graph = chained(
        by_stock("save", Op.CALL, Effects(Effect.WRITE, "history", also=(Effects(Effect.READ, "clock"),))),
        call("load", "input").with_(effects=Effects(Effect.READ, "history")),
        by_stock("ingest", Op.INGEST, Effects(Effect.WRITE, "chroma")),
        search("other", store="faiss"),
        search("find"),
        decode("answer"),
    )
    assert format_graph(prune(graph), title="after") == (
        "after: 6 primitives, reads input\n"
        "   #  name    depth  operation, engine, effects, order edges\n"
        "   1  save           call(arg0=input)  write(history) read(clock)  stock\n"
        "   2  load           call(value=input)  read(history)  after 1\n"
        "   3  ingest         ingest(arg0=input)  write(chroma)  after 2  stock\n"
        "   4  other          search(query=input)  read(faiss)\n"
        "   5  find           search(query=input)  read(chroma)  after 3\n"
        "   6  answer         decode(prompt=input)  external\n"
        "output: 6"
    )
    assert [str(note) for note in prune(graph).notes] == [
        "prune refused: load: kept in order after save: both touch history and one of them writes",
        "prune refused: find: kept in order after ingest: both touch chroma and one of them writes",
        "prune: other: does not wait for ingest, whose result it does not use",
        "prune: find: does not wait for other, whose result it does not use",
        "prune: answer: does not wait for find, whose result it does not use",
    ]


def test_what_was_read_is_not_used_beside_a_write_of_the_same() -> None:
    load = call("load", "input").with_(effects=Effects(Effect.READ, "history"))
    save = Primitive("save", Op.CALL, {"arg0": Ref("input")}, {}, Effects(Effect.WRITE, "history"), by_stock=True)
    pruned = prune(chained(load, save, call("reader", "load"), decode("answer", "reader"), call("other", "input")))
    assert pruned["reader"].after == ("save",)
    assert pruned["other"].after == ()
    assert "it writes history, from which this was read" in next(n.reason for n in pruned.notes if not n.done)


def test_nothing_to_prune() -> None:
    graph = chained(decode("one"), decode("two", "one"))
    assert format_graph(prune(graph)) == format_graph(graph.with_primitives(p.with_(after=()) for p in graph))
    assert prune(graph).notes == ()


@pytest.mark.parametrize(
    ("later", "waits"),
    [
        (search("later"), True),
        (search("later", Effect.WRITE), True),
        (decode("later"), True),
        (decode("later", effects=Effects(Effect.PURE)), False),
        (call("later", "input"), False),
    ],
    ids=["read", "write", "external", "model in the process", "pure function"],
)
def test_what_an_earlier_opaque_step_holds_back(later: Primitive, waits: bool) -> None:
    pruned = prune(chained(opaque("guard"), later))
    assert pruned["later"].after == (("guard",) if waits else ())
    reason = "kept in order: `guard` at app.py:7 calls print; it may be a guard, or change what is read"
    assert [note.reason for note in pruned.notes if not note.done] == [reason] * waits


@pytest.mark.parametrize(
    ("first", "second", "waits"),
    [
        (Effect.READ, Effect.READ, False),
        (Effect.READ, Effect.WRITE, True),
        (Effect.WRITE, Effect.READ, True),
        (Effect.WRITE, Effect.WRITE, True),
    ],
)
def test_reads_and_writes_of_one_store(first: Effect, second: Effect, waits: bool) -> None:
    pruned = prune(chained(search("first", first), search("second", second)))
    assert pruned["second"].after == (("first",) if waits else ())
    other = prune(chained(search("first", first), search("second", second, "another")))
    assert other["second"].after == ()


def test_what_an_opaque_step_received_is_not_read_beside_it() -> None:
    graph = chained(search("find"), opaque("change", "find"), call("reader", "find"), call("other", "input"))
    pruned = prune(graph)
    assert pruned["reader"].after == ("change",)
    assert pruned["other"].after == ()
    assert "it was given a value that it could change" in next(n.reason for n in pruned.notes if not n.done)


@pytest.mark.parametrize("way", ["it holds what was received", "what was received holds it", "both hold a third"])
def test_nor_is_what_shares_objects_with_it(way: str) -> None:
    first = call("first", "find")  # may return one of the documents found
    received, read = {
        "it holds what was received": ("find", "first"),
        "what was received holds it": ("first", "find"),
        "both hold a third": ("first", "second"),
    }[way]
    pruned = prune(
        chained(search("find"), first, call("second", "find"), opaque("change", received), call("reader", read))
    )
    assert pruned["reader"].after == ("change",)


def test_a_text_written_from_a_value_shares_nothing_with_it() -> None:
    graph = chained(search("find"), decode("answer", "find"), opaque("change", "find"), call("reader", "answer"))
    assert prune(graph)["reader"].after == ()


def test_reranked_documents_do_not_share_the_query() -> None:
    rerank = Primitive("rerank", Op.RERANK, {"query": Ref("input"), "documents": Ref("find")}, {"pairwise": True})
    pruned = prune(
        chained(search("find"), rerank, opaque("show", "rerank"), call("reader", "input"), call("docs", "find"))
    )
    assert pruned["reader"].after == ()
    assert pruned["docs"].after == ("show",)


def test_order_that_data_or_another_edge_implies_is_not_repeated() -> None:
    render = Primitive("render", Op.RENDER, {"value": Ref("guard")})
    prefill = Primitive("prefill", Op.PREFILL, {"prompt": Ref("render")}, effects=LLM)
    pruned = prune(chained(opaque("guard"), render, prefill, decode("answer", "prefill")))
    assert [p.after for p in pruned if p.name != "guard"] == [(), (), ()]
    pruned = prune(chained(opaque("one"), opaque("two"), decode("answer")))
    assert pruned["answer"].after == ("two",)


def test_opaque_steps_keep_their_order() -> None:
    graph = chained(decode("classify"), opaque("one"), decode("more"), opaque("two"))
    pruned = prune(graph)
    assert pruned["one"].after == ("classify",)
    assert pruned["two"].after == ("more",)


def test_bodies_are_pruned_too() -> None:
    inner = chained(decode("rewrite", "item"), Primitive("find", Op.SEARCH, {"query": Ref("item")}))
    inner = Graph(inner.primitives, inner.output, ("item",))
    graph = prune(Graph((Primitive("each", Op.MAP, {"items": Ref("input")}, body=inner),), Ref("each")))
    assert graph["each"].body["find"].after == ()
    assert [note.where for note in graph.notes] == ["find"]


@pytest.mark.parametrize("name", CHAINS)
def test_never_drops_data_and_never_adds_order(name: str) -> None:
    graph = lowered(CHAINS[name]())
    pruned = prune(graph)
    verify(pruned, after="prune")
    old, new = ancestors(graph, order=True), ancestors(pruned, order=True)
    assert [p.args for p in pruned] == [p.args for p in graph]
    assert all(new[p.name] <= old[p.name] for p in graph)


@pytest.mark.parametrize("passes", [without(prune), PASSES], ids=["off", "on"])
@pytest.mark.parametrize("shape", ["two models", "assistant", "guarded", "nested retrievers"])
def test_same_answer(shape: str, passes: Any) -> None:
    assert_same(CHAINS[shape], QUESTION, strict=True, passes=passes, eager=True)


def test_two_models_are_at_work_at_once_only_with_the_pass() -> None:
    gate = Gate()
    chain = RunnablePassthrough.assign(a=ask("Answer {question}") | chat(gate=gate)) | RunnablePassthrough.assign(
        b=ask("related {question}") | chat(gate=gate)
    )
    for passes, expected in ((PASSES, 2), (without(prune), 1)):
        gate.close()
        come = gate.arrivals
        thread = threading.Thread(target=fineflow.optimize(chain, passes=passes, eager=True).invoke, args=(QUESTION,))
        thread.start()
        gate.wait_arrived(come + expected)
        assert gate.arrivals == come + expected
        gate.open()
        thread.join(10)
        assert not thread.is_alive()


def test_an_alias_that_is_changed_in_place_costs_no_extra_call() -> None:
    """The first document is another name for what ``documents`` holds: changing it changes the second prompt."""

    def make() -> Any:
        log: list[str] = []

        def said(messages: list[Any]) -> str:
            log.append(messages[0].text)
            return messages[0].text

        def change(doc: Any) -> Any:
            log.append("changed")
            doc.page_content = doc.page_content.upper()
            return "done"

        return (
            RunnablePassthrough.assign(documents=RunnablePick("question") | store().as_retriever())
            | RunnablePassthrough.assign(first=RunnablePick("documents") | RunnableLambda(lambda docs: docs[0]))
            | RunnablePassthrough.assign(changed=RunnablePick("first") | RunnableLambda(change))
            | RunnablePassthrough.assign(context=RunnablePick("documents") | RunnableLambda(format_docs))
            | ask("{context}")
            | FakeChat(answers=said)
            | StrOutputParser()
        ), log

    # In streams stock itself runs the steps side by side, so that there is no order to compare.
    assert_same(make, QUESTION, strict=True, eager=True, entries=("invoke", "ainvoke"))


def test_models_in_the_process_do_not_wait_for_a_guard() -> None:
    plan = fineflow.explain(two_models(engine_chat())).e_graph
    assert plan is not None and plan["b/llm.decode"].after == ()


# --- values under keys of the input


def keyed(name: str, key: str | None, op: Op = Op.RENDER) -> Primitive:
    return Primitive(name, op, {"value": Ref("input", key)})


def stores(key: str | None) -> Primitive:
    made = opaque("store")
    return made.with_(args={"arg0": Ref("input", key)}, meta={**made.meta, "received": ("input",)})


@pytest.mark.parametrize(
    ("given", "read", "free"),
    [
        ("documents", "question", True),
        ("documents", "documents", True),
        (None, "question", False),
        ("documents", None, False),
    ],
    ids=["another key", "the same key", "it was given the dict", "it reads the dict"],
)
def test_a_constant_in_the_input_may_be_read_before_what_got_another_value(
    given: str | None, read: str | None, free: bool
) -> None:
    """Which values are constants is known when the graph starts."""
    pruned = prune(chained(stores(given), keyed("later", read)))
    assert pruned["later"].after == ("store",)
    assert pruned["later"].meta.get("unless_constant") == (("store",) if free else None)
