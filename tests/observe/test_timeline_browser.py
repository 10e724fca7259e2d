"""The timeline as a browser shows it: wide, on a phone, light and dark. Skipped where there is no Chromium.

With ``FINEFLOW_SCREENSHOTS=folder`` the pictures are kept there.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from browser import FOUND, Browser, browser
from fineflow.observe import Interval, Timeline, Track
from fineflow.observe.tracks import OWN

pytestmark = pytest.mark.skipif(FOUND is None, reason="needs chromium or chrome on the path")

PHONE, WIDE = 420, 1200


def side(name: str, at_once: int, against: str = "") -> Track:
    """One model that writes a list of queries, then 12 searches and answers, so many at once."""
    work = [Interval("emulated-llm", "queries/llm.decode", 0.0, 0.0, 0.6)]
    for number in range(12):
        start = 0.6 + 0.25 * (number // at_once)
        found = f"question {number + 1}/context/retriever.search"
        work.append(Interval("a-store-with-a-rather-long-name", found, start, start + 0.01, start + 0.05, batch=number))
        answered = (f"question {number + 1}/llm.decode", start + 0.05, start + 0.06, start + 0.25)
        work.append(Interval("emulated-llm", *answered, note="began 10 ms before stock asked for it"))
    end = max(i.end for i in work)
    work.append(Interval(OWN, "join", end, end, end + 0.02))
    return Track(name, work, 0.0, end + 0.03, against=against)


def few() -> Timeline:
    return Timeline(
        [
            side("stock: RunnableSequence.invoke", 1),
            side("fineflow: RunnableSequence.invoke", 4, "stock: RunnableSequence.invoke"),
        ]
    )


def many() -> Timeline:
    """Two sides of 500 steps in four lanes."""
    tracks = []
    for name, wide in (("stock", 4), ("fineflow", 60)):
        work = []
        for number in range(500):
            start = 0.1 * (number // wide)
            lane = f"engine-{number % 4}"
            work.append(Interval(lane, f"question {number}/llm.decode", start, start + 0.02, start + 0.1))
        tracks.append(Track(name, work, against="stock" if tracks else ""))
    return Timeline(tracks, "500 steps")


PAGES = {"few": few, "many": many}


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(params=PAGES)
def page(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return PAGES[request.param]().save(tmp_path / f"{request.param}.html")


def shot(shown: Browser, page: Path, what: str) -> Path:
    folder = Path(os.environ.get("FINEFLOW_SCREENSHOTS") or page.parent)
    return shown.screenshot(folder / f"{page.stem}-{what}.png")


def first_pixel(png: Path) -> tuple[int, ...]:
    """Returns red, green and blue of the pixel at the top left."""
    data, place, packed = png.read_bytes(), 8, b""
    while place < len(data):
        (length,), kind = struct.unpack(">I", data[place : place + 4]), data[place + 4 : place + 8]
        packed += data[place + 8 : place + 8 + length] if kind == b"IDAT" else b""
        place += 12 + length
    return tuple(zlib.decompress(packed)[1:4])  # after the filter of the first row


OVERFLOWING = """[...document.querySelectorAll('.bar')].filter(bar => {
  const run = bar.querySelector('.run').getBoundingClientRect(), name = bar.querySelector('.run span');
  const box = name.getBoundingClientRect();
  if (getComputedStyle(name).display == 'none') return false;
  return box.left < run.left - 1 || box.right > run.right + 1
    || (name.scrollWidth > name.clientWidth + 1 && getComputedStyle(name).overflow != 'hidden');
}).length"""
NAMELESS = """[...document.querySelectorAll('.bar')].filter(bar =>
  !bar.querySelector('bdi').textContent.trim() || !bar.getAttribute('aria-label') || bar.tabIndex != 0).length"""
OUTSIDE = """[...document.querySelectorAll('body *')].filter(each => {
  const box = each.getBoundingClientRect();
  return box.width && (box.left < -1 || box.right > document.documentElement.clientWidth + 1) && !each.closest('bdi');
}).length"""


@pytest.mark.parametrize("width", [PHONE, WIDE])
def test_nothing_is_outside_of_its_place(shown: Browser, page: Path, width: int) -> None:
    shown.show(page, width=width)
    shot(shown, page, f"{width}-light")
    assert shown.run("document.querySelectorAll('.bar').length") == sum(
        len(t.intervals) for t in PAGES[page.stem]().tracks
    )
    assert shown.run(NAMELESS) == 0
    assert shown.run(OVERFLOWING) == 0
    assert shown.run("document.documentElement.clientWidth") == width
    assert shown.run("document.documentElement.scrollWidth") <= width
    assert shown.run("[...document.querySelectorAll('.scroll')].every(s => s.scrollWidth <= s.clientWidth + 1)")
    assert shown.run(OUTSIDE) == 0


def test_these_checks_can_fail(shown: Browser, tmp_path: Path) -> None:
    """The same page with its rules broken: names that do not stay in their bars, and a row that is too wide."""
    text, broken = few().html(), tmp_path / "broken.html"
    spill = "<style>.run span{overflow:visible!important;width:900px}.run{overflow:visible!important}</style></body>"
    broken.write_text(text.replace("</body>", f"{spill}"), encoding="utf-8")
    shown.show(broken, width=PHONE)
    assert shown.run(OVERFLOWING) > 0
    broken.write_text(text.replace("</body>", "<div style='width:700px'>wide</div></body>"), encoding="utf-8")
    shown.show(broken, width=PHONE)
    assert shown.run(OUTSIDE) > 0


def test_dark_is_dark(shown: Browser, page: Path) -> None:
    shown.show(page, width=WIDE)
    light = first_pixel(shot(shown, page, "wide"))
    shown.show(page, width=WIDE, dark=True)
    dark = first_pixel(shot(shown, page, "wide-dark"))
    assert min(light) > 240
    assert max(dark) < 60
    shown.show(page, width=PHONE, dark=True)
    shot(shown, page, "phone-dark")


CONTRAST = """(() => {
  const channel = v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const rgb = colour => { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    return canvas.getImageData(0, 0, 1, 1).data; };
  const light = colour => { const [r, g, b] = rgb(colour);
    return 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b); };
  return Math.min(...[...document.querySelectorAll('.run')].map(run => {
    const style = getComputedStyle(run), one = light(style.color), other = light(style.backgroundColor);
    return (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05); }));
})()"""


@pytest.mark.parametrize("dark", [False, True])
def test_names_can_be_read_on_their_bars(shown: Browser, tmp_path: Path, dark: bool) -> None:
    shown.show(few().save(tmp_path / "few.html"), width=WIDE, dark=dark)
    assert shown.run(CONTRAST) >= 4.5


def test_names_are_cut_at_their_end(shown: Browser, tmp_path: Path) -> None:
    """The beginning of a cut name is inside its bar, and its end is not."""
    work = [Interval("llm", f"a rather long way to question {n}", n / 40, n / 40, (n + 1) / 40) for n in range(40)]
    shown.show(Timeline([Track("cut", work)]).save(tmp_path / "cut.html"), width=WIDE)
    places = """[...document.querySelectorAll('.run')].map(run => {
      const box = run.getBoundingClientRect(), name = run.querySelector('bdi').getBoundingClientRect();
      return [name.left - box.left, box.right - name.right, name.width - box.width]; })"""
    for before, after, more in shown.run(places):
        assert more > 0, "the name fits: nothing is tested"
        assert before >= 0
        assert after < 0
    shot(shown, tmp_path / "cut.html", "names")


def test_names_of_narrow_bars_are_behind_them_where_there_is_room(shown: Browser, tmp_path: Path) -> None:
    """A whole name, beside its bar and before the next one; in the bar where the next one is too near."""
    work = [Interval("store", f"search {n}", n / 4, n / 4, n / 4 + 0.01) for n in range(4)]
    work += [Interval("llm", f"answer {n}", n / 40, n / 40, (n + 1) / 40) for n in range(40)]
    shown.show(Timeline([Track("narrow", work, 0.0, 1.0)]).save(tmp_path / "narrow.html"), width=WIDE)
    boxes = "(each => (b => [b.left, b.right])(each.getBoundingClientRect()))"
    bars, names = (
        shown.run(f"[...document.querySelectorAll('.row')[0].querySelectorAll('{what}')].map{boxes}")
        for what in (".bar", ".behind bdi")
    )
    assert len(bars) == len(names) == 4
    for (_, end), (left, right), (following, _) in zip(bars, names, [*bars[1:], [WIDE, WIDE]], strict=True):
        assert end <= left < right <= following
        assert right - left > 40  # the whole name
    assert shown.run("document.querySelectorAll('.behind').length") == 4, "the answers follow each other"
    drawn = "[...document.querySelectorAll('.run span')].filter(s => getComputedStyle(s).display != 'none').length"
    assert shown.run(drawn) == 40
    shot(shown, tmp_path / "narrow.html", "names")


def test_lanes_have_the_same_order_and_colours(shown: Browser, page: Path) -> None:
    shown.show(page, width=WIDE)
    lanes = shown.run(
        "[...document.querySelectorAll('section')].map(s => [...s.querySelectorAll('.row')].slice(0, -1).map(row =>"
        " [row.querySelector('.lane').textContent, row.querySelector('.plot').style.getPropertyValue('--c')]))"
    )
    assert len(lanes) == 2
    assert lanes[0] == lanes[1]
    assert len({colour for _, colour in lanes[0]}) == len(lanes[0])


def test_details_come_by_pointing_and_by_focus_and_fit_the_window(shown: Browser, page: Path) -> None:
    shown.show(page, width=PHONE)
    assert shown.run("[...document.querySelectorAll('.tip')].every(t => getComputedStyle(t).display == 'none')")
    shown.run("[...document.querySelectorAll('.bar')].at(-1).focus()")
    tip = "[...document.querySelectorAll('.tip')].filter(t => getComputedStyle(t).display != 'none')"
    assert shown.run(f"{tip}.length") == 1
    left, right, bottom = shown.run(f"(b => [b.left, b.right, b.bottom])({tip}[0].getBoundingClientRect())")
    height = shown.run("innerHeight")
    assert left >= 0
    assert right <= PHONE
    assert bottom <= height
    assert "ran " in shown.run(f"{tip}[0].innerText")
    shot(shown, page, "details")
    shown.run("document.activeElement.blur(); scrollTo(0, 0)")
    x, y = shown.run("(b => [b.left + b.width / 2, b.top + 5])(document.querySelector('.bar').getBoundingClientRect())")
    shown.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    assert shown.run(f"{tip}.length") == 1


def test_zooming_shows_more_and_scrolls_inside_only(shown: Browser, tmp_path: Path) -> None:
    page = many().save(tmp_path / "many.html")
    shown.show(page, width=PHONE)
    named = "[...document.querySelectorAll('.run span')].filter(s => getComputedStyle(s).display != 'none').length"
    before = shown.run(named)
    shown.run("document.getElementById('z16').click()")
    assert shown.run(named) > before
    assert shown.run("document.documentElement.scrollWidth") <= PHONE
    assert shown.run("document.querySelector('.scroll').scrollWidth") > 10 * PHONE
    shot(shown, page, "zoomed")
