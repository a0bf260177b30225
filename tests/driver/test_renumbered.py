"""A process that sees some of the GPUs, spoken to by the ordinals of one that sees all."""

from __future__ import annotations

from memtopo.driver.protocol import Driver
from memtopo.driver.sim import SimDriver
from memtopo.driver.types import HOST, Advice, Location, LocationKind, MemAttach, RangeAttribute, gpu
from memtopo.driver.wrappers import Renumbered
from tests.contract.built import INVALID_DEVICE, NODE, current, refused
from tests.helpers.machines import invented

M = 2 << 20


def test_managed_memory_is_told_by_the_callers_ordinals() -> None:
    """Advice, prefetches and what is told of them name the caller's GPUs; the host stays the host"""
    with SimDriver(invented(2)) as sim:
        driver: Driver = Renumbered(sim, [3, 2])
        driver.init()
        with current(driver, 3):
            address = driver.mem_alloc_managed(M, MemAttach.GLOBAL)

            def told(asked: RangeAttribute, of: Driver = driver) -> tuple[int, ...]:
                return of.mem_range_get_attribute(address, M, asked)

            driver.mem_advise(address, M, Advice.SET_READ_MOSTLY, gpu(3))
            assert told(RangeAttribute.READ_MOSTLY) == (1,)
            driver.mem_advise(address, M, Advice.SET_PREFERRED_LOCATION, gpu(2))
            assert told(RangeAttribute.PREFERRED_LOCATION) == (2,)
            assert told(RangeAttribute.PREFERRED_LOCATION, sim) == (1,)
            driver.mem_prefetch_async(address, M, gpu(3))
            assert told(RangeAttribute.LAST_PREFETCH_LOCATION) == (3,)
            assert told(RangeAttribute.LAST_PREFETCH_LOCATION, sim) == (0,)
            for place in (gpu(3), Location(LocationKind.HOST), gpu(2)):
                driver.mem_advise(address, M, Advice.SET_ACCESSED_BY, place)
            assert told(RangeAttribute.ACCESSED_BY) == (3, HOST, 2)
            driver.mem_prefetch_async(address, M, NODE)
            assert told(RangeAttribute.LAST_PREFETCH_LOCATION) == (HOST,)
            with refused(INVALID_DEVICE):
                driver.mem_prefetch_async(address, M, gpu(0))
            driver.mem_free(address)
