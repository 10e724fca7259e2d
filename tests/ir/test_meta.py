"""``META`` lists what is told in ``Primitive.meta``, no less and no more."""

from __future__ import annotations

import re
from pathlib import Path

import fineflow
from fineflow.ir.meta import META

READ = re.compile(r"""\.meta(?:\.get\(|\[)\s*["'](\w+)["']""")


def test_the_keys_that_are_read_are_those_listed() -> None:
    sources = (path.read_text() for path in Path(fineflow.__file__).parent.rglob("*.py"))
    read = {key for source in sources for key in READ.findall(source)}
    assert read == set(META)
