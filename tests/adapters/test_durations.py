"""What component calls took lately belongs to the component, not to its address."""

from fineflow.adapters.core import durations


class Component:
    pass


class Slots:
    __slots__ = ()


def test_a_quick_component_is_left_to_stock() -> None:
    component = Component()
    assert not durations.quick(component, "invoke")
    durations.observe(component, "invoke", 0.0001, ahead=False)
    assert durations.quick(component, "invoke")
    assert not durations.quick(component, "ainvoke")


def test_a_cold_first_call_does_not_make_a_component_slow() -> None:
    component = Component()
    for seconds in (2.0, 0.0001):
        durations.observe(component, "invoke", seconds, ahead=False)
    assert durations.quick(component, "invoke")


def test_a_new_component_at_the_same_address_is_unknown() -> None:
    seen = set()
    for _ in range(1000):  # Python gives an address out again at once
        component = Component()
        seen.add(id(component))
        assert not durations.quick(component, "invoke")
        durations.observe(component, "invoke", 0.0001, ahead=False)
        del component
    assert len(seen) < 1000


def test_components_made_for_each_request_do_not_push_out_others() -> None:
    kept = Component()
    durations.observe(kept, "invoke", 0.0001, ahead=False)
    in_their_places = []  # so that Python does not give their addresses out again
    for _ in range(3):
        made = [Component() for _ in range(durations._MOST // 2)]
        for each in made:
            durations.observe(each, "invoke", 0.0001, ahead=False)
        del made, each
        in_their_places += [Component() for _ in range(durations._MOST)]
    assert durations.quick(kept, "invoke")


def test_what_ran_ahead_counts_queues_as_well() -> None:
    component = Component()
    durations.observe(component, "invoke", 0.01, ahead=True)
    assert durations.quick(component, "invoke")
    durations.observe(component, "invoke", 0.003, ahead=False)
    assert not durations.quick(component, "invoke")


def test_components_without_weak_references() -> None:
    component = Slots()
    durations.observe(component, "invoke", 0.0001, ahead=False)
    assert durations.quick(component, "invoke")


def test_means_follow_what_changes() -> None:
    component = Component()
    for took in (0.1, *[0.0001] * 20):
        durations.observe(component, "invoke", took, ahead=False)
    assert durations.quick(component, "invoke")
