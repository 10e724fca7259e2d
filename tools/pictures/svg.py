"""A few shapes of SVG, and the two sets of colours that every drawing comes in."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

FONT = "ui-sans-serif, system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"


@dataclass(frozen=True)
class Palette:
    """Colours by meaning. Backgrounds of drawings are transparent: they have to fit the page around them."""

    name: str
    ink: str
    muted: str
    faint: str
    surface: str
    stock: str
    ours: str
    on_ours: str


LIGHT = Palette("light", "#1f2328", "#59636e", "#d8dee4", "#f6f8fa", "#b3bcc6", "#0b7a75", "#ffffff")
DARK = Palette("dark", "#e6edf3", "#9aa4af", "#30363d", "#161b22", "#59636e", "#35c2b6", "#06201e")
PALETTES = (LIGHT, DARK)


class Drawing:
    """Collects shapes; ``svg()`` is the whole file. Lengths are in pixels, from the top left corner."""

    def __init__(self, width: int, height: int, title: str, palette: Palette) -> None:
        self.palette = palette
        self._head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
            f'role="img" aria-label="{escape(title)}" font-family="{FONT}"><title>{escape(title)}</title>'
        )
        self._shapes: list[str] = []

    def text(
        self, x: float, y: float, words: str, *, size: int = 13, colour: str = "", bold: bool = False, anchor: str = ""
    ) -> None:
        """Adds a line of text whose baseline is at ``y``. anchor: "middle" or "end" for another place of ``x``."""
        more = ' font-weight="600"' * bold + (f' text-anchor="{anchor}"' if anchor else "")
        fill = colour or self.palette.ink
        self._shapes.append(f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{fill}"{more}>{escape(words)}</text>')

    def box(
        self, x: float, y: float, width: float, height: float, fill: str, *, line: str = "", round: float = 3
    ) -> None:
        """Adds a rectangle. line: colour of its border."""
        border = f' stroke="{line}"' if line else ""
        place = f'x="{x:g}" y="{y:g}" width="{width:.4g}" height="{height:g}" rx="{round:g}"'
        self._shapes.append(f'<rect {place} fill="{fill}"{border}/>')

    def line(self, points: list[tuple[float, float]], colour: str, *, dashed: bool = False, head: bool = False) -> None:
        """Adds a line through points. head: with an arrow head at its end, which needs a straight last part."""
        more = ' stroke-dasharray="4 3"' * dashed
        way = " ".join(f"{x:g},{y:g}" for x, y in points)
        self._shapes.append(f'<polyline points="{way}" fill="none" stroke="{colour}" stroke-width="1.5"{more}/>')
        if head:
            (fx, fy), (x, y) = points[-2:]
            dx, dy = (x > fx) - (x < fx), (y > fy) - (y < fy)
            corners = [(x, y), (x - 7 * dx - 4 * dy, y - 7 * dy - 4 * dx), (x - 7 * dx + 4 * dy, y - 7 * dy + 4 * dx)]
            self._shapes.append(f'<polygon points="{" ".join(f"{a:g},{b:g}" for a, b in corners)}" fill="{colour}"/>')

    def svg(self) -> str:
        """Returns the file."""
        return "\n".join([self._head, *self._shapes, "</svg>"]) + "\n"
