"""Profiles, Algorithm 1, and spaces of configurations (RAGServe, sections 4.1 and 4.2)."""

from __future__ import annotations

from typing import Any

import pytest

from fineflow.adaptation import Configuration, Profile, Space
from fineflow.adaptation.mapping import pruned
from fineflow.adaptation.profile import PROMPT, asked, profile_in


@pytest.mark.parametrize(
    ("complex_", "joint", "pieces", "syntheses", "chunks"),
    [
        (False, False, 1, ("map_rerank",), (1, 3)),
        (True, False, 1, ("map_rerank",), (1, 3)),
        (False, True, 2, ("stuff",), (2, 6)),
        (True, True, 6, ("stuff", "map_reduce"), (6, 18)),
        (False, False, 3, ("map_rerank",), (3, 9)),  # however many pieces: line 1 asks for joint reasoning alone
        (True, False, 4, ("map_rerank",), (4, 12)),
    ],
)
def test_a_profile_is_mapped_by_algorithm_1(
    complex_: bool, joint: bool, pieces: int, syntheses: tuple[Any, ...], chunks: tuple[int, int]
) -> None:
    space = pruned(Profile(complex_, joint, pieces, (30, 60)))
    assert space == Space(syntheses, chunks, (40, 80))  # 4 tokens for 3 words


def test_a_space_begins_with_its_highest_configuration() -> None:
    space = list(Space(("stuff", "map_reduce"), (2, 3), (40, 80)))
    assert space[0] == Configuration(3, "map_reduce", 80)
    assert space[2:4] == [Configuration(3, "map_reduce", 40), Configuration(2, "map_reduce", 80)]
    assert space[6:] == [Configuration(3), Configuration(2)]


def test_the_middle_of_a_space() -> None:
    assert Space(("stuff", "map_reduce"), (2, 6), (40, 80)).middle == Configuration(4, "map_reduce", 60)
    assert Space(("map_rerank",), (1, 3), (40, 80)).middle == Configuration(2, "map_rerank")


def test_the_union_of_spaces_holds_all_of_them() -> None:
    spaces = [Space(("map_rerank",), (1, 3), (40, 40)), Space(("stuff", "map_reduce"), (4, 12), (50, 90))]
    found = Space.union(spaces)
    assert found == Space(("map_rerank", "stuff", "map_reduce"), (1, 12), (40, 90))
    assert {each for space in spaces for each in space if not each.intermediate_length} <= set(found)
    with pytest.raises(ValueError, match="at least one space"):
        Space.union([])


@pytest.mark.parametrize(
    ("own", "methods", "left"),
    [
        (("stuff", "map_reduce"), ("stuff", "map_rerank"), ("stuff",)),
        (("map_rerank",), ("stuff", "map_reduce"), ("stuff",)),  # the next higher one
        (("stuff",), ("map_rerank", "map_reduce"), ("map_reduce",)),
        (("stuff", "map_reduce"), ("map_rerank",), ("map_rerank",)),  # none is higher
    ],
)
def test_a_space_within_some_methods(own: tuple[Any, ...], methods: tuple[Any, ...], left: tuple[Any, ...]) -> None:
    assert Space(own, (4, 12), (40, 80)).within(methods, 9) == Space(left, (4, 9), (40, 80))


@pytest.mark.parametrize(
    ("knobs", "said"),
    [
        ({"num_chunks": 0}, "num_chunks is 0"),
        ({"num_chunks": 2, "synthesis": "refine"}, "synthesis is 'refine'; expected one of map_rerank"),
        ({"num_chunks": 2, "synthesis": "map_reduce"}, "map_reduce needs an intermediate_length"),
        ({"num_chunks": 2, "synthesis": "stuff", "intermediate_length": 9}, "stuff makes no summaries"),
    ],
)
def test_a_wrong_configuration_is_refused(knobs: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Configuration(**knobs)


@pytest.mark.parametrize(
    ("text", "profile"),
    [
        (
            '{"complexity": "low", "joint_reasoning": false, "pieces": 1, "summary_words": 20}',
            Profile(False, False, 1, (30, 60)),
        ),
        (
            'Sure:\n```{"complexity": "High", "joint_reasoning": "Yes", "pieces": "9", "summary_words": "40-900"}```',
            Profile(True, True, 6, (40, 200)),
        ),
        ('{"complexity": "high", "joint_reasoning": true, "pieces": 2}', Profile(True, True, 2, (30, 60))),
        (
            '{"complexity": "high", "joint_reasoning": true, "pieces": 2, "summary_words": 120}',
            Profile(True, True, 2, (60, 120)),
        ),
        (
            '{"complexity": "high", "joint_reasoning": true, "pieces": 2, "summary_words": [300, 400]}',
            Profile(True, True, 2, (100, 200)),
        ),
        (
            '{"complexity": "low", "joint_reasoning": "no", "pieces": 3, "summary_words": [90, 60]}',
            Profile(False, False, 3, (60, 90)),
        ),
    ],
)
def test_a_profile_is_read_out_of_text(text: str, profile: Profile) -> None:
    assert profile_in(text) == profile
    assert profile_in(profile.as_json()) == profile
    low, high = pruned(profile).intermediate_length
    assert low < high  # a range to choose from


@pytest.mark.parametrize(
    "text",
    [
        "low, no, 1",
        "[1, 2]",
        '{"complexity": "low", "joint_reasoning": false}',
        '{"complexity": "medium", "joint_reasoning": false, "pieces": 1}',
        '{"complexity": "low", "joint_reasoning": false, "pieces": true}',
        '{"complexity": "low", "joint_reasoning": false, "pieces": "many"}',
        '{"complexity": "low", "joint_reasoning": false, "pieces": 1, "summary_words": "short"}',
    ],
)
def test_what_is_no_profile_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        profile_in(text)


def test_the_prompt_tells_of_the_corpus_and_keeps_braces() -> None:
    text = asked("Is {x} old?", "Letters of 1910", 300, "\nan example {y}\n", PROMPT)
    assert "Question: Is {x} old?" in text
    assert "database_metadata = Letters of 1910" in text
    assert "chunk_size = 300" in text
    assert "an example {y}" in text
    assert "database_metadata" not in asked("Is it old?", "", None)
