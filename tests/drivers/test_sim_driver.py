from __future__ import annotations

import resource
import threading
from contextlib import ExitStack
from inspect import signature
from pathlib import Path

import pytest

from memtopo.common.units import GiB, MiB
from memtopo.driver.kernels import KernelDriver
from memtopo.driver.protocol import call_name
from memtopo.driver.types import (
    Access,
    DriverError,
    Grant,
    HandleType,
    PoolAttribute,
    PoolProperties,
    Properties,
    gpu,
)
from memtopo.driver.wrappers import METHODS
from memtopo.drivers.sim import SimDriver, calls
from memtopo.machine import CONTEXT_BYTES
from tests.contract.memory import NODE, PLAIN, adjacent, created, current, laid_out, mapped, refused, reserved
from tests.contract.shared_resources import closing
from tests.helpers.machines import invented
from tests.helpers.processes import open_descriptors
from tests.helpers.simulator import STRICTER, resident_bytes

M = 2 * MiB


def why(caught: pytest.ExceptionInfo[DriverError]) -> tuple[str, str, str | None]:
    return caught.value.call, caught.value.name, caught.value.reason


@pytest.mark.parametrize("method", sorted(METHODS))
def test_each_call_has_the_parameters_of_the_protocol(method: str) -> None:
    """Each method of the protocol is a call of one part of the simulator, with the same types, order and defaults"""
    assert signature(getattr(SimDriver, method)) == signature(getattr(KernelDriver, method))


def test_a_refusal_names_the_call_and_the_rule(sim: SimDriver) -> None:
    """A refusal has the call and the error, and also the broken rule"""
    with reserved(sim, M) as address, created(sim, 2 * M) as handle, pytest.raises(DriverError) as caught:
        sim.mem_map(address, 2 * M, handle)
    reason = "the mapping runs past the end of its reservation (stricter than hardware: fact 15)"
    assert why(caught) == ("cuMemMap", "CUDA_ERROR_INVALID_VALUE", reason)
    assert "mem_map" in STRICTER


def test_a_refusal_of_what_hardware_does_not_refuse_names_the_fact(sim: SimDriver) -> None:
    """The table of facts agrees with the page on differences"""
    with reserved(sim, M) as address, pytest.raises(DriverError) as caught:
        sim.mem_map(address, M, 1)
    assert caught.value.reason == "the handle is not open (stricter than hardware: fact 69)"
    with pytest.raises(DriverError) as caught:
        sim.mem_release(1)
    assert caught.value.reason == "the handle is not open"
    differences = {call_name(method): text for method, text in STRICTER.items()}
    assert [each for each, fact in calls.STRICTER.items() if f"(fact {fact})" not in differences[each[0]]] == []


def test_every_rule_has_its_own_reason(sim: SimDriver) -> None:
    """Two broken rules with one error name have different reasons"""
    reasons = set()
    with laid_out(sim, (2 * M,), hole=2 * M) as address, created(sim, 2 * M) as handle:
        for at, size, offset, flags in [
            (address + 2 * M, 2 * M, 0, 1),
            (address + 2 * M, 2 * M, M, 0),
            (address + 2 * M, M, 0, 0),
            (address + 2 * M + 1, 2 * M, 0, 0),
            (address + M, 2 * M, 0, 0),
            (address + 3 * M, 2 * M, 0, 0),
            (address + 4 * M, 2 * M, 0, 0),
        ]:
            with pytest.raises(DriverError) as caught:
                sim.mem_map(at, size, handle, offset, flags)
            reasons.add(caught.value.reason)
    assert len(reasons) == 7


def test_every_call_before_init_is_refused() -> None:
    """Every call before init is refused, and every call after close"""
    with SimDriver(invented()) as sim:
        with refused("CUDA_ERROR_NOT_INITIALIZED"):
            sim.device_get_count()
        sim.init()
        assert sim.device_get_count() == 2
    for call in (sim.device_get_count, sim.init):
        with refused("CUDA_ERROR_DEINITIALIZED"):
            call()


def test_close_returns_all_memory() -> None:
    """A closed simulator has no file descriptor open; closing twice is closing once"""
    before = open_descriptors()
    sim = SimDriver(invented())
    sim.init()
    sim.mem_create(M, PLAIN)
    assert open_descriptors() == before + 1
    sim.close()
    sim.close()
    assert open_descriptors() == before


def test_a_forgotten_simulator_closes_its_file() -> None:
    """A simulator that was not closed closes its file descriptor when it is collected"""
    before = open_descriptors()
    sim = SimDriver(invented())
    sim.init()
    sim.mem_create(M, PLAIN)
    del sim
    assert open_descriptors() == before


