"""Managed memory: advice, home GPU, and requirements on the machine."""

from __future__ import annotations

import pytest

from memtopo.common.units import MiB
from memtopo.driver.types import Location, LocationKind, gpu
from memtopo.kinds.managed import ManagedAllocation
from memtopo.kinds.managed.steps import Prefetch
from memtopo.machine import Trial, queries
from memtopo.plans.transition import transition
from tests.helpers.machines import invented
from tests.helpers.specs import clean_geometry, codes, diagnose, plan_of, steps_of

HOST, NODE = Location(LocationKind.HOST), Location(LocationKind.HOST_NUMA, 0)

FAILED = Trial(advertised=True, works=False, error="CUDA_ERROR_NOT_SUPPORTED")


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


def test_managed_memory_needs_a_gpu() -> None:
    machine = queries.changed(invented(1), devices=[], peers=[])
    assert codes("managed: {m: {size: 2MiB}}", machine) == ["MT401"]


NONE = {"MANAGED_MEMORY": 0, "CONCURRENT_MANAGED_ACCESS": 0}

ALONE = {"CONCURRENT_MANAGED_ACCESS": 0}

UNTRIED = {"managed": Trial(), "concurrent": Trial()}

WORKS = Trial(advertised=False, works=True)


@pytest.mark.parametrize(
    ("advice", "attributes", "trials", "expected"),
    [
        ("", NONE, {}, ["MT701"]),
        ("", NONE, UNTRIED, ["MT701"]),
        ("", NONE, {"managed": WORKS}, []),
        ("", {}, {"managed": FAILED}, ["MT701"]),
        ("", ALONE, {}, []),
        (", prefer: host, accessed_by: host, attach: host", ALONE, {}, []),
        (", read_mostly: true", ALONE, {}, ["MT701"]),
        (", prefer: gpu1", ALONE, {}, ["MT701"]),
        (", accessed_by: [host, gpu1]", ALONE, {}, ["MT701"]),
        (", prefetch: gpu1", ALONE, {}, ["MT701"]),
        (", oversubscribe: true", ALONE, {}, ["MT701"]),
        (", oversubscribe: true", ALONE, {"concurrent": WORKS}, []),
        (", oversubscribe: false", ALONE, {}, []),
        (", prefetch: host", ALONE, {}, ["MT701"]),
        (", prefetch: gpu1", ALONE, {"concurrent": WORKS}, []),
        (", prefetch: gpu1", {}, {"concurrent": FAILED}, ["MT701"]),
    ],
)
def test_a_trial_decides_and_without_one_the_attribute(
    advice: str, attributes: dict[str, int], trials: dict[str, Trial], expected: list[str]
) -> None:
    machine = invented(2, attributes=attributes, trials=trials)
    assert codes(f"managed: {{m: {{size: 2MiB{advice}}}}}", machine) == expected


def test_every_gpu_that_may_hold_the_memory_supports_it() -> None:
    able, unable = invented(2), invented(2, trials={"managed": FAILED})
    mixed = able.model_copy(update={"devices": [able.devices[0], unable.devices[1]]})
    assert codes("managed: {m: {size: 2MiB, prefer: gpu0}}", mixed) == []
    (diagnostic,) = diagnose("managed: {m: {size: 2MiB, prefer: gpu0, accessed_by: gpu1}}", mixed)
    assert diagnostic.message == "managed memory 'm' does not work on gpu1 of this machine"
    assert diagnostic.notes == ("it is advertised, but a trial failed with CUDA_ERROR_NOT_SUPPORTED",)


def test_a_prefetch_to_the_host_needs_support_of_the_home_gpu() -> None:
    able, unable = invented(2), invented(2, attributes=ALONE)
    mixed = able.model_copy(update={"devices": [able.devices[0], unable.devices[1]]})
    text = "processes:\n  p: {visible: gpu%d, managed: {m: {size: 2MiB, prefetch: host}}}"
    assert codes(text % 0, mixed) == []
    assert codes(text % 1, mixed) == ["MT701"]


def test_managed_memory_counts_in_full_on_every_gpu_that_may_hold_it() -> None:
    machine = invented(2)
    busy = machine.devices[1].model_copy(update={"free_bytes": 30 << 30})
    live = queries.changed(machine, devices=[machine.devices[0], busy])
    text = "buffers: {b: {location: gpu1, size: 10GiB}}\nmanaged: {m: {size: 20GiB, accessed_by: [gpu0%s]}}"
    assert codes(text % "", live) == []
    assert codes(text % ", gpu1", machine) == []
    (diagnostic,) = diagnose(text % ", gpu1", live)
    assert diagnostic.code == "MT402"
    assert diagnostic.message == "the layout needs 30 GiB on gpu1, which has 30 GiB free: 512 MiB too much"
    assert diagnostic.path == ("managed", "m", "size")
    each = "processes:\n  p: {count: %d, managed: {m: {size: 20GiB}}}"
    assert codes(each % 3, machine) == []
    assert codes(each % 4, machine) == ["MT402"]
