"""Semaphores: handle types, timeline values, and waits without a signal."""

from __future__ import annotations

import pytest

from memtopo.kinds.external.semaphores import SEMAPHORES
from memtopo.kinds.external.steps import AwaitStream
from tests.helpers.external_specs import FRAME, semaphores
from tests.helpers.machines import invented
from tests.helpers.specs import geometry_of, plan_of, steps_of


def test_a_gpu_awaits_all_of_its_waits_by_a_step_of_the_first_of_them() -> None:
    entries = [f"{each}: {{from: camera/{each}, via: timeline_fd, device: gpu0, wait: 1}}" for each in "ab"]
    (step,) = steps_of(plan_of(f"{FRAME}semaphores: {{{', '.join(entries)}}}", invented(1)), AwaitStream)
    assert step.path == ("semaphores", "a")


@pytest.mark.parametrize(
    ("after", "refused"),
    [
        ("wait: 1, signal: 2", []),
        ("signal: 2", []),
        ("", []),
        ("wait: 1, signal: 3", ["signal"]),
        ("wait: 2, signal: 3", ["wait", "signal"]),
        ("device: gpu1, wait: 1, signal: 2", ["wait", "signal"]),
    ],
)
def test_a_change_makes_no_wait_and_no_signal_that_the_layout_did_not_make(after: str, refused: list[str]) -> None:
    before = geometry_of(semaphores("wait: 1, signal: 2"))
    changed = semaphores(after).replace("device: gpu0, device", "device")
    found = [each.path[-1] for each in SEMAPHORES.refused_changes(before, geometry_of(changed))]
    assert found == refused
    other = geometry_of(semaphores("wait: 1, signal: 2").replace("camera/ready", "camera/other"))
    assert [each.code for each in SEMAPHORES.refused_changes(before, other)] == ["MT808"] * 2
