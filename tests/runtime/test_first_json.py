"""JSON is found in what models write, and hostile texts cost no more than their length."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from fineflow.adaptation.profile import profile_in
from fineflow.adapters.semantic.transforms import JsonPath
from fineflow.runtime.first_json import MOST_STARTS, first_object, parsed_json

LONG = 60_000


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1}', {"a": 1}),
        (' "text" ', "text"),
        ('Sure!\n```json\n\n{"a": [1]}\n```\nDone.', {"a": [1]}),
        ("```one line``` then\n```\n[1, 2]\n```", [1, 2]),
        ('```\nno end {"a": 1}', {"a": 1}),
        ('so {x} is {"a": {"b": 2}} and {"c": 3}', {"a": {"b": 2}}),
        ("a [broken, list] and [ -1 ]", [-1]),
        ("{not} [] then", []),
    ],
)
def test_finds_the_first_value(text: str, value: Any) -> None:
    assert parsed_json(text) == value


def test_finds_the_first_object() -> None:
    assert first_object('[1] {x} [{"a": 1}]') == {"a": 1}


@pytest.mark.parametrize("text", ["{" * LONG, '{"a' * LONG, '["x",' * LONG, "[1 " * LONG, "```" + "\n" * LONG])
def test_a_hostile_text_is_read_a_bounded_number_of_times(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tried, read = list[int](), json.JSONDecoder.raw_decode

    def counted(decoder: json.JSONDecoder, text: str, idx: int = 0) -> Any:
        tried.append(idx)
        return read(decoder, text, idx)

    monkeypatch.setattr(json.JSONDecoder, "raw_decode", counted)
    for find in (parsed_json, first_object):
        del tried[:]
        with pytest.raises(ValueError, match=r"expected .*JSON") as raised:
            find(text)
        assert len(tried) <= MOST_STARTS + 2
        assert len(str(raised.value)) < 200


def test_what_is_nested_too_deeply_is_refused_as_such() -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        parsed_json("[" * LONG)
    with pytest.raises(ValueError, match="nested too deeply"):
        first_object('{"a":' * LONG)


def test_an_error_shows_the_beginning_of_the_text() -> None:
    with pytest.raises(ValueError, match=re.escape("expected JSON with")) as raised:
        profile_in("I would say " * LONG)
    assert len(str(raised.value)) < 500


def test_only_short_texts_are_read_on_the_loop() -> None:
    assert JsonPath("a").quick('{"a": 1}')
    assert JsonPath("a").quick({"a": 1})
    assert not JsonPath("a").quick("{" * LONG)
