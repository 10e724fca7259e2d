"""The plan as people see it: what starts early, what stays as it is, and why."""

from __future__ import annotations

from dataclasses import replace
from html import unescape

from fineflow.explanation import Explanation
from fineflow.ir import Effect, Effects, Graph, Note, Op, Primitive, Ref
from fineflow.ir.text import printable
from fineflow.observe.overview import starts_early
from fineflow.observe.sections import sections

OPAQUE = Effects(Effect.OPAQUE, reason="calls requests.get, which is not known to be pure")
QUESTION = {"prompt": Ref("input", "question")}
DONE = Note("prune", "answer/llm", True, "reads only the question")
LEFT = Note("prefill", "guard", False, "own code is never moved")


def plan(*, guarded: bool = False, chained: bool = False) -> Graph:
    """Two questions to a model, a guard before them when ``guarded``, the second after the first when ``chained``."""
    guard = (Primitive("guard", Op.CALL, {"x": Ref("input")}, effects=OPAQUE),) if guarded else ()
    wait = ("guard",) if guarded else ()
    second = {"prompt": Ref("category/llm")} if chained else QUESTION
    return Graph(
        (
            *guard,
            Primitive("category/llm", Op.DECODE, QUESTION, engine="llm", after=wait),
            Primitive("answer/llm", Op.DECODE, second, engine="llm", after=wait),
            Primitive("record", Op.RECORD, {"category": Ref("category/llm"), "answer": Ref("answer/llm")}),
        ),
        Ref("record"),
    )


WHOLE = Explanation(plan(guarded=True, chained=True), plan(guarded=True).noted(DONE), (LEFT,), name="my chain")


def test_the_text_says_what_is_gained_what_starts_earlier_and_what_is_in_the_way() -> None:
    assert (
        str(replace(WHOLE, advice=("`guard` at app.py:7 calls print, @fineflow.pure on it gains: 300 ms.",)))
        == """\
Plan for my chain
=================

  Of 2 steps that take time (models, searches, reranking), 1 no longer waits for everything before it.

What starts earlier than in stock
  answer/llm  reads only the question

In the way
  `guard` at app.py:7 calls print, @fineflow.pure on it gains: 300 ms.
  guard: calls requests.get, which is not known to be pure; 2 later steps wait for it without reading its result. The
    documentation lists what is recognised (recognised.md); a function that calls it can be declared.

Critical paths, each refusal with its reason, your own functions and both graphs: fineflow.explain(..., graphs=True), or
fineflow explain --graphs"""
    )


def test_text_of_a_whole_plan() -> None:
    shown = replace(WHOLE, graphs=True)
    assert (
        str(shown)
        == """\
Plan for my chain
=================

  Of 2 steps that take time (models, searches, reranking), 1 no longer waits for everything before it.

What starts earlier than in stock
  answer/llm  reads only the question

In the way
  guard: calls requests.get, which is not known to be pure; 2 later steps wait for it without reading its result. The
    documentation lists what is recognised (recognised.md); a function that calls it can be declared.

Each rewrite of the plan
  prune  answer/llm  reads only the question

What stays as it was, and why
  prefill  guard  own code is never moved

Run by stock itself, exactly when it always was: your own code, and what is not recognised
  guard  calls requests.get, which is not known to be pure; 2 later steps wait for it

As written (p-graph): 4 primitives, reads input
   #  name          depth  operation, engine, effects, order edges
   1  guard                call(x=input)  opaque
   2  category/llm         decode(prompt=input[question])  on llm  after 1
   3  answer/llm           decode(prompt=2)  on llm  after 1
   4  record               record(category=2, answer=3)
output: 4

As run (e-graph): 4 primitives, reads input
   #  name          depth  operation, engine, effects, order edges
   1  guard                call(x=input)  opaque
   2  category/llm         decode(prompt=input[question])  on llm  after 1
   3  answer/llm           decode(prompt=input[question])  on llm  after 1
   4  record               record(category=2, answer=3)
output: 4"""
    )