def test_untouched_memory_costs_nothing(sim: SimDriver) -> None:
    """Memory that was never written uses none of the system's, whatever its size, and reads as zero"""
    with current(sim), laid_out(sim, (70 * GiB,), access=Access.RW) as address:
        assert sim.memcpy_dtoh(address + 69 * GiB, 3) == b"\0\0\0"
        assert resident_bytes(sim) == 0


def test_freed_memory_goes_back_to_the_system(sim: SimDriver) -> None:
    """Written pages use the system's memory until the chunk is freed"""
    with current(sim):
        with laid_out(sim, (4 * M, 4 * M), access=Access.RW) as address:
            sim.memset_d8(address, 1, 6 * M)
            assert 6 * M <= resident_bytes(sim) <= 8 * M
        assert resident_bytes(sim) == 0


def test_bytes_stay_while_anything_holds_the_chunk(sim: SimDriver) -> None:
    """A chunk keeps its bytes from mapping to mapping, as long as a handle or a mapping is left"""
    with current(sim), reserved(sim, 2 * M) as address, created(sim, M) as handle:
        for at in (address, address + M):
            with mapped(sim, at, M, handle):
                sim.mem_set_access(at, M, (Grant(gpu(0), Access.RW),))
                if at == address:
                    sim.memcpy_htod(at + 5, b"kept")
                assert sim.memcpy_dtoh(at + 4, 6) == b"\0kept\0"


def test_a_mapping_that_was_asked_for_last_is_gone_after_its_end(sim: SimDriver) -> None:
    """Also inside of it."""
    with current(sim), reserved(sim, M) as address, created(sim, M) as handle:
        with mapped(sim, address, M, handle):
            assert sim.mem_get_access(address + 4096, gpu(0)) == Access.NONE
        with refused("CUDA_ERROR_INVALID_VALUE"):
            sim.mem_get_access(address + 4096, gpu(0))


def test_creation_beyond_the_budget_is_out_of_memory(sim: SimDriver) -> None:
    """Each device has the machine's memory less what an active context takes, and no more"""
    with created(sim, 80 * GiB), refused("CUDA_ERROR_OUT_OF_MEMORY"):
        sim.device_primary_ctx_retain(0)
    with current(sim):
        assert sim.mem_get_info() == (80 * GiB - CONTEXT_BYTES, 80 * GiB)
        with refused("CUDA_ERROR_OUT_OF_MEMORY"):
            sim.mem_create(80 * GiB, PLAIN)
        with created(sim, 80 * GiB, Properties(gpu(1))), created(sim, 80 * GiB, Properties(NODE)):
            assert sim.mem_get_info() == (80 * GiB - CONTEXT_BYTES, 80 * GiB)
    with created(sim, 80 * GiB) as handle:
        assert handle


def test_a_refused_creation_takes_nothing(sim: SimDriver) -> None:
    """A creation that is refused takes no memory"""
    with current(sim):
        before = sim.mem_get_info()
        with refused("CUDA_ERROR_NOT_PERMITTED"):
            sim.mem_create(GiB, Properties(gpu(0), HandleType.FABRIC))
        assert sim.mem_get_info() == before


def test_memory_with_a_dma_buf_over_several_chunks_is_not_in_the_system_twice(sim: SimDriver) -> None:
    """It moves to the file of the dma-buf, which has none of a chunk that is mapped twice in its range."""
    with current(sim), laid_out(sim, (M, M), access=Access.RW) as address:
        sim.memset_d8(address, 1, 2 * M)
        with closing(sim.mem_get_handle_for_address_range(address, 2 * M)):
            assert resident_bytes(sim) == 2 * M
        assert sim.memcpy_dtoh(address + M - 1, 2) == b"\1\1"
    with current(sim), created(sim, M, PLAIN) as handle, reserved(sim, 2 * M) as address:
        for at in (address, address + M):
            sim.mem_map(at, M, handle)
        sim.mem_set_access(address, 2 * M, (Grant(gpu(0), Access.RW),))
        sim.memset_d8(address, 1, M)
        with closing(sim.mem_get_handle_for_address_range(address, 2 * M)):
            assert resident_bytes(sim) == M
        sim.mem_unmap(address, 2 * M)


