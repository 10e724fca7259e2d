"""Timelines of recorded runs: an object that notebooks show, a page, or a trace for Perfetto."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from fineflow.observe.chrome import chrome_trace
from fineflow.observe.timeline_page import lane_height, timeline_html
from fineflow.observe.tracks import Track, duration, lanes, rows
from fineflow.observe.verdict import compared, together


@dataclass(frozen=True)
class Timeline:
    """Recorded runs, to look at: shows itself in notebooks.

    title: heading of the page. remarks: sentences below it.
    """

    tracks: Sequence[Track]
    title: str = "Timeline"
    remarks: Sequence[str] = ()

    @property
    def verdict(self) -> str:
        """The sentence on top: how the tracks compare, as measured; "" if there is nothing to compare."""
        return together(compared(self.tracks))

    def html(self) -> str:
        """Renders one self-contained page. It loads nothing and runs no scripts."""
        return timeline_html(self.tracks, title=self.title, remarks=self.remarks)

    def json(self) -> str:
        """Returns a Chrome trace in JSON: for ui.perfetto.dev and chrome://tracing. See ``chrome_trace``."""
        return json.dumps(chrome_trace(self.tracks))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes the trace if the name ends in ``.json``, else the page. Returns the path.

        Raises: OSError if the file cannot be written.
        """
        file = Path(path)
        text = self.json() if file.suffix == ".json" else self.html()
        file.write_text(text, encoding="utf-8", errors="backslashreplace")  # labels may hold lone surrogates
        return file

    def _repr_html_(self) -> str:
        height = 190 + sum(_height(track) for track in self.tracks)
        return (
            f'<iframe srcdoc="{escape(self.html())}" style="width:100%;height:{min(height, 640)}px;border:0" '
            'title="fineflow timeline"></iframe>'
        )

    def __repr__(self) -> str:
        told = self.verdict or ", ".join(f"{track.name} {duration(track.total)}" for track in self.tracks)
        return f"<{type(self).__name__} of {len(self.tracks)} calls: {told}>"


def _height(track: Track) -> int:
    """Returns the height of a track on the page in px."""
    places = {lane: [at for at, i in enumerate(track.intervals) if i.lane == lane] for lane in lanes([track])}
    counts = [1 + max(row for _, row in rows(track.intervals, each)) for each in places.values()]
    return 90 + sum(lane_height(count)[0] + 3 for count in counts)
