"""Hooks of a run, and the counts of its phases."""

from __future__ import annotations

from memtopo.plans.progress import CountedProgress, PhasePart, Progress, SafeProgress


class Failing(Progress):
    """Hooks of a caller that fail at the first step of a phase."""

    def __init__(self) -> None:
        self.called = 0

    def advance(self, steps: int, process: str = "") -> None:
        del steps, process
        self.called += 1
        raise OSError("the terminal is gone")


def test_hooks_that_failed_are_called_no_more_and_the_others_go_on() -> None:
    failing, counted = Failing(), CountedProgress(lambda: 0.0)
    hooks = SafeProgress(failing, counted)
    hooks.phase("create", 3)
    hooks.advance(1)
    hooks.advance(1)
    assert counted.state
    assert (failing.called, counted.state.whole) == (1, PhasePart(2, 3))


def test_steps_are_counted_for_the_processes_that_take_part_in_the_phase() -> None:
    """One that adds steps takes part from then on. Nothing is added to a phase of bytes."""
    counted = CountedProgress(lambda: 0.0)
    hooks = SafeProgress(counted)
    hooks.phase("create", 2, {"a": 2, "idle": 0})
    hooks.extend(3, "b")
    for process in ("a", "b", "b", "other"):
        hooks.advance(1, process)
    assert counted.state
    assert counted.state.whole == PhasePart(4, 5)
    assert counted.state.processes == {"a": PhasePart(1, 2), "b": PhasePart(2, 3)}
    hooks.volume("write", 100, {"a": 100})
    hooks.extend(3, "b")
    assert counted.state.in_bytes
    assert (counted.state.whole, counted.state.processes) == (PhasePart(0, 100), {"a": PhasePart(0, 100)})
    hooks.end()
    hooks.extend(1)
    assert counted.state is None
    assert [PhasePart(*each).share for each in ((1, 4), (5, 4), (0, 0))] == [0.25, 1.0, 0.0]


def test_the_time_that_is_left_is_known_while_steps_are_done_and_none_is_beyond_the_total() -> None:
    now = 0.0
    counted = CountedProgress(lambda: now)
    counted.phase("create", 4)
    now, left = 2.0, []
    for _ in range(5):
        assert counted.state
        left.append(counted.state.seconds_left)
        counted.advance(1)
    assert counted.state
    assert [*left, counted.state.seconds_left] == [None, 6.0, 2.0, 2 / 3, 0.0, None]
