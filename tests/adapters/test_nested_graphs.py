"""What is known of a value that is one of several: what is known of each."""

from __future__ import annotations

import pytest

from fineflow.adapters.core.builder import Leaf, Record, Symbol
from fineflow.adapters.core.nested_graphs import joined
from fineflow.ir import Ref

X, Y, REST = (Leaf(Ref(name)) for name in ("x", "y", "rest"))
CLOSED = Record({"a": X, "b": Y})


@pytest.mark.parametrize(
    ("other", "keys", "closed"),
    [
        (Record({"a": Y, "b": X}), ["a", "b"], True),
        (Record({"a": Y, "b": X}, rest=REST), ["a", "b"], False),
        (Record({"a": Y}), ["a"], False),
        (Record({"a": Y, "b": X, "c": X}), ["a", "b"], False),
    ],
    ids=["the same keys", "and maybe others", "one less", "one more"],
)
def test_keys_that_each_has_are_known_and_others_are_in_the_rest(other: Symbol, keys: list[str], closed: bool) -> None:
    for values in ([CLOSED, other], [other, CLOSED]):
        found = joined("branch", values)
        assert isinstance(found, Record)
        assert found.fields == {key: Leaf(Ref("branch", key)) for key in keys}
        assert found.rest is None if closed else found.rest is not None and found.rest.ref == Ref("branch")


def test_of_a_value_that_may_be_no_dict_no_key_is_known() -> None:
    found = joined("branch", [CLOSED, X])
    assert isinstance(found, Leaf) and found.ref == Ref("branch")
