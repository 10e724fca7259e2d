"""Layouts of random graphs: nothing overlaps, everything runs downwards, no edge crosses a box."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fineflow.observe.graph_layout import Box, Layout, layered, median, ranks, spread

Sizes = dict[str, tuple[float, float]]
Edges = list[tuple[str, str]]


@st.composite
def dags(draw: st.DrawFn) -> tuple[Sizes, Edges]:
    count = draw(st.integers(1, 14))
    names = [f"n{number}" for number in range(count)]
    size = st.tuples(st.integers(40, 240).map(float), st.integers(20, 120).map(float))
    sizes = {name: draw(size) for name in names}
    pairs = list(combinations(names, 2))
    edges = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=30)) if pairs else []
    return sizes, edges


def overlap(a: Box, b: Box) -> bool:
    across = a.x < b.x + b.width - 1e-6 and b.x < a.x + a.width - 1e-6
    return across and a.y < b.y + b.height - 1e-6 and b.y < a.y + a.height - 1e-6


def crosses(layout: Layout, points: tuple[tuple[float, float], ...], name: str) -> bool:
    """Whether a straight way through a rank touches the box; curves lie between ranks."""
    box = layout.boxes[name]
    return any(
        box.x + 1e-6 < x < box.x + box.width - 1e-6 and max(top, box.y) < min(bottom, box.y + box.height) - 1e-6
        for (x, top), (_, bottom) in list(pairwise(points))[::2]
    )


@settings(max_examples=150, deadline=None)
@given(dags())
def test_layout_invariants(dag: tuple[Sizes, Edges]) -> None:
    sizes, edges = dag
    layout = layered(sizes, edges)
    assert list(layout.boxes) == list(sizes)
    assert {name: (box.width, box.height) for name, box in layout.boxes.items()} == sizes
    for (one, a), (other, b) in combinations(layout.boxes.items(), 2):
        assert not overlap(a, b), (one, other)
    for box in layout.boxes.values():
        assert -1e-6 <= box.x <= layout.width - box.width + 1e-6
        assert -1e-6 <= box.y <= layout.height - box.height + 1e-6
    assert [(wire.source, wire.target) for wire in layout.wires] == edges
    for wire in layout.wires:
        source, target = layout.boxes[wire.source], layout.boxes[wire.target]
        assert source.y + source.height < target.y
        assert all(above[1] <= below[1] for above, below in pairwise(wire.points))
        assert source.x <= wire.points[0][0] <= source.x + source.width
        assert target.x <= wire.points[-1][0] <= target.x + target.width
        assert not any(crosses(layout, wire.points, name) for name in sizes if name not in (wire.source, wire.target))
        assert all(-1e-6 <= x <= layout.width + 1e-6 for x, _ in wire.points)


@settings(max_examples=50, deadline=None)
@given(dags())
def test_layout_is_the_same_every_time(dag: tuple[Sizes, Edges]) -> None:
    assert layered(*dag) == layered(*dag)


def test_a_chain_is_straight() -> None:
    sizes = {"a": (100.0, 30.0), "b": (60.0, 30.0), "c": (200.0, 30.0)}
    layout = layered(sizes, [("a", "b"), ("b", "c")])
    centers = {box.x + box.width / 2 for box in layout.boxes.values()}
    assert max(centers) - min(centers) < 1e-6


@pytest.mark.parametrize("first", [True, False])
def test_a_box_without_edges_stands_beside_the_others(first: bool) -> None:
    names = ["alone", "input", "search", "render"] if first else ["input", "search", "render", "alone"]
    edges = [("input", "search"), ("input", "render"), ("search", "render")]
    sizes = {name: (270.0 if name == "search" else 90.0, 50.0) for name in names}
    layout = layered(sizes, edges)
    assert layout.width < 270 + 2 * 90 + 60
    assert not overlap(layout.boxes["alone"], layout.boxes["input"])


def test_avoidable_crossings_are_avoided() -> None:
    sizes = dict.fromkeys(("a", "b", "c", "d"), (50.0, 20.0))
    boxes = layered(sizes, [("a", "d"), ("b", "c")]).boxes
    assert (boxes["a"].x < boxes["b"].x) == (boxes["d"].x < boxes["c"].x)


def test_ranks_are_longest_paths_from_the_start() -> None:
    assert ranks(("a", "b", "c", "d"), [("a", "b"), ("b", "c"), ("a", "c")]) == {"a": 0, "d": 0, "b": 1, "c": 2}


def test_a_circle_is_refused() -> None:
    with pytest.raises(ValueError, match="cycle through 'a'"):
        layered({"a": (9.0, 9.0), "b": (9.0, 9.0)}, [("a", "b"), ("b", "a")])


def test_nothing_to_lay_out() -> None:
    assert layered({}, []) == Layout(0.0, 0.0, {}, ())


@given(
    st.lists(st.tuples(st.floats(-1e3, 1e3), st.floats(1, 100), st.sampled_from((1.0, 4.0))), min_size=1, max_size=9)
)
def test_spread_keeps_the_distances(items: list[tuple[float, float, float]]) -> None:
    wished, steps, weights = (list(column) for column in zip(*items, strict=True))
    placed = spread(wished, steps[1:], weights)
    assert all(right - left >= step - 1e-6 for (left, right), step in zip(pairwise(placed), steps[1:], strict=True))


def test_spread_leaves_what_fits() -> None:
    assert spread([0, 10, 20], [5, 5], [1, 1, 1]) == [0, 10, 20]
    assert spread([0, 0], [10], [1, 1]) == [-5, 5]


def test_median_is_weighted() -> None:
    assert median([(1, 1), (5, 1)]) == 3
    assert median([(1, 1), (5, 8), (9, 1)]) == 5
