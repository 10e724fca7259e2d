"""Layered layout of a directed acyclic graph (Sugiyama, Tagawa and Toda 1981): ranks, order in ranks, positions.

Knows nothing of primitives: boxes with sizes in, positions out. Edges run downwards; an edge over several ranks gets a
bend in each of them, so that no edge crosses a box.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

GAP = 22.0  # between neighbouring boxes of a rank
BEND_GAP = 9.0  # between neighbouring bends
RANK_GAP = 30.0  # between ranks, more where many edges pass


@dataclass(frozen=True, slots=True)
class Box:
    """A placed box: top left corner and size."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Wire:
    """A placed edge: points from top to bottom, pairwise a straight line across a rank, curves between pairs."""

    source: str
    target: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """Boxes by name and edges in the given order, within ``width`` times ``height``."""

    width: float
    height: float
    boxes: Mapping[str, Box]
    wires: tuple[Wire, ...]


def ranks(nodes: Sequence[str], edges: Sequence[tuple[str, str]]) -> dict[str, int]:
    """Returns for each node the number of edges on the longest path to it.

    Raises ValueError if the edges form a cycle.
    """
    parents: dict[str, list[str]] = {name: [] for name in nodes}
    children: dict[str, list[str]] = {name: [] for name in nodes}
    for source, target in edges:
        parents[target].append(source)
        children[source].append(target)
    waiting = {name: len(above) for name, above in parents.items()}
    ready = [name for name in nodes if not waiting[name]]
    rank: dict[str, int] = {}
    for name in ready:  # grows while we walk it
        rank[name] = 1 + max((rank[parent] for parent in parents[name]), default=-1)
        for child in children[name]:
            waiting[child] -= 1
            if not waiting[child]:
                ready.append(child)
    if len(rank) < len(parents):
        raise ValueError(f"edges form a cycle through {sorted(set(parents) - set(rank))[0]!r}; expected none")
    return rank


def layered(sizes: Mapping[str, tuple[float, float]], edges: Sequence[tuple[str, str]]) -> Layout:
    """Places boxes of the given (width, height) so that none overlap and every edge runs downwards.

    Nodes of one rank keep the order of ``sizes`` unless edges require another. Raises ValueError on a cycle.
    """
    net = _Net(sizes, edges)
    net.order()
    return net.place()


