"""Progress of several nodes, merged from the states of their agents."""

from __future__ import annotations

from memtopo.plans.progress import CountedProgress, PhasePart, PhaseState
from memtopo.run.nodes.driver import NodesProgress


def state(name: str, done: int, total: int, *, in_bytes: bool = False) -> PhaseState:
    return PhaseState(name, in_bytes, PhasePart(done, total), {}, 1.0)


def shown(*updates: tuple[str, PhaseState | None]) -> PhaseState | None:
    """State that is shown after some updates."""
    counted = CountedProgress()
    nodes = NodesProgress(counted)
    for node, found in updates:
        nodes.update(node, found)
    return counted.state


def test_steps_are_the_sums_of_the_nodes() -> None:
    found = shown(
        ("a", state("map", 3, 10)), ("b", state("map", 2, 20)), ("a", state("map", 7, 10)), ("b", state("map", 2, 30))
    )
    assert found
    assert (found.name, found.whole) == ("map", PhasePart(9, 40))
    assert found.processes == {"a": PhasePart(7, 10), "b": PhasePart(2, 30)}


def test_bytes_of_a_node_that_enters_later_are_added() -> None:
    a, b = state("verify", 30, 100, in_bytes=True), state("verify", 5, 50, in_bytes=True)
    found = shown(("a", a), ("b", b))
    assert found
    assert (found.in_bytes, found.whole) == (True, PhasePart(35, 150))
    assert found.processes == {"a": PhasePart(30, 100), "b": PhasePart(5, 50)}


def test_a_node_that_is_still_in_the_phase_before_does_not_bring_it_back() -> None:
    found = shown(
        ("a", state("create", 5, 5)), ("b", state("create", 2, 5)), ("a", state("map", 1, 9)),
        ("b", state("create", 4, 5)),
    )  # fmt: skip
    assert found
    assert (found.name, found.whole) == ("map", PhasePart(1, 9))


def test_nothing_is_shown_once_no_node_is_in_a_phase() -> None:
    assert shown(("a", state("map", 1, 1)), ("b", state("map", 1, 1)), ("a", None))
    assert shown(("a", state("map", 1, 1)), ("b", state("map", 1, 1)), ("a", None), ("b", None)) is None
