"""A fixture that tests of waiting and of handing over share."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

_SECONDS = 10.0  # only a failing test waits this long


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """A loop on a thread of its own, which is not the runtime's."""
    made = asyncio.new_event_loop()
    thread = threading.Thread(target=made.run_forever)
    thread.start()
    yield made
    made.call_soon_threadsafe(made.stop)
    thread.join(_SECONDS)
    made.close()