@dataclass(slots=True)
class _Net:
    """The graph during layout. Bends are nodes of zero height, named by edge number and rank."""

    sizes: Mapping[str, tuple[float, float]]
    edges: Sequence[tuple[str, str]]
    layers: list[list[str]] = field(default_factory=list)
    paths: list[list[str]] = field(default_factory=list)  # per edge: source, bends, target
    above: dict[str, list[str]] = field(default_factory=dict)
    below: dict[str, list[str]] = field(default_factory=dict)
    center: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rank = ranks(tuple(self.sizes), self.edges)
        self.layers = [[] for _ in range(max(rank.values(), default=-1) + 1)]
        for name, level in rank.items():
            self._add(name, level)
        for number, (source, target) in enumerate(self.edges):
            path = [source]
            for level in range(rank[source] + 1, rank[target]):
                path.append(self._add(f"\0{number}:{level}", level))
            path.append(target)
            self.paths.append(path)
            for upper, lower in pairwise(path):
                self.below[upper].append(lower)
                self.above[lower].append(upper)

    def _add(self, name: str, level: int) -> str:
        self.layers[level].append(name)
        self.above[name], self.below[name] = [], []
        return name

    def order(self, sweeps: int = 12) -> None:
        """Barycentre heuristic: sorts each rank by its neighbours' mean position, down and up; keeps the best order."""
        best, fewest = [list(layer) for layer in self.layers], self._crossings()
        for sweep in range(sweeps):
            if not fewest:
                break
            down = sweep % 2 == 0
            for layer in self.layers if down else reversed(self.layers):
                self._sort(layer, self.above if down else self.below)
            if (crossings := self._crossings()) < fewest:
                best, fewest = [list(layer) for layer in self.layers], crossings
        self.layers = best

    def _sort(self, layer: list[str], neighbours: Mapping[str, list[str]]) -> None:
        position = {name: index for row in self.layers for index, name in enumerate(row)}

        def barycentre(name: str) -> float:
            near = neighbours[name]
            return sum(position[other] for other in near) / len(near) if near else position[name]

        layer.sort(key=barycentre)

    def _crossings(self) -> int:
        total = 0
        for upper, lower in pairwise(self.layers):
            position = {name: index for index, name in enumerate(lower)}
            ends = [sorted(position[other] for other in self.below[name]) for name in upper]
            seen: list[int] = []
            for group in ends:
                total += sum(1 for end in group for before in seen if before > end)
                seen += group
        return total

    def place(self) -> Layout:
        self._place_across()
        tops, heights = self._place_down()
        boxes = {}
        for level, layer in enumerate(self.layers):
            for name in layer:
                if name in self.sizes:
                    width, height = self.sizes[name]
                    boxes[name] = Box(self.center[name] - width / 2, tops[level], width, height)
        level_of = {name: level for level, layer in enumerate(self.layers) for name in layer}
        bands = {name: (tops[level], tops[level] + heights[level]) for name, level in level_of.items()}
        width = max((self.center[name] + self._width(name) / 2 for name in self.center), default=0.0)
        height = tops[-1] + heights[-1] if tops else 0.0
        return Layout(width, height, {name: boxes[name] for name in self.sizes}, self._wires(boxes, bands))

    def _width(self, name: str) -> float:
        return self.sizes[name][0] if name in self.sizes else 2.0

    def _place_down(self) -> tuple[list[float], list[float]]:
        heights = [max((self.sizes[n][1] for n in layer if n in self.sizes), default=0.0) for layer in self.layers]
        tops, y = [], 0.0
        for layer, height in zip(self.layers, heights, strict=True):
            tops.append(y)
            y += height + RANK_GAP + min(1.5 * sum(len(self.below[name]) for name in layer), RANK_GAP)
        return tops, heights

    def _place_across(self, sweeps: int = 24) -> None:
        """Pulls every node towards its neighbours, as far as the order in its rank allows."""
        for layer in self.layers:
            x = 0.0
            for name in layer:
                self.center[name] = x + self._width(name) / 2
                x += self._width(name) + GAP
        for sweep in range(sweeps):
            down = sweep % 2 == 0
            both = sweep >= sweeps - 4
            for layer in self.layers if down else reversed(self.layers):
                wished = [self._wish(name, up=down or both, low=not down or both) for name in layer]
                weights = [1.0 if name in self.sizes else 4.0 for name in layer]  # long edges should run straight
                steps = [self._step(left, right) for left, right in pairwise(layer)]
                self.center.update(zip(layer, spread(wished, steps, weights), strict=True))
        for _ in range(8):
            self._straighten()
        for layer in self.layers:
            self._gather(layer)
        shift = min((self.center[name] - self._width(name) / 2 for name in self.center), default=0.0)
        self.center = {name: x - shift for name, x in self.center.items()}

    def _gather(self, layer: Sequence[str]) -> None:
        """Moves boxes without edges next to their neighbours in the rank, because nothing else places them."""
        alone = [not self.above[name] and not self.below[name] for name in layer]
        first = alone.index(False) if False in alone else 0
        for i in range(first + 1, len(layer)):
            if alone[i]:
                self.center[layer[i]] = self.center[layer[i - 1]] + self._step(layer[i - 1], layer[i])
        for i in range(first - 1, -1, -1):
            self.center[layer[i]] = self.center[layer[i + 1]] - self._step(layer[i], layer[i + 1])

    def _straighten(self) -> None:
        """Moves the bends of a long edge, and chains of boxes, to one x position, as far as neighbours leave room."""
        beside = {}
        for layer in self.layers:
            for left, name, right in zip([None, *layer], layer, [*layer[1:], None], strict=False):
                beside[name] = left, right
        for column in (*self._chains(), *(path[1:-1] for path in self.paths)):
            run: list[str] = []
            low, high = -math.inf, math.inf
            for name in column:
                left, right = beside[name]
                least = self.center[left] + self._step(left, name) if left else -math.inf
                most = self.center[right] - self._step(name, right) if right else math.inf
                if run and (max(low, least) > min(high, most)):
                    self._align(run, low, high)
                    run, low, high = [], -math.inf, math.inf
                run.append(name)
                low, high = max(low, least), min(high, most)
            self._align(run, low, high)

    def _align(self, run: Sequence[str], low: float, high: float) -> None:
        if run:
            ends = [*self.above[run[0]], *self.below[run[-1]], *run]
            x = median([(self.center[name], 1) for name in ends])
            self.center.update(dict.fromkeys(run, min(max(x, low), high)))

    def _chains(self) -> list[list[str]]:
        """Returns vertical chains of boxes, each the only direct successor of the one above and vice versa."""
        down: dict[str, list[str]] = {}
        up: dict[str, list[str]] = {}
        for path in self.paths:
            if len(path) == 2:
                down.setdefault(path[0], []).append(path[1])
                up.setdefault(path[1], []).append(path[0])
        link = {name: to[0] for name, to in down.items() if len(to) == 1 and len(up[to[0]]) == 1}
        chains = []
        for name in set(link) - set(link.values()):
            chain = [name]
            while chain[-1] in link:
                chain.append(link[chain[-1]])
            chains.append(chain)
        return sorted(chains)

    def _wish(self, name: str, *, up: bool, low: bool) -> float:
        """Returns the weighted median of the neighbours' positions; unlike the mean it lets edges run straight."""
        near = (self.above[name] if up else []) + (self.below[name] if low else [])
        if not near:
            return self.center[name]
        bends = [(name not in self.sizes) + (other not in self.sizes) for other in near]
        return median([(self.center[other], (2, 1, 8)[bend]) for other, bend in zip(near, bends, strict=True)])

    def _step(self, left: str, right: str) -> float:
        gap = GAP if left in self.sizes and right in self.sizes else GAP / 2
        gap = BEND_GAP if left not in self.sizes and right not in self.sizes else gap
        return (self._width(left) + self._width(right)) / 2 + gap

    def _wires(self, boxes: Mapping[str, Box], bands: Mapping[str, tuple[float, float]]) -> tuple[Wire, ...]:
        leave = self._ports([path[:2] for path in self.paths], boxes)
        enter = self._ports([path[:-3:-1] for path in self.paths], boxes)
        wires = []
        for path, start, end in zip(self.paths, leave, enter, strict=True):
            source, target = boxes[path[0]], boxes[path[-1]]
            points = [(start, source.y + source.height), (start, bands[path[0]][1])]
            for bend in path[1:-1]:
                points += [(self.center[bend], y) for y in bands[bend]]
            points += [(end, bands[path[-1]][0]), (end, target.y)]
            wires.append(Wire(path[0], path[-1], tuple(points)))
        return tuple(wires)

    def _ports(self, ends: Sequence[Sequence[str]], boxes: Mapping[str, Box]) -> list[float]:
        """Returns the x position at which each edge touches its box: side by side, in the order of the other ends."""
        ports = [0.0] * len(ends)
        for name, box in boxes.items():
            mine = [index for index, end in enumerate(ends) if end[0] == name]
            mine.sort(key=lambda index: self.center[ends[index][1]])
            step = min(14.0, (box.width - 16) / max(len(mine), 1))
            for place, index in enumerate(mine):
                ports[index] = self.center[name] + (place - (len(mine) - 1) / 2) * step
        return ports


