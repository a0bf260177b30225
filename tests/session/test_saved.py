"""Saved plans of specs with shares of memory: what they are shares of is saved with them."""

from __future__ import annotations

import pytest

from memtopo import planner
from memtopo.language import SpecText
from memtopo.machine import Machine, MachineLine
from memtopo.machine.queries import changed
from memtopo.session.saved import SavedPlan, StalePlan, compare, saved_facts
from tests.helpers.machines import invented
from tests.helpers.specs import document, geometry_of

SPEC = """
ranges: {kv: {size: fill}}
chunks: {page: {location: gpu0, size: SIZE}}
map: {kv: [page]}
access: {kv: {gpu0: rw}}
"""
SHARED, FIXED = SPEC.replace("SIZE", "50%"), SPEC.replace("SIZE", "4GiB")


def live(free: int) -> Machine:
    machine = invented(1)
    return changed(machine, devices=[machine.devices[0].model_copy(update={"free_bytes": free, "uuid": "GPU-1"})])


def saved(text: str, machine: Machine) -> SavedPlan:
    geometry = geometry_of(text, machine)
    line = MachineLine("test", simulated=False, devices=("Invented GPU",), driver="13.0")
    summary = planner.plan(geometry, machine).summary()
    return SavedPlan(1, line, summary, SpecText.of(document(text)), saved_facts(machine, geometry))


def compare_now(plan: SavedPlan, text: str, machine: Machine) -> None:
    geometry = geometry_of(text, machine)
    compare(plan, "plan.json", geometry, planner.plan(geometry, machine))


def test_a_plan_with_shares_holds_while_as_much_memory_is_free() -> None:
    plan = saved(SHARED, live(40 << 30))
    assert [device.free_bytes for device in plan.facts.devices] == [40 << 30]
    compare_now(plan, SHARED, live(40 << 30))


def test_a_plan_with_shares_is_stale_when_other_memory_is_free() -> None:
    with pytest.raises(StalePlan) as raised:
        compare_now(saved(SHARED, live(40 << 30)), SHARED, live(30 << 30))
    assert any(line.startswith("-create page") for line in raised.value.details), raised.value.details


def test_a_plan_without_shares_has_no_free_memory_and_holds_on_a_fuller_machine() -> None:
    plan = saved(FIXED, live(40 << 30))
    assert [(device.free_bytes, device.uuid) for device in plan.facts.devices] == [(None, None)]
    compare_now(plan, FIXED, live(30 << 30))


def test_a_plan_is_stale_if_memory_has_other_properties_now() -> None:
    with pytest.raises(StalePlan) as raised:
        compare_now(saved(FIXED, live(40 << 30)), FIXED.replace("4GiB", "4GiB, rdma: true"), live(40 << 30))
    assert raised.value.details[1].endswith("(rdma)"), raised.value.details


def test_a_plan_is_stale_if_the_same_calls_map_memory_at_another_offset_now() -> None:
    text = FIXED.replace("size: fill", "size: 12GiB").replace("[page]", "[{chunk: page, offset: OFFSET}]")
    before, now = (text.replace("OFFSET", offset) for offset in ("4GiB", "8GiB"))
    with pytest.raises(StalePlan) as raised:
        compare_now(saved(before, live(40 << 30)), now, live(40 << 30))
    assert raised.value.details == ("the same calls, at other offsets",)
