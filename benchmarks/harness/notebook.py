"""What the notebooks use: virtual seconds of a call, comparisons of schemes, and pictures that show themselves."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from tools.pictures.svg import LIGHT, Drawing

from benchmarks.harness.experiment import ALONE, Experiment, measure
from benchmarks.harness.setting import device
from fineflow.testing import virtual

T = TypeVar("T")


def seconds(call: Callable[[], Coroutine[Any, Any, T]]) -> tuple[T, float]:
    """Returns what a coroutine function returns, and the virtual seconds that it took."""
    return apart(lambda: tuple(virtual.run(call())))


def compared(
    app: str,
    schemes: Sequence[str] = ("stock", "tuned", "fineflow"),
    *,
    on: str = "emulated",
    load: str = ALONE,
    requests: int = 1,
) -> Comparison:
    """Runs an application under some schemes, in virtual time. load: as ``--rates`` of ``python -m benchmarks run``."""
    given = [Experiment(app, scheme, load, device(on), requests, (0,)) for scheme in schemes]
    return Comparison(app, [apart(lambda each=each: measure(each)) for each in given])  # type: ignore[misc]


def apart(call: Callable[[], Any]) -> Any:
    """Returns what a call returns, made in a thread of its own: a notebook's thread has an event loop already."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


@dataclass(frozen=True)
class Comparison:
    """Figures of one application under some schemes, as a chart with its limit."""

    app: str
    results: Sequence[Mapping[str, Any]]

    def __repr__(self) -> str:
        first = self.results[0]
        return "\n".join(
            f"{each['scheme']}: {each['mean']:.3f} s, {first['mean'] / each['mean']:.2f} times, "
            f"{100 * each['achieved']:.1f} % of the limit"
            for each in self.results
        )

    @property
    def same_answers(self) -> bool:
        """True if all schemes gave the same answers."""
        return len({each["answers"] for each in self.results}) == 1

    def _repr_svg_(self) -> str:
        bars = {each["scheme"]: each["mean"] for each in self.results}
        return Bars({**bars, "limit": self.results[0]["bound"]}, f"{self.app}, mean seconds")._repr_svg_()


@dataclass(frozen=True)
class Bars:
    """A bar for each figure; fineflow's and other figures have different colours."""

    figures: Mapping[str, float]
    title: str
    unit: str = "s"

    def _repr_svg_(self) -> str:
        width, left, row = 720, 210, 26
        drawing = Drawing(width, 44 + row * len(self.figures), self.title, LIGHT)
        drawing.text(0, 16, self.title, size=14, bold=True)
        scale = (width - left - 70) / max(self.figures.values())
        for place, (name, value) in enumerate(self.figures.items()):
            y = 32 + place * row
            fill = LIGHT.ours if name.startswith("fineflow") else LIGHT.faint if name == "limit" else LIGHT.stock
            drawing.text(left - 10, y + 12, name, size=12, anchor="end")
            drawing.box(left, y, value * scale, 16, fill, round=2)
            drawing.text(left + value * scale + 6, y + 12, f"{value:.2f} {self.unit}", size=11, colour=LIGHT.muted)
        return drawing.svg()