def median(weighted: Sequence[tuple[float, float]]) -> float:
    """Returns the weighted median of (value, weight) pairs; the midpoint if it falls between two values."""
    ordered = sorted(weighted)
    half, total = sum(weight for _, weight in ordered) / 2, 0.0
    for index, (value, weight) in enumerate(ordered):
        total += weight
        if total == half and index + 1 < len(ordered):
            return (value + ordered[index + 1][0]) / 2
        if total > half:
            return value
    return ordered[-1][0]


def spread(wished: Sequence[float], steps: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Returns the positions nearest to ``wished`` (weighted least squares), at least ``steps[i]`` from i to i + 1.

    Isotonic regression by pooling adjacent violators, with the steps subtracted.
    """
    offsets = [0.0]
    for step in steps:
        offsets.append(offsets[-1] + step)
    pools: list[tuple[float, float, int]] = []  # mean, weight, count
    for wish, offset, weight in zip(wished, offsets, weights, strict=False):
        mean, total, count = wish - offset, weight, 1
        while pools and pools[-1][0] > mean:
            before, w, n = pools.pop()
            mean, total, count = (before * w + mean * total) / (w + total), w + total, n + count
        pools.append((mean, total, count))
    flat = [mean for mean, _, count in pools for _ in range(count)]
    return [mean + offset for mean, offset in zip(flat, offsets, strict=False)]
