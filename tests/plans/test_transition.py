"""Steps from one plan to another, and the memory that they need beside what stays."""

from __future__ import annotations

import pytest

from memtopo.common.units import GiB
from memtopo.driver.types import gpu
from memtopo.kinds.managed.steps import AllocateManaged
from memtopo.plans.transition import Transition, transition
from tests.helpers.machines import invented
from tests.helpers.specs import plan_of


def test_a_change_grows_by_all_that_it_makes_while_others_use_what_it_releases() -> None:
    old, new = (plan_of(f"chunks: {{w: {{location: gpu0, size: {size}GiB}}}}", invented(1)) for size in (40, 38))
    steps = transition(old.steps, new.steps)
    assert [step.verb for step in (*steps.undo, *steps.do)] == ["synchronize", "create", "create", "synchronize"]
    used = {("", step.provides) for step in steps.undo}
    assert [each.growth.get(gpu(0), 0) for each in (steps, Transition.together({"": steps}, used))] == [0, 38 * GiB]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("prefer: gpu0, accessed_by: gpu1", "prefer: gpu0"),
        ("prefer: gpu0, read_mostly: true", "prefer: gpu0"),
        ("prefer: gpu0, attach: single", "prefer: gpu0, attach: host"),
    ],
)
def test_memory_is_allocated_anew_without_advice_or_a_stream_that_a_change_takes_away(before: str, after: str) -> None:
    old, new = (plan_of(f"managed: {{m: {{size: 2MiB, {each}}}}}", invented(2)).steps for each in (before, after))
    made = transition(old, new)
    assert [[type(step) for step in steps].count(AllocateManaged) for steps in (made.undo, made.do)] == [1, 1]