def test_what_starts_early() -> None:
    assert starts_early(plan(), None) == ["answer/llm"]
    assert starts_early(plan(chained=True), None) == []
    assert starts_early(plan(guarded=True), None) == ["answer/llm"]


def test_a_partial_prefill_makes_nobody_early() -> None:
    """The answer waits for the search; that it does not wait for its own prefill is no gain of its own."""
    graph = Graph(
        (
            Primitive("search", Op.SEARCH, {"query": Ref("input", "question")}),
            Primitive("llm.partial_prefill", Op.PARTIAL_PREFILL, {"history": Ref("input", "history")}),
            Primitive("llm.decode", Op.DECODE, {"prompt": Ref("search")}),
        ),
        Ref("llm.decode"),
    )
    assert starts_early(graph, None) == []
    shown = str(Explanation(None, graph))
    assert "no longer wait" not in shown
    assert "The beginning of 1 prompt is prefilled while the rest is being computed." in shown


def test_a_note_is_one_line() -> None:
    assert str(DONE) == "prune: answer/llm: reads only the question"
    assert str(LEFT) == "prefill refused: guard: own code is never moved"
    assert str(Note("mine", "a", True, "over\n  two lines")) == "mine: a: over two lines"


def test_nothing_to_gain_is_said() -> None:
    assert "nothing can start earlier" in str(Explanation(None, plan(chained=True)))


def test_streams_are_told() -> None:
    inner = Graph((Primitive("embed", Op.EMBED, {"text": Ref("item")}),), Ref("embed"), ("item",))
    graph = Graph(
        (
            Primitive("lines", Op.PARTIAL_DECODE, QUESTION),
            Primitive("each", Op.MAP, {"items": Ref("lines", stream=True)}, body=inner),
        ),
        Ref("each"),
    )
    assert "each starts on each item while the rest of the list is still being written." in str(
        Explanation(None, graph)
    )


def test_a_fallback_is_the_whole_story() -> None:
    shown = Explanation(None, None, fallback="MyChain overrides ainvoke", name="MyChain")
    assert str(shown).splitlines()[-1] == "  Runs as stock, through your own object: MyChain overrides ainvoke."
    assert "MyChain overrides ainvoke" in shown.to_html()
    assert shown.to_mermaid() == 'flowchart TD\n  n0["everything runs as stock"]'
    assert "no plan" in str(Explanation(None, None))


def test_an_opaque_step_is_explained_once() -> None:
    note = Note("lower", "guard", False, OPAQUE.reason)
    shown = Explanation(None, plan(guarded=True), (note, DONE), graphs=True)
    assert str(shown).count(OPAQUE.reason) == 2  # what is in the way, and what stock runs
    shown = str(shown)
    assert "What stays as it was" not in shown


def test_notes_are_shown_once() -> None:
    graph = plan().noted(DONE)
    assert Explanation(graph, graph, (DONE, LEFT)).all_notes == (DONE, LEFT)


def test_notebooks_get_a_frame_with_the_page() -> None:
    shown = Explanation(plan(), plan(), name="<chain>")
    frame = shown._repr_html_()
    assert frame.startswith('<iframe srcdoc="')
    assert unescape(frame.split('srcdoc="')[1].split('"')[0]) == shown.to_html()
    bundle = shown._repr_mimebundle_()
    assert bundle["text/plain"] == str(shown)
    assert set(bundle) == {"text/plain", "text/html", "text/vnd.mermaid"}
    assert set(shown._repr_mimebundle_(include={"text/plain"})) == {"text/plain"}
    assert "text/html" not in shown._repr_mimebundle_(exclude={"text/html"})


def test_text_stays_within_the_terminal() -> None:
    long = Note("prune", "a/very/long/path/" * 4, False, "because " * 40)
    shown = str(Explanation(plan(), plan().noted(long), name="x", advice=("why " * 50,), graphs=True))
    assert max(map(len, shown.splitlines())) <= 120


