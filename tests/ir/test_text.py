"""The text of a graph is stable, complete and fits a terminal."""

from __future__ import annotations

from enum import Enum

from fineflow.ir import Effect, Effects, Graph, Op, Primitive, Ref
from fineflow.ir.text import NO_MARKS, WIDTH, format_graph, format_value, tidy, wrap

AS_RUN = """\
as run: 22 primitives, reads input
   #  name                                  depth  operation, engine, effects, order edges
   1  category/prompt.render                4      render(question=input[question])  template='chat'
   2  category/llm.prefill                  3      prefill(prompt=1)  on llm
   3  category/llm.decode                   2      decode(cache=2)  on llm  external  max_tokens=256
   4  category/parser.parse                 1      parse(text=3)
   5  documents/pick                        12     pick(record=input[question])
   6  documents/queries/prompt.render       11     render(question=5)
   7  documents/queries/llm.prefill         10     prefill(prompt=6)  on llm
   8  documents/queries/llm.partial_decode  9      partial_decode(cache=7)  on llm  external  pieces='lines'
   9  documents/queries/lines.parse         8      parse(text=8...)
  10  documents/search                      7      map(items=9...)
      for each item:
      10.1  documents/search.embed          1      embed(text=item)  on minilm
      10.2  documents/search.search         0      search(query=item, vector=10.1)  on chroma  read(chroma)  k=4
      gives 10.2
  11  documents/unique                      6      aggregate(documents=10)  unique=True
  12  documents/rerank                      5      rerank(query=5, documents=11)  on reranker  top_n=3
  13  answer/prompt.render                  4      render(context=12, question=input[question])  template='chat'
  14  answer/llm.partial_prefill            4      partial_prefill()  on llm  tokens=212
  15  answer/llm.prefill                    3      prefill(prompt=13, cache=14)  on llm
  16  answer/llm.decode                     2      decode(cache=15)  on llm  external  max_tokens=256
  17  answer/parser.parse                   1      parse(text=16)
  18  related/prompt.render                 4      render(question=input[question])  template='chat'
  19  related/llm.prefill                   3      prefill(prompt=18)  on llm
  20  related/llm.decode                    2      decode(cache=19)  on llm  external  max_tokens=256
  21  related/parser.parse                  1      parse(text=20)
  22  record                                0      record(category=4, documents=12, answer=17, related=21)
output: 22"""


def test_the_whole_app(rewritten: Graph) -> None:
    assert format_graph(rewritten, title="as run") == AS_RUN


def test_nothing_exceeds_the_terminal(as_written: Graph, rewritten: Graph) -> None:
    for graph in (as_written, rewritten):
        assert max(map(len, format_graph(graph).splitlines())) <= WIDTH


def test_order_edges_and_arms() -> None:
    arm = Graph((Primitive("arm/pick", Op.PICK, {"x": Ref("input", "a")}),), Ref("arm/pick"))
    graph = Graph(
        (
            Primitive("guard", Op.CALL, {"x": Ref("input")}, effects=Effects(Effect.OPAQUE)),
            Primitive("which", Op.CONDITION, {"x": Ref("input")}, after=("guard",), body={"yes": arm, "no": arm}),
        ),
        Ref("which", "answer"),
    )
    assert format_graph(graph) == (
        "2 primitives, reads input\n"
        "   #  name               depth  operation, engine, effects, order edges\n"
        "   1  guard                     call(x=input)  opaque\n"
        "   2  which                     condition(x=input)  after 1\n"
        "      yes:\n"
        "      2.yes.1  arm/pick         pick(x=input[a])\n"
        "      gives 2.yes.1\n"
        "      no:\n"
        "      2.no.1  arm/pick          pick(x=input[a])\n"
        "      gives 2.no.1\n"
        "output: 2[answer]"
    )


def test_a_function_is_called_pure_only_if_it_is() -> None:
    kinds = {kind: Effects(kind, "log" if kind is Effect.WRITE else "") for kind in (Effect.PURE, Effect.WRITE)}
    graph = Graph(
        tuple(
            Primitive(kind.value, Op.CALL, {"x": Ref("input")}, effects=effects, meta={"where": "app.py:7"})
            for kind, effects in kinds.items()
        ),
        Ref("pure"),
    )
    pure, write = (line for line in format_graph(graph, marks=NO_MARKS).splitlines() if "app.py:7" in line)
    assert "  pure, app.py:7" in pure
    assert "  write(log)  app.py:7" in write


def test_a_graph_that_only_passes_its_input_on() -> None:
    assert format_graph(Graph((), Ref("input"))) == (
        "0 primitives, reads input\n   #  name  depth  operation, engine, effects, order edges\noutput: input"
    )


def test_many_arguments_continue_below_and_none_is_lost() -> None:
    args = {f"argument_{number}": Ref("input", f"key_{number}") for number in range(20)}
    text = format_graph(Graph((Primitive("record", Op.RECORD, args),), Ref("record")))
    assert max(map(len, text.splitlines())) <= WIDTH
    assert all(f"argument_{number}=input[key_{number}]" in text for number in range(20))


class Colour(Enum):
    RED = "red"


def test_values_are_plain_and_never_addresses() -> None:
    assert format_value({"k": (1, 2.5, None), "s": {"b", "a"}}) == "{'k': (1, 2.5, None), 's': {'a', 'b'}}"
    assert format_value([True, Colour.RED]) == "[True, red]"
    assert format_value(object()) == "<object>"
    assert format_value(len) == "<len>"
    assert format_value("x" * 100) == "'" + "x" * 38 + "…"
    assert format_value("two\nlines") == r"'two\nlines'"


def test_only_short_plain_parameters_are_shown() -> None:
    params = {"_cache": 1, "name": "x", "empty": (), "text": "long " * 20, "zero": 0}
    shown = format_graph(Graph((Primitive("a", Op.TOOL, params=params, by_stock=True),), Ref("a"))).splitlines()
    assert shown[2] == "   1  a            tool()  stock  name='x'  zero=0"


def test_addresses_are_left_out() -> None:
    search = Primitive("a", Op.SEARCH, {"query": Ref("input")}, effects=Effects(Effect.READ, "Chroma@7fdd2978be90"))
    assert "read(Chroma)" in format_graph(Graph((search,), Ref("a")))
    assert tidy("mail a@b.org about Store@0x7fdd2978be90, twice") == "mail a@b.org about Store, twice"


def test_wrapping_keeps_every_word() -> None:
    words = [f"word{number}" for number in range(60)]
    lines = wrap("start", [" ".join(words)], hang="    ")
    assert max(map(len, lines)) <= WIDTH
    assert " ".join(lines).split() == ["start", *words]
