"""Heaps of a built layout: sleep and wake at a program's request, and what a refusal or a failure leaves."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from memtopo import planner
from memtopo.driver.types import HandleType
from memtopo.kinds.heaps.steps import HeapContent, heaps
from memtopo.kinds.layout import current
from memtopo.run.heaps import (
    HeapFailed,
    HeapFull,
    HeapRefused,
    Keep,
    allocate,
    drop_backups,
    export,
    free,
    sleep,
    wake,
)
from tests.helpers.conducted import make_transition
from tests.helpers.machines import invented
from tests.helpers.specs import geometry_of, plan_of
from tests.run.test_transition import Built, built

TWO = invented(2)
M = 2 << 20
SPEC = """
heaps:
  weights: {location: gpu0, size: 16MiB, limit: 12MiB}
  cache: {location: gpu0, size: 16MiB, limit: weights, handles: fd}
access: {weights: {gpu0: rw}, cache: {gpu0: rw}}
states: {empty: {drop: [weights]}}
"""


@contextmanager
def allocated(failing: set[str] | None = None) -> Iterator[tuple[Built, HeapContent, tuple[int, int]]]:
    """A layout with two allocations in the heap `weights`, of which each has bytes of its own."""
    with built(plan_of(SPEC, TWO), failing=failing) as layout:
        content = heaps(layout.execution.layout)["weights"]
        addresses = allocate(content, M), allocate(content, 2 * M)
        write(layout, addresses, b"one", b"two")
        yield layout, content, addresses


def write(layout: Built, addresses: tuple[int, int], *data: bytes) -> None:
    execution = layout.execution
    with current(execution.driver, execution.layout.contexts[0]):
        for address, each in zip(addresses, data, strict=True):
            execution.driver.memcpy_htod(address + 100, each)


def read(layout: Built, addresses: tuple[int, int]) -> list[bytes]:
    execution = layout.execution
    with current(execution.driver, execution.layout.contexts[0]):
        return [execution.driver.memcpy_dtoh(address + 100, 3) for address in addresses]


def slept(layout: Built, keep: Keep | None = "page-locked") -> None:
    sleep(layout.ledger, layout.execution.layout, "weights", keep)


def woken(layout: Built) -> None:
    wake(layout.ledger, layout.execution.layout, "weights")


def test_a_heap_wakes_with_the_bytes_of_its_last_sleep() -> None:
    """Whatever kept those of an earlier one, and with none after a sleep that keeps none."""
    kinds: tuple[Keep, ...] = ("page-locked", "pageable", "page-locked")
    with allocated() as (layout, _, addresses):
        for number, keep in enumerate(kinds):
            data = b"a%d." % number, b"b%d." % number
            write(layout, addresses, *data)
            slept(layout, keep)
            woken(layout)
            assert read(layout, addresses) == [*data]
        slept(layout, None)
        woken(layout)
        assert read(layout, addresses) == [bytes(3)] * 2


def test_a_large_allocation_wakes_with_all_of_its_bytes_from_pageable_memory() -> None:
    """It is copied in pieces of 64 MiB."""
    large = SPEC.replace("size: 16MiB, limit: 12MiB", "size: 256MiB, limit: 128MiB")
    with built(plan_of(large, TWO)) as layout:
        address = allocate(heaps(layout.execution.layout)["weights"], 66 << 20)
        addresses = address, address + (65 << 20)
        write(layout, addresses, b"one", b"two")
        slept(layout, "pageable")
        woken(layout)
        assert read(layout, addresses) == [b"one", b"two"]


@pytest.mark.parametrize(
    ("method", "at", "keep"),
    [
        ("ctx_synchronize", 1, None),
        ("ctx_synchronize", 1, "pageable"),
        ("event_create", 1, "page-locked"),
        ("event_synchronize", 1, "page-locked"),
        ("mem_host_alloc", 1, "page-locked"),
        ("memcpy_async", 1, "page-locked"),
        ("mem_unmap", 1, "page-locked"),
        ("mem_unmap", 2, "page-locked"),
    ],
)
def test_a_sleep_that_fails_leaves_the_heap_awake_with_its_bytes(method: str, at: int, keep: Keep | None) -> None:
    """Work of the GPU is awaited before the bytes are copied or given up, and the copies are."""
    with allocated({method}) as (layout, content, addresses):
        layout.failing.at = layout.failing.calls + at
        with pytest.raises(HeapFailed, match=r"^heap 'weights' is not asleep: .*; it is as before$"):
            slept(layout, keep)
        layout.failing.at = 0
        assert not content.asleep
        assert read(layout, addresses) == [b"one", b"two"]
        free(content, allocate(content, M))
        slept(layout)
        woken(layout)
        assert read(layout, addresses) == [b"one", b"two"]


def test_a_sleep_without_pageable_memory_for_the_bytes_leaves_the_heap_awake() -> None:
    """For lack of addresses."""
    large = SPEC.replace("size: 16MiB, limit: 12MiB", "size: 32GiB")
    with built(plan_of(large.replace("limit: weights, ", ""), TWO)) as layout:
        content = heaps(layout.execution.layout)["weights"]
        address = allocate(content, 16 << 30)
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (8 << 30), hard))
        try:
            with pytest.raises(HeapFailed, match=r"^heap 'weights' is not asleep: .*Cannot allocate .*as before$"):
                slept(layout, "pageable")
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        assert not content.asleep
        free(content, address)
        allocate(content, M)


@pytest.mark.parametrize("method", ["mem_create", "memcpy_async", "ctx_synchronize"])
def test_a_wake_that_fails_leaves_the_heap_asleep_without_memory_and_with_its_bytes(method: str) -> None:
    with allocated({method}) as (layout, content, addresses):
        slept(layout)
        layout.failing.at = layout.failing.calls + 1
        with pytest.raises(HeapFailed, match=r"^heap 'weights' stays asleep: "):
            woken(layout)
        layout.failing.at = 0
        assert (content.asleep, content.native.mapped) == (True, 0)
        with pytest.raises(HeapRefused, match="currently has no memory"):
            allocate(content, M)
        woken(layout)
        assert read(layout, addresses) == [b"one", b"two"]


def test_a_heap_wakes_once_the_gpu_has_room_for_all_of_it() -> None:
    with allocated() as (layout, content, addresses):
        driver, step = layout.execution.driver, content.step
        slept(layout)
        with current(driver, layout.execution.layout.contexts[step.device]):
            free_bytes = driver.mem_get_info()[0]
        others = driver.mem_create(free_bytes - M, step.properties)  # room for the first allocation alone
        with pytest.raises(HeapFull, match=r"^heap 'weights' stays asleep: cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY"):
            woken(layout)
        assert (content.asleep, content.native.mapped) == (True, 0)
        driver.mem_release(others)
        woken(layout)
        assert read(layout, addresses) == [b"one", b"two"]


def test_a_wake_that_cannot_give_the_memory_back_leaves_the_heap_closed() -> None:
    with allocated({"memcpy_async", "mem_unmap"}) as (layout, content, _):
        slept(layout)
        layout.failing.at = layout.failing.calls + 1
        with pytest.raises(HeapFailed, match=r"^heap 'weights' stays asleep: "):
            woken(layout)
        assert (content.asleep, content.native.is_open) == (True, False)


@pytest.mark.parametrize("keep", [None, "page-locked"])
def test_a_heap_that_has_lost_memory_can_only_be_taken_down(keep: Keep | None) -> None:
    """One allocation was unmapped, the other could not be, and the first could not be mapped again."""
    with allocated({"mem_unmap", "mem_map"}) as (layout, content, addresses):
        driver, made = layout.ledger, layout.execution.layout
        layout.failing.at = layout.failing.calls + 2
        with pytest.raises(HeapFailed, match=r"not asleep: .* be taken down: .* 1 allocations have no memory$"):
            slept(layout, keep)
        layout.failing.at = 0
        refused: list[Callable[[], object]] = [
            lambda: slept(layout),
            lambda: free(content, addresses[0]),
            lambda: drop_backups(driver, made, "weights"),
        ]
        for act in refused:
            with pytest.raises(HeapFailed, match="heap 'weights' can only be taken down: "):
                act()
        assert "heap" in {each.aspect for each in layout.execution.check() if each.expected != each.observed}


def test_a_heap_that_sleeps_refuses_all_but_its_wake() -> None:
    """A second sleep would keep the bytes of memory that is gone."""
    with allocated() as (layout, content, addresses):
        driver, made = layout.ledger, layout.execution.layout
        slept(layout)
        refused: list[Callable[[], object]] = [
            lambda: slept(layout, None),
            lambda: free(content, addresses[0]),
            lambda: drop_backups(driver, made, "weights"),
            lambda: export(driver, content, addresses[0], HandleType.FD),
        ]
        for act in refused:
            with pytest.raises(HeapRefused, match="heap 'weights' is asleep"):
                act()
        woken(layout)
        assert read(layout, addresses) == [b"one", b"two"]
        with pytest.raises(HeapRefused, match="is not asleep"):
            woken(layout)


def test_a_heap_that_sleeps_is_not_woken_in_a_state_without_its_memory() -> None:
    states = planner.plan_states(plan_of(SPEC, TWO), geometry_of(SPEC, TWO))
    with allocated() as (layout, content, addresses):
        slept(layout)
        make_transition(layout.execution, states["empty"])
        with pytest.raises(HeapRefused, match="has no memory in the state of the layout"):
            woken(layout)
        assert (content.asleep, content.native.mapped) == (True, 0)
        make_transition(layout.execution, plan_of(SPEC, TWO))
        assert (content.asleep, content.native.mapped) == (True, 0)
        woken(layout)
        assert read(layout, addresses) == [b"one", b"two"]


def test_all_backups_are_dropped_and_the_bytes_of_the_heap_stay() -> None:
    """Also those of a sleep before the last one."""
    with allocated() as (layout, content, addresses):
        driver, made = layout.ledger, layout.execution.layout
        kinds: tuple[Keep | None, ...] = ("page-locked", None)
        for keep in kinds:
            slept(layout, keep)
            woken(layout)
        write(layout, addresses, b"one", b"two")
        assert layout.ledger.counts()["pinned"] == 2
        drop_backups(driver, made, "weights")
        assert (layout.ledger.counts()["pinned"], content.backups) == (0, {})
        slept(layout)
        woken(layout)
        assert read(layout, addresses) == [b"one", b"two"]


def test_what_is_refused_in_a_heap_leaves_its_allocations() -> None:
    """A limit counts what all heaps that share it have allocated, and an address is freed once."""
    with allocated() as (layout, content, addresses):
        cache = heaps(layout.execution.layout)["cache"]
        shared = allocate(cache, M)
        with pytest.raises(HeapRefused, match="has no handles of type 'fabric'"):
            export(layout.ledger, cache, shared, HandleType.FABRIC)
        with pytest.raises(HeapFull, match=r"4 MiB of its limit of 12 MiB are left; 6 MiB are allocated in it"):
            allocate(content, 3 * M)
        with pytest.raises(HeapFull, match=r"4 MiB of its limit of 12 MiB, which it shares with heap 'weights' are"):
            allocate(cache, 3 * M)
        with pytest.raises(HeapRefused, match="has no handles of type 'fd'"):
            export(layout.ledger, content, addresses[0], HandleType.FD)
        free(content, addresses[0])
        for wrong in (addresses[0], addresses[1] + M):
            with pytest.raises(HeapRefused, match="nothing is allocated at"):
                free(content, wrong)
        assert [each.address for each in content.native.allocations()] == [addresses[1]]
        assert allocate(content, 2 * M)
