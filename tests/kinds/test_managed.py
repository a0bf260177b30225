"""Managed memory: advice, home GPU, and requirements on the machine."""

from __future__ import annotations

import pytest

from memtopo.common.units import MiB
from memtopo.driver.types import Location, LocationKind, gpu
from memtopo.kinds.managed import ManagedAllocation
from memtopo.kinds.managed.steps import Prefetch
from memtopo.plans.transition import transition
from tests.helpers.machines import invented
from tests.helpers.specs import clean_geometry, codes, diagnose, plan_of, steps_of

HOST, NODE = Location(LocationKind.HOST), Location(LocationKind.HOST_NUMA, 0)


def test_an_entry_becomes_an_allocation_with_distinct_locations() -> None:
    text = """
devices: {prefill: 1, decode: gpu2}
managed:
  m: {size: 5MiB, attach: single, prefer: prefill, accessed_by: [host, decode, gpu2], read_mostly: true, prefetch: host}
"""
    m = clean_geometry(text, invented(4)).of(ManagedAllocation)["m"]
    assert (m.name, m.path, m.size, m.attach) == ("m", ("managed", "m"), 5 * MiB, "single")
    assert (m.prefer, m.accessed_by, m.read_mostly, m.prefetch) == (gpu(1), (HOST, gpu(2)), True, HOST)
    assert (m.home, sorted(m.contexts), m.shares(), m.locations) == (1, [1, 2], {gpu(1): 1}, (gpu(1),))


@pytest.mark.parametrize(
    ("advice", "home", "gpus"),
    [
        ("", 0, {0}),
        (", prefer: gpu2", 2, {2}),
        (", prefetch: gpu1", 1, {1}),
        (", prefer: host, prefetch: gpu3", 3, {3}),
        (", accessed_by: [host, gpu2, gpu1]", 2, {1, 2}),
        (", prefer: gpu3, prefetch: gpu2, accessed_by: gpu1", 3, {1, 2, 3}),
        (", prefer: host:0, prefetch: host:0, accessed_by: host", 0, {0}),
    ],
)
def test_home_is_the_first_named_gpu_else_gpu0(advice: str, home: int, gpus: set[int]) -> None:
    geometry = clean_geometry(f"managed: {{m: {{size: 2MiB{advice}}}}}", invented(4))
    assert geometry.of(ManagedAllocation)["m"].home == home
    assert geometry.of(ManagedAllocation)["m"].contexts == gpus
    assert geometry.gpus == sorted(gpus)


def test_home_is_a_visible_gpu() -> None:
    text = "processes:\n  p: {count: 2, devices: {d: [gpu3, gpu2]}, visible: d, managed: {m: {size: 2MiB%s}}}"
    processes = clean_geometry(text % "", invented(4)).processes
    assert [each.of(ManagedAllocation)["m"].home for each in processes.values()] == [3, 2]
    assert [
        each.of(ManagedAllocation)["m"].prefer
        for each in clean_geometry(text % ", prefer: d", invented(4)).processes.values()
    ] == [gpu(3), gpu(2)]
    for key in ("prefer", "prefetch", "accessed_by"):
        assert set(codes(text % f", {key}: gpu1", invented(4))) == {"MT606"}


def test_accessed_by_names_no_numa_node() -> None:
    """Fact 60."""
    (diagnostic,) = diagnose("managed: {m: {size: 2MiB, accessed_by: [gpu0, host:0]}}")
    assert (diagnostic.code, diagnostic.path, diagnostic.help) == (
        "MT701",
        ("managed", "m", "accessed_by", 1),
        "write host",
    )
    (alone,) = diagnose("managed: {m: {size: 2MiB, accessed_by: host:0}}")
    assert alone.path == ("managed", "m", "accessed_by")
    assert (
        clean_geometry("managed: {m: {size: 2MiB, prefer: host:0, prefetch: host:0}}", invented(4))
        .of(ManagedAllocation)["m"]
        .prefer
        == NODE
    )


@pytest.mark.parametrize(("attach", "gpus"), [("global", [gpu(0), gpu(1)]), ("host", [gpu(0)]), ("single", [gpu(0)])])
def test_memory_of_the_host_or_one_stream_is_not_used_by_a_gpu_without_concurrent_access(
    attach: str, gpus: list[Location]
) -> None:
    able, unable = invented(2), invented(2, attributes=ALONE)
    mixed = able.model_copy(update={"devices": [able.devices[0], unable.devices[1]]})
    m = clean_geometry(f"managed: {{m: {{size: 2MiB, attach: {attach}, accessed_by: gpus}}}}").of(ManagedAllocation)[
        "m"
    ]
    assert [each.location for each in m.own_access(0, mixed)] == [*gpus, HOST]


def test_memory_of_one_stream_is_prefetched_in_that() -> None:
    one, other = "{size: 2MiB, attach: single, prefetch: gpu0}", "{size: 2MiB, prefetch: gpu0}"
    plan = plan_of(f"managed: {{m: {one}, n: {other}}}", invented(1))
    assert [each.own for each in steps_of(plan, Prefetch)] == [True, False]


def test_memory_that_gets_a_preferred_location_is_advised_and_not_allocated_again() -> None:
    """And if it loses one, it is allocated again, which ends the advice."""
    both = ("managed: {m: {size: 2MiB}}", "managed: {m: {size: 2MiB, prefer: host}}")
    plain, host = (plan_of(text, invented(1)).steps for text in both)
    for old, new, verbs in ((plain, host, {"advise"}), (host, plain, {"advise", "allocate managed"})):
        found = transition(old, new)
        assert {step.verb for step in (*found.undo, *found.do)} - {"synchronize"} == verbs


ALONE = {"CONCURRENT_MANAGED_ACCESS": 0}
