"""Plans, reports and the documentation as a browser shows them: on a phone, light and dark. Needs Chromium.

With ``FINEFLOW_SCREENSHOTS=folder`` the pictures are kept there.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tools.pictures.pages import PAGES

from browser import FOUND, Browser, browser
from docs_kit import ROOT

pytestmark = pytest.mark.skipif(FOUND is None, reason="needs chromium or chrome on the path")

PHONE, WIDE = 420, 1200
OWN = ("plan", "report")


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(scope="module", params=OWN)
def page(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("page") / f"{request.param}.html"
    file.write_text(PAGES[request.param](), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documentation, built without a warning."""
    for needed in ("mkdocs", "material", "mkdocstrings"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip("needs the extra docs")
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(build, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


def shot(shown: Browser, page: Path, kind: str) -> None:
    if folder := os.environ.get("FINEFLOW_SCREENSHOTS"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        shown.screenshot(Path(folder) / f"{page.stem}-{kind}.png", whole=True)


SCROLLS = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
# Text that leaves the window, unless something around it scrolls; and text cut off by what does not scroll.
CUT = """[...document.querySelectorAll('body *')].filter(each => {
  if (each.closest('svg,[hidden]') || !each.innerText?.trim()) return false;
  if (!each.checkVisibility({visibilityProperty: true})) return false;
  const box = each.getBoundingClientRect(), style = getComputedStyle(each);
  if (!box.width || style.clip != 'auto' || style.position == 'absolute') return false;
  for (let around = each; around; around = around.parentElement)
    if (/auto|scroll/.test(getComputedStyle(around).overflowX)) return false;
  return box.right > document.documentElement.clientWidth + 1 || box.left < -1
    || (style.overflowX == 'hidden' && style.textOverflow != 'ellipsis' && each.scrollWidth > each.clientWidth + 1);
}).map(each => each.outerHTML.slice(0, 120))"""
PALE = """(() => {
  const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const rgba = colour => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data]; };
  const channel = v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const ground = each => { for (; each; each = each.parentElement) {
    const found = rgba(getComputedStyle(each).backgroundColor); if (found[3] > 250) return found; }
    return rgba('Canvas'); };
  const own = each => [...each.childNodes].some(n => n.nodeType == 3 && n.textContent.trim());
  return [...document.querySelectorAll('body *')].filter(each => {
    if (each.closest('svg,script,style,noscript,[hidden]') || !own(each)) return false;
    if (!each.checkVisibility({visibilityProperty: true, opacityProperty: true})) return false;
    const one = light(rgba(getComputedStyle(each).color)), other = light(ground(each));
    return (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05) < 4.5;
  }).map(each => each.outerHTML.slice(0, 120));
})()"""


@pytest.mark.parametrize("width", [PHONE, WIDE])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_pages_can_be_read(shown: Browser, page: Path, width: int, dark: bool) -> None:
    shown.show(page, width=width, dark=dark)
    shot(shown, page, f"{width}-{'dark' if dark else 'light'}")
    assert shown.run("innerWidth") == width
    assert not shown.run(SCROLLS)
    assert shown.run(CUT) == []
    assert shown.run(PALE) == []


def test_drawings_are_not_cut_off(shown: Browser, tmp_path: Path) -> None:
    """A graph that is larger than its frame can be scrolled to its end."""
    file = tmp_path / "plan.html"
    file.write_text(PAGES["plan"](), encoding="utf-8")
    shown.show(file, width=PHONE)
    graphs = shown.run(
        "[...document.querySelectorAll('figure')].filter(f => f.checkVisibility()).map(f => {"
        " f.scrollTo(1e6, 1e6); const own = f.getBoundingClientRect(), svg = f.querySelector('svg')"
        ".getBoundingClientRect(); return [own.right - svg.right, own.bottom - svg.bottom]; })"
    )
    assert len(graphs) == 2
    assert all(right >= -1 and bottom >= -1 for right, bottom in graphs)


def test_these_checks_can_fail(shown: Browser, tmp_path: Path) -> None:
    file = tmp_path / "broken.html"
    head = "<!doctype html><meta name='viewport' content='width=device-width'>"
    wide = "<p style='width:900px'>wide</p>"
    cut = "<p style='width:50px;overflow:hidden;white-space:nowrap'>cut off in the middle</p>"
    file.write_text(f"{head}<body>{wide}{cut}<p style='color:#bbb;background:#fff'>pale</p>", encoding="utf-8")
    shown.show(file, width=PHONE)
    assert shown.run(SCROLLS)
    assert len(shown.run(CUT)) == 2
    assert len(shown.run(PALE)) == 1


@pytest.mark.parametrize("width", [PHONE, WIDE])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", ["index", "faq", "reference"])
def test_the_documentation_can_be_read(
    site: Path, tmp_path_factory: pytest.TempPathFactory, name: str, width: int, dark: bool
) -> None:
    with browser(tmp_path_factory.mktemp("profile")) as shown:  # the site remembers the colours in the profile
        page = site / f"{name}.html"
        shown.show(page, width=width, dark=dark)
        shot(shown, page, f"{width}-{'dark' if dark else 'light'}")
        assert shown.run("document.body.dataset.mdColorScheme") == ("slate" if dark else "default")
        assert not shown.run(SCROLLS)
        assert shown.run("[...document.images].filter(i => i.checkVisibility() && !i.naturalWidth).length") == 0
        drawn = shown.run("[...document.images].filter(i => i.checkVisibility()).map(i => i.src.split('-').at(-1))")
        assert all(each.startswith("dark" if dark else "light") for each in drawn)
        assert bool(drawn) == (name == "index")


def test_search_finds_something_in_files(shown: Browser, site: Path) -> None:
    shown.show(site / "index.html", width=WIDE)
    assert shown.run("performance.getEntriesByType('resource').filter(e => /^https?:/.test(e.name)).length") == 0
    shown.run(
        "document.querySelector('[for=__search]').click(); document.querySelector('.md-search__input').focus();"
        "document.querySelector('.md-search__input').value = 'rate limits';"
        "document.querySelector('.md-search__input').dispatchEvent(new Event('input', {bubbles: true}));"
        "document.querySelector('.md-search__input').dispatchEvent(new Event('keyup', {bubbles: true}))"
    )
    titles = shown.run(
        "new Promise((found, none) => { const until = Date.now() + 20000; const look = () => {"
        " const all = [...document.querySelectorAll('.md-search-result__item')].map(e => e.innerText);"
        " if (all.length) found(all); else if (Date.now() > until) none('nothing found'); else setTimeout(look, 50); };"
        " look(); })"
    )
    assert any("Cost and rate limits" in title for title in titles)
