"""Pictures and pages: well formed, complete, self-contained, and safe with any name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fineflow.ir import Effect, Effects, Graph, Note, Op, Primitive, Ref
from fineflow.ir.spec import bodies
from fineflow.ir.text import Marks, inside
from fineflow.observe.mermaid import to_html, to_mermaid, to_svg
from fineflow.observe.plan_svg import COLOURS, FAMILIES, critical_edges, describe, edges, family

EVIL = "</title></svg><script>alert(1)</script>\"'&|`#;"
SVG = "{http://www.w3.org/2000/svg}"


def small() -> Graph:
    """One primitive of every way to be drawn: own code, a map over a stream, an order edge."""
    inner = Graph(
        (Primitive("each/embed", Op.EMBED, {"text": Ref("item")}, engine="minilm"),), Ref("each/embed"), ("item",)
    )
    return Graph(
        (
            Primitive("guard", Op.CALL, {"x": Ref("input")}, effects=Effects(Effect.OPAQUE, reason="calls print")),
            Primitive("llm", Op.PARTIAL_DECODE, {"prompt": Ref("input", "question")}, engine="llm", after=("guard",)),
            Primitive("each", Op.MAP, {"items": Ref("llm", stream=True)}, body=inner),
        ),
        Ref("each"),
    )


def named(name: str) -> Graph:
    effects = Effects(Effect.OPAQUE, name, name)
    call = Primitive(name, Op.CALL, {name: Ref("input", name)}, {name: name}, effects, engine=name)
    return Graph((call,), Ref(name, name))


class Tags(HTMLParser):
    """Collects elements and attributes, and checks that every element is closed in its place."""

    VOID = frozenset({"meta", "input", "br"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))


def assert_self_contained(page: str) -> Tags:
    tags = Tags(page)
    assert not {"script", "link", "img", "iframe", "object"} & {tag for tag, _ in tags.seen}
    for _, attributes in tags.seen:
        assert not {"src", "href", "onload", "onclick"} & set(attributes)
    assert "url(" not in page
    assert "@import" not in page
    return tags


def test_every_op_has_one_family() -> None:
    assert sorted(op for _, ops in FAMILIES.values() for op in ops) == sorted(Op)
    assert family(Primitive("a", Op.DECODE)) == "llm"
    assert family(Primitive("a", Op.CALL)) == "own"  # a pure function is no problem
    assert family(Primitive("a", Op.CALL, effects=Effects(Effect.OPAQUE))) == "code"


def test_svg_shows_every_primitive_with_a_tooltip(rewritten: Graph) -> None:
    root = ElementTree.fromstring(to_svg(rewritten))
    titles = [title.text or "" for title in root.iter(f"{SVG}title")]
    for p in (*rewritten, *rewritten["documents/search"].body):
        assert describe(p) in titles
    assert any("searching does not change the store" in title for title in titles)


def test_svg_tells_edges_apart() -> None:
    drawn = to_svg(small())
    assert [drawn.count(f'<g class="edge {kind}">') for kind in ("data", "stream", "order")] == [5, 1, 1]


def test_an_order_edge_that_others_imply_is_not_drawn(as_written: Graph) -> None:
    drawn = [pair for pair, edge in edges(as_written).items() if edge.kind == "order"]
    assert drawn == [
        ("category/parser.parse", "documents/pick"),
        ("answer/parser.parse", "related/prompt.render"),
    ]
    far = Graph(
        (
            Primitive("a", Op.RECORD),
            Primitive("b", Op.PICK, {"x": Ref("a")}),
            Primitive("c", Op.PICK, {"x": Ref("b")}, after=("a",)),
        ),
        Ref("c"),
    )
    assert {pair: edge.kind for pair, edge in edges(far).items()} == {("a", "b"): "data", ("b", "c"): "data"}


def test_mermaid_of_a_small_graph() -> None:
    lines = to_mermaid(small()).splitlines()
    assert [line for line in lines if "classDef" not in line] == [
        "flowchart TD",
        '  n0(["input"])',
        '  n1["call<br/>guard<br/>opaque"]:::code',
        '  n2["partial#95;decode<br/>llm<br/>llm"]:::llm',
        '  n3["map<br/>each"]:::flow',
        '  subgraph g4 ["each: for each item"]',
        "    direction TB",
        '    n5(["item"])',
        '    n6["embed<br/>each/embed<br/>minilm"]:::find',
        "    n5 --> n6",
        '    n6 --> n7(["output"])',
        "  end",
        "  n3 -.- g4",
        "  n0 --> n1",
        "  n0 --> n2",
        "  n1 -.-> n2",
        "  n2 ==> n3",
        '  n3 --> n8(["output"])',
        "  class g4 body",
    ]


@settings(max_examples=60, deadline=None)
@given(st.one_of(st.just(EVIL), st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=60)))
def test_any_name_is_safe(name: str) -> None:
    graph = named(name) if name != "input" else named("x")
    ElementTree.fromstring(to_svg(graph, title=name))
    page = to_html(graph, graph, [Note(name, name, False, name)], title=name, summary=[name], fallback=name)
    assert_self_contained(page)
    for label in re.findall(r'"(.*)"', to_mermaid(graph)):
        assert not re.search(r"[\"'`|{}]|<(?!br/>)", label)


def test_page_shows_both_graphs_and_every_reason(as_written: Graph, rewritten: Graph) -> None:
    page = to_html(as_written, rewritten, rewritten.notes, title="the app", summary=["One sentence."])
    tags = assert_self_contained(page)
    figures = [tag for tag, _ in tags.seen if tag == "figure"]
    assert len(figures) == 2
    assert "One sentence." in page
    for note in rewritten.notes:
        assert note.reason in page
    assert page.index("Each rewrite of the plan") < page.index("What stays as it was")
    assert "Run by stock itself" not in page
    ids = [attributes["id"] for _, attributes in tags.seen if "id" in attributes]
    assert sorted(set(ids)) == sorted(ids)


def test_page_lists_own_code_with_the_verdict() -> None:
    page = assert_and_get(small())
    assert "Run by stock itself" in page
    assert "calls print" in page


def assert_and_get(graph: Graph) -> str:
    page = to_html(None, graph)
    assert_self_contained(page)
    return page


def test_page_without_graphs_says_why() -> None:
    page = to_html(None, None, fallback="Chain overrides <ainvoke>")
    assert_self_contained(page)
    assert "Chain overrides &lt;ainvoke&gt;" in page
    assert "<figure" not in page


@pytest.mark.parametrize(("count", "first"), [(3, "both"), (60, "e")])
def test_large_graphs_start_with_one_picture(count: int, first: str) -> None:
    graph = Graph(tuple(Primitive(f"p{number}", Op.RECORD) for number in range(count)), Ref("p0"))
    tags = Tags(to_html(graph, graph))
    assert [a["id"] for tag, a in tags.seen if tag == "input" and "checked" in a] == [first]


def path_of(graph: Graph) -> Marks:
    """What takes time in ``small()``, and the path through it."""
    each = inside("each", "for each item", "each/embed")
    return Marks({"llm": 1.5, "each": 0.03, each: 0.03, "aside": 0.2}, frozenset({"llm", "each", each}))


def test_the_critical_path_is_drawn_heavily() -> None:
    drawn = to_svg(small(), marks=path_of(small()))
    ElementTree.fromstring(drawn)
    assert sorted(re.findall(r'<g class="node (\w+) critical">', drawn)) == ["find", "flow", "llm"]
    assert drawn.count('<g class="edge stream critical">') == 1
    assert "partial_decode   1.50 s" in drawn and "embed   30 ms" in drawn
    assert "critical" not in to_svg(small()).partition("</style>")[2]


def test_the_path_is_drawn_through_what_takes_no_time() -> None:
    graph = Graph(
        (
            Primitive("search", Op.SEARCH, {"query": Ref("input")}),
            Primitive("docs", Op.CALL, {"x": Ref("search")}),
            Primitive("prompt", Op.RENDER, {"docs": Ref("docs"), "question": Ref("input")}),
            Primitive("llm", Op.DECODE, {"prompt": Ref("prompt")}),
            Primitive("aside", Op.SEARCH, {"query": Ref("input")}),
        ),
        Ref("llm"),
    )
    on = Marks({"search": 1.0, "llm": 1.0}, frozenset({"search", "llm"}))
    assert critical_edges(graph, on) == {("search", "docs"), ("docs", "prompt"), ("prompt", "llm")}
    apart = Marks({}, frozenset({"search", "aside"}))
    assert critical_edges(graph, apart) == set()


def test_mermaid_marks_the_path() -> None:
    lines = to_mermaid(small(), marks=path_of(small())).splitlines()
    assert lines[-2:] == ["  classDef critical stroke-width:5px", "  class n2,n3,n6 critical"]
    assert '  n2["partial#95;decode 1.50 s<br/>llm<br/>llm"]:::llm' in lines


def test_no_class_of_mermaid_is_one_of_its_keywords() -> None:
    assert not {"call", "end", "default", "style", "class", "click", "href", "graph", "subgraph"} & set(COLOURS)


def test_arms_lie_beside_each_other_in_frames_of_their_own() -> None:
    arm = Graph((Primitive("pick", Op.PICK, {"x": Ref("a")}),), Ref("pick"), ("a",))
    arms = {"if 1": arm, "then 1": arm, "else": arm}
    graph = Graph((Primitive("which", Op.CONDITION, {"a": Ref("input", "a")}, body=arms),), Ref("which"))
    root = ElementTree.fromstring(to_svg(graph))
    frames = [rect for rect in root.iter(f"{SVG}rect") if rect.get("class") == "arm"]
    spans = [(float(rect.get("x", "")), float(rect.get("x", "")) + float(rect.get("width", ""))) for rect in frames]
    assert len(spans) == 3
    assert all(end < start for (_, end), (start, _) in pairwise(spans))
    assert len({rect.get("height") for rect in frames}) == 1
    outer = next(rect for rect in root.iter(f"{SVG}rect") if rect.get("class") == "box")
    assert spans[-1][1] < float(outer.get("width", ""))


def large() -> Graph:
    """Sixty primitives: six models in a row and side by side, a map and a condition of three arms, one in another."""

    def model(path: str, prompt: Ref, after: tuple[str, ...] = ()) -> tuple[Primitive, ...]:
        names = [f"{path}/{end}" for end in ("prompt.render", "llm.prefill", "llm.decode", "parser.parse")]
        return (
            Primitive(names[0], Op.RENDER, {"text": prompt}, after=after),
            Primitive(names[1], Op.PREFILL, {"prompt": Ref(names[0])}, engine="a-model-with-a-long-name"),
            Primitive(names[2], Op.DECODE, {"cache": Ref(names[1])}, engine="a-model-with-a-long-name"),
            Primitive(names[3], Op.PARSE, {"text": Ref(names[2])}),
        )

    def body(*inputs: str) -> Graph:
        return Graph(model("inner", Ref(inputs[0])), Ref("inner/parser.parse"), inputs)

    def branch(name: str, arms: dict[str, Graph]) -> Primitive:
        return Primitive(name, Op.CONDITION, {"x": Ref("m1/parser.parse")}, body=arms)

    inner = {"if 1": body("x"), "then 1": body("x"), "else": body("x")}
    nested = Graph((branch("nested", inner).with_(args={"x": Ref("x")}),), Ref("nested"), ("x",))
    rows = [p for i in range(6) for p in model(f"m{i}", Ref(f"m{i - 2}/parser.parse" if i > 1 else "input"))]
    each = Primitive("each", Op.MAP, {"items": Ref("m0/parser.parse")}, body=body("item"))
    which = branch(
        "which", {"if 1": body("x"), "then 1": nested, "if 2": body("x"), "then 2": body("x"), "else": body("x")}
    )
    last = Primitive("out", Op.RECORD, {"a": Ref("each"), "b": Ref("which"), "c": Ref("m5/parser.parse")})
    return Graph((*rows, each, which, last), Ref("out"))


def boxes_of(element: ElementTree.Element, x: float = 0, y: float = 0) -> Iterator[tuple[float, float, float, float]]:
    """Left, top, right, bottom of every primitive's box in the picture."""
    if moved := re.match(r"translate\((\S+) (\S+)\)", element.get("transform", "")):
        x, y = x + float(moved[1]), y + float(moved[2])
    if element.get("class") == "box":
        yield x, y, x + float(element.get("width", "")), y + float(element.get("height", ""))
    for child in element:
        yield from boxes_of(child, x, y)


def test_sixty_primitives_do_not_overlap() -> None:
    graph = large()
    every = list(all_of(graph))
    assert len(every) >= 60
    root = ElementTree.fromstring(to_svg(graph, marks=Marks({p.name: 12.34 for p in every})))
    boxes = list(boxes_of(root))
    assert len(boxes) == len(every)
    for i, (left, top, right, bottom) in enumerate(boxes):
        for other in boxes[i + 1 :]:
            apart = right < other[0] or other[2] < left or bottom < other[1] or other[3] < top
            within = left < other[0] and other[2] < right and top < other[1] and other[3] < bottom
            around = other[0] < left and right < other[2] and other[1] < top and bottom < other[3]
            assert apart or within or around
    assert float(root.get("width", "")) < 2200


def all_of(graph: Graph) -> Iterator[Primitive]:
    for p in graph:
        yield p
        for _, body in bodies(p):
            yield from all_of(body)
