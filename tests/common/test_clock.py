"""The clock for limits on silence."""

from __future__ import annotations

from memtopo.common.clock import LONGEST_STEP, RunningClock


def test_time_between_two_readings_counts_up_to_its_limit() -> None:
    readings = iter((10.0, 10.25, 10.5, 3610.5, 3610.75))
    clock = RunningClock(lambda: next(readings))
    assert [clock.time() for _ in range(4)] == [0.25, 0.5, 0.5 + LONGEST_STEP, 0.75 + LONGEST_STEP]
