"""What recorded calls say of an app: its steps, their sizes, and what each waits for."""

from __future__ import annotations

from tests.capacity import apps

import fineflow
from fineflow.backends.emulated import LLMProfile
from fineflow.capacity.example_calls import of_calls
from fineflow.capacity.workload import CallShape, WorkStep, longest_path


def test_the_steps_of_an_optimized_call() -> None:
    work = apps.recorded_workload(fineflow.optimize(apps.rag(), strict=True), [apps.asked(i) for i in range(3)])
    assert set(work.profiles) == {"llm", "embedder", "reranker"}
    for shape in work.shapes:
        kinds = [(step.engine, step.items, step.decoded > 0) for step in shape.steps if step.engine]
        assert sorted(kinds) == [("embedder", 1, False), ("llm", 0, True), ("llm", 0, True), ("reranker", 8, False)]
        at = {step.engine or "search": place for place, step in enumerate(shape.steps) if step.decoded != 1}
        assert shape.answer == at["llm"] == len(shape.steps) - 1
        assert shape.steps[at["llm"]].decoded == 30
        assert {place for place, _ in shape.steps[at["llm"]].after} >= {at["reranker"]}
        classify = next(step for step in shape.steps if step.decoded == 1)
        assert not classify.after


def test_what_only_happened_to_end_earlier_is_not_waited_for() -> None:
    """The classification ends before the reranker is asked: the plan says that nothing of the search needs it."""
    chain = fineflow.optimize(apps.rag(), strict=True)
    [shape] = apps.recorded_workload(chain, [apps.asked(1), apps.asked(2)]).shapes
    classify = next(place for place, step in enumerate(shape.steps) if step.decoded == 1)
    assert [place for place, step in enumerate(shape.steps) for before, _ in step.after if before == classify] == [
        shape.answer
    ]


def test_a_call_as_it_is_gives_steps_too() -> None:
    work = apps.recorded_workload(apps.rag(), [apps.asked(1), apps.asked(2)])
    assert {step.engine for step in work.shapes[0].steps} >= {"llm", "embedder", "reranker"}


def test_the_same_input_again_finds_no_more_cached_than_the_first_time() -> None:
    chain = fineflow.optimize(apps.rag(), strict=True)
    long = {"question": " ".join(f"word{i}" for i in range(200))}
    cold, again = apps.recordings(chain, [long, long])
    computed = [
        sum(i.tokens.prompt - i.tokens.cached for i in call.intervals if i.tokens is not None) for call in (cold, again)
    ]
    [shape] = of_calls(cold, [again], {}, again=True).shapes
    assert sum(step.prompt - step.cached for step in shape.steps) == computed[0] > 2 * computed[1]


def test_a_store_that_embeds_the_query_first_waits_for_its_vector() -> None:
    chain = fineflow.optimize(apps.rag(), strict=True)
    [shape] = apps.recorded_workload(chain, [apps.asked(1), apps.asked(2)]).shapes
    vector = next(place for place, step in enumerate(shape.steps) if step.engine == "embedder")
    search = next(step for step in shape.steps if not step.engine)
    assert search.after == ((vector, 1.0),) and round(search.seconds, 6) == apps.LATENCY


def test_the_longest_path_counts_the_part_of_an_answer_that_is_needed() -> None:
    profiles = {"llm": LLMProfile(0.1, 0.0, 0.0)}
    steps = (WorkStep("list", "llm", prompt=1, decoded=10), WorkStep("use", seconds=2.0, after=((0, 0.5),), gap=0.25))
    assert [(step.name, round(s, 6)) for step, s in longest_path(CallShape(steps), profiles)] == [
        ("list", 0.5),
        ("use", 2.25),
    ]