def test_memory_is_given_back_without_addresses_for_the_simulator(sim: SimDriver) -> None:
    """A lack of them was reported as a refusal of the driver, and as a leak."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with current(sim), ExitStack() as stack:
        with laid_out(sim, (256 * MiB,), access=Access.RW) as address:
            sim.memset_d8(address, 1, 256 * MiB)
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            limit = pages * resource.getpagesize() + 64 * MiB
            stack.callback(resource.setrlimit, resource.RLIMIT_AS, (soft, hard))
            resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
        assert resident_bytes(sim) == 0


def test_a_released_context_cannot_be_used(sim: SimDriver) -> None:
    """A context that was released while current can be popped, and nothing else"""
    sim.ctx_push_current(context := sim.device_primary_ctx_retain(0))
    sim.device_primary_ctx_release(0)
    with refused("CUDA_ERROR_CONTEXT_IS_DESTROYED"):
        sim.mem_get_info()
    assert sim.ctx_pop_current() == context
    sim.ctx_push_current(context)
    with refused("CUDA_ERROR_CONTEXT_IS_DESTROYED"):
        sim.mem_get_info()


def test_each_thread_has_its_own_context(sim: SimDriver) -> None:
    """A context is current on the thread that pushed it, and on no other"""
    seen = []

    def other() -> None:
        try:
            sim.mem_get_info()
        except DriverError as error:
            seen.append(error.name)

    with current(sim):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert seen == ["CUDA_ERROR_INVALID_CONTEXT"]


def test_a_copy_reaches_no_further_than_access(sim: SimDriver) -> None:
    """Fact 23: a copy that crosses into a hole or a mapping without access is refused before the first byte"""
    with current(sim), laid_out(sim, (M, M), hole=M) as address:
        sim.mem_set_access(address, M, (Grant(gpu(0), Access.RW),))
        for end in (address + M, address + 2 * M):
            with refused("CUDA_ERROR_INVALID_VALUE"):
                sim.memcpy_htod(end - 2, b"over")
        assert sim.memcpy_dtoh(address + M - 2, 2) == b"\0\0"
        assert resident_bytes(sim) == 0


def test_one_range_holds_ten_thousand_chunks(sim: SimDriver) -> None:
    """Ten thousand chunks in one range are laid out, granted and taken down at once"""
    count = 10_000
    with reserved(sim, count * M) as address:
        handles = [sim.mem_create(M, PLAIN) for _ in range(count)]
        for number, handle in enumerate(handles):
            sim.mem_map(address + number * M, M, handle)
        sim.mem_set_access(address, count * M, (Grant(gpu(0), Access.RW),))
        assert sim.mem_get_access(address + count * M - 1, gpu(0)) == Access.RW
        sim.mem_unmap(address, count * M)
        for handle in handles:
            sim.mem_release(handle)


def test_reservations_follow_one_another(sim: SimDriver) -> None:
    """Addresses are the same in every run, one reservation after another"""
    with reserved(sim, M) as first, reserved(sim, M) as second, adjacent(sim, M) as third:
        assert (second, third) == (first + M, first + 2 * M)


def test_the_highest_amount_of_a_pool_is_reset_to_what_is_in_use(sim: SimDriver) -> None:
    highest = PoolAttribute.USED_MEM_HIGH
    with current(sim):
        pool = sim.mem_pool_create(PoolProperties(gpu(0)))
        address, _ = (sim.mem_alloc_from_pool_async(M, pool) for _ in range(2))
        sim.mem_free_async(address)
        sim.ctx_synchronize()
        assert sim.mem_pool_get_attribute(pool, highest) == 2 * M
        sim.mem_pool_set_attribute(pool, highest, 0)
        assert sim.mem_pool_get_attribute(pool, highest) == M


def test_an_rdma_chunk_is_not_mapped_beside_a_mapping_that_has_access_without_the_first_one(sim: SimDriver) -> None:
    """Access that a peer loses changes nothing of that; it ends when its own GPU loses access, or with the mapping.

    See fact 64.
    """
    with current(sim), created(sim, M, PLAIN._replace(rdma=True)) as handle:
        base = sim.mem_address_reserve(3 * M)
        for at in (base, base + M):
            sim.mem_map(at, M, handle)
        sim.mem_set_access(base + M, M, (Grant(gpu(1), Access.RW),))
        sim.mem_unmap(base, M)
        sim.mem_set_access(base + M, M, (Grant(gpu(0), Access.RW),))
        sim.mem_set_access(base + M, M, (Grant(gpu(1), Access.NONE),))
        with refused("CUDA_ERROR_UNKNOWN"):
            sim.mem_map(base, M, handle)
        sim.mem_set_access(base + M, M, (Grant(gpu(0), Access.NONE),))
        sim.mem_map(base, M, handle)
        sim.mem_unmap(base, M)
        sim.mem_set_access(base + M, M, (Grant(gpu(0), Access.RW),))
        with refused("CUDA_ERROR_UNKNOWN"):
            sim.mem_map(base, M, handle)
        sim.mem_unmap(base + M, M)
        sim.mem_map(base, M, handle)
        sim.mem_unmap(base, M)
        sim.mem_address_free(base, 3 * M)
