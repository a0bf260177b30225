"""Managed memory on the simulator, where it is stricter than hardware or has states of its own."""

from __future__ import annotations

from memtopo.common.units import KiB, MiB
from memtopo.driver.types import Advice, MemAttach, RangeAttribute, gpu
from memtopo.drivers.sim import SimDriver
from memtopo.drivers.sim.external_api import make_semaphore
from tests.contract.external_resources import TIMELINE, stream
from tests.contract.memory import HOST, INVALID_DEVICE, INVALID_VALUE, NOT_SUPPORTED, current, refused
from tests.helpers.machines import invented

M = 2 * MiB


def test_advice_applies_to_pages_of_an_allocation(sim: SimDriver) -> None:
    """Facts 39 and 60: an attribute of a range has the value that all its pages have in common"""
    with current(sim):
        address = sim.mem_alloc_managed(3 * M, MemAttach.GLOBAL)

        def attributes(at: int, size: int) -> list[tuple[int, ...]]:
            return [sim.mem_range_get_attribute(address + at, size, attribute) for attribute in RangeAttribute]

        sim.mem_advise(address + M, M, Advice.SET_READ_MOSTLY, gpu(0))
        sim.mem_advise(address, 2 * M, Advice.SET_PREFERRED_LOCATION, gpu(1))
        sim.mem_advise(address + M + 5, 1, Advice.SET_ACCESSED_BY, HOST)
        sim.mem_prefetch_async(address + 2 * M, M, gpu(1))
        assert attributes(0, M) == [(0,), (1,), (), ()]
        assert attributes(M, M) == [(1,), (1,), (), ()]
        assert attributes(M, 4 * KiB) == [(1,), (1,), (-1,), ()]
        assert attributes(M + 4 * KiB, 1) == [(1,), (1,), (), ()]
        assert attributes(2 * M, M) == [(0,), (), (), (1,)]
        assert attributes(0, 2 * M) == [(0,), (1,), (), ()]
        assert attributes(0, 3 * M) == [(0,), (), (), ()]
        sim.mem_free(address)


def test_gpus_without_managed_memory_refuse_it(sim: SimDriver) -> None:
    """A GPU that advertises no managed memory has none; one that uses none beside the CPU is no place for it"""
    del sim
    with SimDriver(invented(attributes={"CONCURRENT_MANAGED_ACCESS": 0})) as modest:
        modest.init()
        with current(modest):
            address = modest.mem_alloc_managed(M, MemAttach.GLOBAL)
            with refused(INVALID_DEVICE):
                modest.mem_prefetch_async(address, M, gpu(0))
            with refused(INVALID_DEVICE):
                modest.mem_advise(address, M, Advice.SET_PREFERRED_LOCATION, gpu(0))
            modest.mem_prefetch_async(address, M, HOST)
            modest.mem_free(address)
    with SimDriver(invented(attributes={"MANAGED_MEMORY": 0})) as without:
        without.init()
        with current(without), refused(NOT_SUPPORTED):
            without.mem_alloc_managed(M, MemAttach.GLOBAL)


def test_the_cpu_cannot_access_beyond_an_allocation(sim: SimDriver) -> None:
    """The CPU's loads and stores end where the allocation does; device memory is none of its own"""
    with current(sim):
        address, plain = sim.mem_alloc_managed(M, MemAttach.GLOBAL), sim.mem_alloc(M)
        sim.host_write(address + M - 4, b"last")
        for at, count in ((address + M - 4, 5), (plain, 1), (4096, 1)):
            with refused(INVALID_VALUE):
                sim.host_read(at, count)
            with refused(INVALID_VALUE):
                sim.host_write(at, bytes(count))
        sim.mem_free(address)
        sim.mem_free(plain)


def test_memory_at_the_address_of_freed_memory_has_none_of_its_advice(sim: SimDriver) -> None:
    """Both share a block with memory that stays (fact 70)."""
    with current(sim):
        stays, first = (sim.mem_alloc_managed(4 * KiB, MemAttach.GLOBAL) for _ in range(2))
        sim.mem_advise(first, 4 * KiB, Advice.SET_READ_MOSTLY, gpu(0))
        sim.mem_advise(stays, 4 * KiB, Advice.SET_PREFERRED_LOCATION, gpu(1))
        sim.mem_free(first)
        assert sim.mem_alloc_managed(4 * KiB, MemAttach.GLOBAL) == first
        assert sim.mem_range_get_attribute(first, 4 * KiB, RangeAttribute.READ_MOSTLY) == (0,)
        assert sim.mem_range_get_attribute(stays, 4 * KiB, RangeAttribute.PREFERRED_LOCATION) == (1,)


def test_a_prefetch_in_a_stream_waits_for_the_work_before_it(sim: SimDriver) -> None:
    """One in stream 0 does not."""
    with current(sim), stream(sim) as waiting, stream(sim) as signalling:
        address = sim.mem_alloc_managed(M, MemAttach.GLOBAL)
        timeline = sim.import_external_semaphore(make_semaphore(timeline=True), TIMELINE)
        sim.wait_external_semaphore(timeline, 1, waiting)
        sim.mem_prefetch_async(address, M, gpu(1), waiting)
        sim.mem_prefetch_async(address, M, gpu(0))
        assert sim.mem_range_get_attribute(address, M, RangeAttribute.LAST_PREFETCH_LOCATION) == (0,)
        sim.signal_external_semaphore(timeline, 1, signalling)
        assert sim.mem_range_get_attribute(address, M, RangeAttribute.LAST_PREFETCH_LOCATION) == (1,)
        sim.destroy_external_semaphore(timeline)