def test_own_code_is_told_apart_by_what_is_known_of_it() -> None:
    pure = Effects(Effect.PURE, reason="joins strings")
    graph = Graph(
        (
            Primitive("guard", Op.CALL, {"x": Ref("input")}, {}, OPAQUE, meta={"where": "app.py:7"}, by_stock=True),
            Primitive("join", Op.CALL, {"x": Ref("guard")}, effects=pure, meta={"where": "app.py:9"}),
            Primitive("llm", Op.DECODE, {"prompt": Ref("join")}),
        ),
        Ref("llm"),
    )
    shown = str(Explanation(None, graph, graphs=True))
    kept = "kept in order: `guard` at app.py:7 calls requests.get, which is not known to be pure"
    assert f"  guard  {kept}; 1 later step waits for it\n" in shown
    assert "may run early\n  join  app.py:9  joins strings\n" in shown


def test_writes_count_as_steps_that_stock_runs() -> None:
    declared = Effects(Effect.WRITE, "log", "is declared to write log")
    graph = Graph(
        (
            Primitive("note", Op.CALL, {"x": Ref("input")}, {}, declared, meta={"where": "app.py:7"}, by_stock=True),
            Primitive("llm", Op.DECODE, {"prompt": Ref("note")}),
        ),
        Ref("llm"),
    )
    shown = " ".join(str(Explanation(None, graph, graphs=True)).split())
    assert "note kept in order: `note` at app.py:7 is declared to write log" in shown
    assert "In the way" not in shown


def test_a_reason_that_holds_for_several_steps_is_said_once() -> None:
    notes = tuple(Note("prefill", name, False, "whole prompts only") for name in "abcd")
    shown = str(Explanation(plan(), plan(), notes, graphs=True))
    assert "  prefill  a, b and 2 more  whole prompts only\n" in shown
    assert shown.count("whole prompts only") == 1


def test_a_plan_that_is_not_used_does_not_tell_what_it_would_do() -> None:
    shown = Explanation(plan(), plan().noted(DONE, LEFT), fallback="nothing to gain", graphs=True)
    assert "reads only the question" not in str(shown)
    assert "e-graph" not in str(shown) and "e-graph" not in shown.to_html()
    assert "own code is never moved" in str(shown)
    assert "Nothing to gain." in shown.to_html()
    assert shown.to_mermaid() == 'flowchart TD\n  n0["everything runs as stock"]'


def test_names_do_not_steer_the_terminal() -> None:
    graph = Graph((Primitive("evil\x1b[2J\u202e", Op.CALL, {"value": Ref("input")}),), Ref("evil\x1b[2J\u202e"))
    text = Explanation(graph, graph, graphs=True).to_text()
    assert r"evil\x1b[2J\u202e" in text
    assert not {"\x1b", "\u202e"} & set(text)


def test_what_is_printable_stays() -> None:
    kept = "a\tb\nZürich 東京 \U0001f469\u200d\U0001f4bb"
    assert printable(kept) == kept
    assert printable("\ud800\x07") == r"\ud800\x07"


def test_a_step_that_gains_inside_is_not_said_to_run_as_it_always_did() -> None:
    node = Primitive("node", Op.CALL, {"value": Ref("input")}, effects=Effects(Effect.OPAQUE, "", "your own code"))
    gains, stays = node.with_(meta={"inside": (1,)}), node.with_(name="other", args={"value": Ref("node")})
    graph = Graph((gains, stays), Ref("other"))
    found = {heading: [row[0] for row in rows] for heading, _, rows in sections(graph, ())}
    assert [rows for heading, rows in found.items() if "exactly when it always was" in heading] == [["other"]]
    assert [rows for heading, rows in found.items() if "component calls inside them run ahead" in heading] == [["node"]]
