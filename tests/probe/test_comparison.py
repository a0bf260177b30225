"""Comparison of a record with a machine."""

from __future__ import annotations

import pytest

from memtopo.common.units import GiB, MiB
from memtopo.driver.types import gpu
from memtopo.machine import Copies, DriverFacts, Machine, Memory, Rate, Trial
from memtopo.machine.queries import changed
from memtopo.probe.report import differences
from tests.helpers.machines import complete, in_clique, invented, with_nodes

BASE = complete(invented(2))
NODES = with_nodes(BASE, 2 * GiB, 2 * GiB)
NO = Trial(advertised=True, works=False, error="CUDA_ERROR_NOT_SUPPORTED")


def device(machine: Machine, **fields: object) -> Machine:
    """Replace some fields of the first GPU."""
    first, *rest = machine.devices
    return changed(machine, devices=[first.model_copy(update=fields), *rest])


def trial(machine: Machine, name: str, result: Trial) -> Machine:
    memory: Memory = machine.locations[gpu(0)]
    return device(machine, memory=memory.model_copy(update={"trials": memory.trials | {name: result}}))


def peer(machine: Machine, **fields: object) -> Machine:
    old = machine.peers[0][1]
    assert old
    return changed(machine, peers=[[None, old.model_copy(update=fields)], machine.peers[1]])


def test_identity_dates_and_free_memory_are_not_compared() -> None:
    other = device(BASE, uuid="GPU-1", bus_id="0000:02:00.0", free_bytes=1)
    assert differences(BASE, changed(other, host_name="b", recorded="2030-01-01")) == []


def test_another_clique_breaks_a_record_and_the_identity_of_its_cluster_does_not() -> None:
    found = differences(in_clique(BASE), in_clique(BASE, clique=2))
    assert [(each.where, each.what, each.breaks) for each in found] == [(f"gpu{n}", "clique", True) for n in range(2)]
    assert differences(in_clique(BASE), in_clique(BASE, cluster="another")) == []
    assert differences(BASE, in_clique(BASE)) == []


def test_what_the_kernel_keeps_of_the_host_is_no_difference() -> None:
    assert differences(NODES, with_nodes(BASE, 2 * GiB - 9 * MiB, 2 * GiB + 9 * MiB)) == []


def test_a_record_without_host_memory_does_not_differ_from_one_with_it() -> None:
    unknown = with_nodes(BASE, None, None)
    assert differences(unknown, NODES) == differences(NODES, unknown) == []


@pytest.mark.parametrize(
    ("old", "new", "where", "breaks"),
    [
        (BASE, complete(invented(1)), "gpu1", True),
        (complete(invented(1)), BASE, "gpu1", False),
        (BASE, device(BASE, name="Other GPU"), "gpu0", True),
        (BASE, device(BASE, compute_capability=(8, 0)), "gpu0", True),
        (BASE, device(BASE, memory_bytes=1 << 30), "gpu0", True),
        (BASE, device(BASE, memory_bytes=1 << 40), "gpu0", False),
        (BASE, trial(BASE, "fd", NO), "gpu0", True),
        (trial(BASE, "fd", NO), BASE, "gpu0", False),
        (BASE, peer(BASE, access=False), "gpu0 to gpu1", True),
        (BASE, peer(BASE, store=NO), "gpu0 to gpu1", True),
        (BASE, peer(BASE, native_atomics=False), "gpu0 to gpu1", True),
        (peer(BASE, native_atomics=False), BASE, "gpu0 to gpu1", False),
        (device(BASE, attributes={"A": 2}), device(BASE, attributes={"A": 1}), "gpu0", False),
        (device(BASE, attributes={"A": 2}), device(BASE, attributes={"A": 0}), "gpu0", True),
        (peer(BASE, links=18), peer(BASE, links=12), "gpu0 to gpu1", False),
        (BASE, changed(BASE, driver=DriverFacts(cuda="13.1")), "driver", False),
        (BASE, changed(BASE, host={"host": BASE.host["host"]}), "host:0", True),
        (NODES, with_nodes(BASE, 1 * GiB, 2 * GiB), "host:0", True),
        (NODES, with_nodes(BASE, 2 * GiB, 1 * GiB), "host:1", True),
        (changed(BASE, host_bytes=4 * GiB), changed(BASE, host_bytes=3 * GiB), "host", True),
        (changed(BASE, pinned_bytes=4 * GiB), changed(BASE, pinned_bytes=3 * GiB), "host", True),
        (changed(BASE, pinned_bytes=3 * GiB), changed(BASE, pinned_bytes=4 * GiB), "host", False),
        (device(BASE, attributes={"DMA_BUF_SUPPORTED": 1}), device(BASE, attributes={"DMA_BUF_SUPPORTED": 0}),
         "gpu0", True),
    ],
)  # fmt: skip
def test_only_a_value_that_is_less_breaks_a_record(old: Machine, new: Machine, where: str, breaks: bool) -> None:
    """Missing, smaller or refused; what is more or merely different does not"""
    found = differences(old, new)
    assert {(each.where, each.breaks) for each in found if each.where != "host" or where == "host"} == {(where, breaks)}
    assert all(each.recorded != each.here for each in found)


def test_a_coarser_granularity_breaks_a_record() -> None:
    found = differences(complete(invented(1, granule=64 << 10)), complete(invented(1)))
    assert any(each.breaks and each.what == "granularity of fd+rdma" for each in found)
    assert not any(each.breaks for each in differences(complete(invented(1)), complete(invented(1, granule=64 << 10))))


def test_a_value_that_only_one_has_is_no_difference() -> None:
    """A record of an earlier memtopo, with fewer trials, still fits"""
    assert differences(invented(2), BASE) == []
    assert differences(BASE, peer(BASE, link="NV", links=18)) == []


@pytest.mark.parametrize(("rate", "count"), [(390, 0), (400, 0), (300, 1), (900, 1)])
def test_rates_within_a_tenth_are_equal(rate: int, count: int) -> None:

    def with_rate(speed: int) -> Machine:
        return peer(BASE, copies=Copies(engine_write=Rate(bytes_per_second=speed * 10**9)))

    found = differences(with_rate(390), with_rate(rate))
    assert (len(found), any(each.breaks for each in found)) == (count, False)
