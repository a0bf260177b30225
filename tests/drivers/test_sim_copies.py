"""Batches of copies of the simulator: as the single calls, in bytes, refusals and memory that is touched."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from memtopo.driver.types import Access, HostFlags, Properties
from memtopo.driver.wrappers import copy_each
from memtopo.drivers.sim import SimDriver
from tests.contract.memory import HOST, PLAIN, current, laid_out
from tests.helpers.machines import invented
from tests.helpers.simulator import resident_bytes

M = 2 << 20
SIZE = 1 << 16


class OneByOne(SimDriver):
    """Makes each copy by itself, since it changes the single call."""

    def memcpy_async(self, destination: int, source: int, count: int, stream: int = 0) -> None:
        super().memcpy_async(destination, source, count, stream)


@contextmanager
def memory(
    sim: SimDriver, access: Access = Access.RW, properties: Properties = PLAIN
) -> Iterator[tuple[int, int, int]]:
    """Three mapped chunks in a row, page-locked memory with numbered bytes, and a stream."""
    sim.init()
    with laid_out(sim, (M, M, M), properties=properties, access=access) as base, current(sim):
        staged = sim.mem_host_alloc(SIZE, HostFlags.PORTABLE)
        sim.host_write(staged, bytes(1 + index % 251 for index in range(SIZE)))
        yield base, staged, sim.stream_create()
        sim.mem_free_host(staged)


@pytest.mark.parametrize("properties", [PLAIN, Properties(HOST)], ids=["gpu", "host"])
def test_a_batch_copies_what_single_calls_copy(properties: Properties) -> None:
    """Spans in one chunk, over the bound of two, over three pages, of zeros, and in any order."""
    found = []
    for kind in (SimDriver, OneByOne):
        with kind(invented()) as sim, memory(sim, properties=properties) as (base, staged, stream):
            sim.host_write(staged + 900, bytes(100))
            spans = [(base + M - 64, 0, 128), (base, 128, 64), (base + 2 * M + 1, 300, 5000), (base + 4096, 900, 100)]
            assert copy_each(sim, [(to, staged + place, count) for to, place, count in spans], stream) is None
            back = [(staged + SIZE - 2 * (9000 - place), at, count) for at, place, count in spans]
            assert copy_each(sim, list(reversed(back)), stream) is None
            sim.ctx_synchronize()
            resident = resident_bytes(sim) - SIZE
            found.append((sim.memcpy_dtoh(base, 3 * M), sim.host_read(staged, SIZE), resident // M))
    assert found[0] == found[1]
    assert found[0][0][M - 64 : M + 64] == bytes(range(1, 129))


def test_memory_that_a_copy_of_a_batch_reaches_behind_the_bound_of_a_chunk_is_given_back() -> None:
    with SimDriver(invented()) as sim:
        with memory(sim) as (base, staged, stream):
            assert copy_each(sim, [(base + M - 64, staged, 128)], stream) is None
        assert resident_bytes(sim) == 0


def test_zeros_of_untouched_memory_touch_nothing() -> None:
    with SimDriver(invented()) as sim, memory(sim) as (base, _, stream):
        empty = sim.mem_host_alloc(SIZE, HostFlags.PORTABLE)
        before = resident_bytes(sim)
        assert copy_each(sim, [(base + at * M, empty + 64 * at, 64) for at in range(3)], stream) is None
        assert resident_bytes(sim) == before


@pytest.mark.parametrize("kind", [SimDriver, OneByOne])
def test_zeros_of_untouched_memory_replace_what_the_target_had(kind: type[SimDriver]) -> None:
    with kind(invented()) as sim, memory(sim) as (base, staged, stream):
        empty = sim.mem_host_alloc(SIZE, HostFlags.PORTABLE)
        for source in (staged, empty):
            assert copy_each(sim, [(base, source, 64)], stream) is None
        sim.ctx_synchronize()
        assert sim.memcpy_dtoh(base, 64) == bytes(64)


@pytest.mark.parametrize("access", [Access.R, Access.NONE])
def test_a_refused_copy_of_a_batch_has_the_error_of_the_single_call(access: Access) -> None:
    errors = []
    for kind in (SimDriver, OneByOne):
        with kind(invented()) as sim, memory(sim, access) as (base, staged, stream):
            error = copy_each(sim, [(base + at * M, staged + 64 * at, 64) for at in range(3)], stream)
            assert error
            errors.append((error.call, error.name, error.reason))
            beyond = copy_each(sim, [(staged, base, 64), (staged + SIZE - 8, base, 64)], stream)
            assert beyond
            assert copy_each(sim, [(staged, base, 64)], stream + 1)
    assert errors[0] == errors[1]
    assert errors[0][:2] == ("cuMemcpyAsync", "CUDA_ERROR_INVALID_VALUE")


def test_a_batch_waits_for_the_work_before_it() -> None:
    """A copy behind outstanding work of its stream is not made before it."""
    with SimDriver(invented()) as sim, memory(sim) as (base, staged, stream):
        done: list[bool] = []
        sim.streams.get(stream).work.append(lambda: bool(done))
        assert copy_each(sim, [(base, staged, 64)], stream) is None
        assert sim.memcpy_dtoh(base, 64) == bytes(64)
        done.append(True)
        sim.ctx_synchronize()
        assert sim.memcpy_dtoh(base, 64) == bytes(range(1, 65))


def test_a_closed_driver_refuses_a_batch() -> None:
    sim = SimDriver(invented())
    sim.init()
    sim.close()
    error = copy_each(sim, [(M, M, 8)], 1)
    assert error
    assert error.name == "CUDA_ERROR_DEINITIALIZED"


def test_after_an_illegal_access_a_batch_of_copies_fails(sim: SimDriver) -> None:
    """Fact 24."""
    with laid_out(sim, (M,), access=Access.R) as base, current(sim):
        sim.module_load_data()
        sim.store(base, 1)
        error = copy_each(sim, [(base, base, 8)], 0)
        assert error
        assert error.name == "CUDA_ERROR_ILLEGAL_ADDRESS"
