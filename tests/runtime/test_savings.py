"""What a call saved, of the runs of functions in it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from fineflow.runtime.call.gains import Saving, saved_in

ONE, OTHER, INNER = object(), object(), object()


@pytest.mark.parametrize(
    ("savings", "seconds"),
    [
        ([], 0.0),
        ([Saving(1, 0, 1, ONE), Saving(1, 0, 1, OTHER)], 1.0),  # at the same time
        ([Saving(1, 0, 1, ONE), Saving(3, 0, 0.5, OTHER)], 2.5),
        ([Saving(1, 0, 1, ONE), Saving(1, 1, 2, OTHER)], 2.0),  # one after the other
        ([Saving(3, 0, 10, ONE), Saving(1, 2, 4, OTHER, ONE)], 4.0),  # one in the other
        ([Saving(3, 0, 10, ONE), Saving(0, 1, 6, OTHER, ONE), Saving(2, 1, 5, INNER, OTHER)], 5.0),
        ([Saving(5, 0, 10, ONE), Saving(1, 20, 21)], 6.0),  # not of a function
        ([Saving(1, 5, 5), Saving(1, 5, 5)], 2.0),
    ],
)
def test_of_those_at_the_same_time_the_last_counts(savings: Sequence[Saving], seconds: float) -> None:
    assert saved_in(savings) == seconds
