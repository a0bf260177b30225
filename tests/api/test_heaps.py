"""Heaps of a live layout, on the simulator: allocations, states, sleep, failures and what they leave."""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import memtopo
from memtopo.api import Live
from memtopo.api.errors import NotMapped, OutOfMemory, Unsuitable
from memtopo.api.heaps import Heap
from memtopo.drivers.target import recorded
from memtopo.machine import dump
from memtopo.storage.saved import Index, opened_folder
from tests.api.test_apply import failing
from tests.contract.memory import current
from tests.contract.other_process import Other
from tests.contract.shared_resources import closing, imported, usable
from tests.helpers.machines import with_fabric

M = 1 << 20
SPEC = {
    "memtopo": 1,
    "name": "engine",
    "heaps": {
        "weights": {"location": "gpu0", "size": "64MiB", "limit": "48MiB"},
        "cache": {"location": "gpu0", "size": "64MiB", "limit": "weights"},
        "plain": {"location": "gpu1", "size": "64MiB"},
    },
    "access": {"weights": {"gpu0": "rw", "gpu1": "r"}, "cache": {"gpu0": "rw"}, "plain": {"gpu1": "rw"}},
    "states": {
        "level-1": {"offload": {"weights": "pinned"}, "drop": ["cache"]},
        "level-2": {"drop": ["weights", "cache"]},
    },
}


@pytest.fixture
def layout(machine: Any) -> Any:
    with memtopo.applied(SPEC, machine) as found:
        yield found
    assert found.report
    assert (found.report.outcome, found.report.leaks) == ("ok", ())


def fill(layout: Live, heap: str, address: int, value: int) -> None:
    view = np.from_dlpack(layout.heap(heap).view(address))
    view[:] = value


def bytes_of(layout: Live, heap: str, address: int) -> set[int]:
    found = np.from_dlpack(layout.heap(heap).view(address))
    low, high = int(found.min()), int(found.max())
    return {low} if low == high else {*np.unique(found).tolist()}  # which sorts


def test_allocations_are_whole_granules_side_by_side_and_holes_are_used_again(layout: Live) -> None:
    heap = layout.heap("weights")
    first, second, third = heap.allocate(3 * M), heap.allocate(1), heap.allocate(8 * M)
    assert [(each.address - heap.address, each.size) for each in heap.allocations] == [
        (0, 4 * M),
        (4 * M, 2 * M),
        (6 * M, 8 * M),
    ]
    assert (first, second, third) == tuple(each.address for each in heap.allocations)
    heap.free(second)
    assert heap.allocate(4 * M) == third + 8 * M, "the hole is too small"
    assert heap.allocate(2 * M) == second, "the hole that fits is used"
    assert heap.used == 18 * M


def test_the_smallest_hole_that_fits_is_used(layout: Live) -> None:
    heap = layout.heap("weights")
    made = [heap.allocate(size * M) for size in (8, 2, 4, 2, 6, 2)]
    for index in (0, 2, 4):
        heap.free(made[index])
    assert heap.allocate(4 * M) == made[2]
    assert heap.allocate(6 * M) == made[4]
    assert heap.allocate(6 * M) == made[0]


def test_a_limit_is_for_all_heaps_that_share_it_and_frees_count(layout: Live) -> None:
    weights, cache = layout.heap("weights"), layout.heap("cache")
    assert (weights.limit, cache.limit, layout.heap("plain").limit) == (48 * M, 48 * M, None)
    kept = weights.allocate(32 * M)
    cache.allocate(16 * M)
    assert (weights.explanation, cache.explanation) == (None, None)
    with pytest.raises(OutOfMemory, match=r"0 B of its limit of 48 MiB, which it shares with heap 'weights' are left"):
        cache.allocate(1)
    assert cache.explanation is not None
    weights.free(kept)
    cache.allocate(32 * M)


@pytest.mark.parametrize("limit", ["100MiB", "90%"])
def test_a_limit_that_heaps_share_may_be_more_than_the_addresses_of_one(machine: Any, limit: str) -> None:
    spec = {**SPEC, "heaps": {**SPEC["heaps"], "weights": {"location": "gpu0", "size": "64MiB", "limit": limit}}}  # type: ignore[dict-item]
    with memtopo.applied(spec, machine) as layout:
        weights, cache = layout.heap("weights"), layout.heap("cache")
        most = 100 * M if limit == "100MiB" else 128 * M
        assert weights.limit == cache.limit == most
        weights.allocate(64 * M)
        cache.allocate(most - 64 * M)
        with pytest.raises(OutOfMemory):
            cache.allocate(2 * M)


def test_a_request_beyond_the_addresses_names_the_largest_hole(layout: Live) -> None:
    heap = layout.heap("plain")
    heap.allocate(2 * M)
    with pytest.raises(
        MemoryError, match=r"the largest hole among its 64 MiB of addresses has 62 MiB; 2 MiB are alloc"
    ):
        heap.allocate(63 * M)
    assert isinstance(heap.allocate(62 * M), int)


def test_a_size_of_more_than_64_bits_has_no_room(layout: Live) -> None:
    with pytest.raises(OutOfMemory, match="cannot be allocated: the largest hole among its 64 MiB"):
        layout.heap("plain").allocate((1 << 64) + 1)


@pytest.mark.parametrize("wrong", [0, 1, -2, 2 * M])
def test_what_is_not_allocated_cannot_be_freed(layout: Live, wrong: int) -> None:
    heap = layout.heap("weights")
    address = heap.allocate(4 * M)
    with pytest.raises(Unsuitable, match="nothing is allocated at"):
        heap.free((address + wrong) % (1 << 64) if wrong else 7)
    with pytest.raises(Unsuitable, match="nothing is allocated at"):
        heap.free(address + (1 << 64))
    heap.free(address)
    with pytest.raises(Unsuitable, match="nothing is allocated at"):
        heap.free(address)


def test_a_state_keeps_addresses_and_the_bytes_that_it_offloads(layout: Live) -> None:
    weights, cache = layout.heap("weights"), layout.heap("cache")
    kept, dropped = weights.allocate(6 * M), cache.allocate(4 * M)
    fill(layout, "weights", kept, 7)
    fill(layout, "cache", dropped, 8)
    before = weights.allocations, cache.allocations
    assert not layout.switch("level-1").different
    assert (weights.allocations, cache.allocations) == before
    for heap in (weights, cache):
        with pytest.raises(Unsuitable, match="currently has no memory"):
            heap.allocate(1)
        with pytest.raises(Unsuitable, match="no memory in the state"):
            heap.free(heap.allocations[0].address)
    assert not layout.switch("awake").different
    assert bytes_of(layout, "weights", kept) == {7}
    assert bytes_of(layout, "cache", dropped) == {0}, "new memory of the simulator"
    layout.switch("level-2")
    layout.switch("awake")
    assert bytes_of(layout, "weights", kept) == {0}
    weights.free(kept)
    assert len(weights.allocations) == 0


def test_nothing_is_copied_from_a_backup_that_was_dropped(layout: Live) -> None:
    """Also on the way from a state that dropped the bytes, through one that offloads them"""
    heap = layout.heap("weights")
    address = heap.allocate(2 * M)
    fill(layout, "weights", address, 7)
    layout.switch("level-1")
    layout.switch("awake")
    heap.drop_backup()
    for state in ("level-2", "level-1", "awake"):
        assert not layout.switch(state).different
    assert bytes_of(layout, "weights", address) == {0}


def test_nothing_is_copied_from_pinned_memory_that_a_change_has_moved(machine: Any) -> None:
    def spec(**pinned: str) -> dict[str, Any]:
        return {
            "memtopo": 1,
            "name": "staged",
            "heaps": {"h": {"location": "gpu0", "size": "8MiB", "limit": "2MiB"}},
            "pinned": {name: {"size": size} for name, size in pinned.items()},
            "access": {"h": {"gpu0": "rw"}},
            "states": {"offloaded": {"offload": {"h": "stage"}}, "dropped": {"drop": ["h"]}},
        }

    with memtopo.applied(spec(stage="2MiB"), machine) as layout:
        fill(layout, "h", address := layout.heap("h").allocate(2 * M), 7)
        layout.switch("offloaded")
        layout.switch("awake")
        layout.change(spec(first="2MiB", stage="4MiB"))
        for state in ("dropped", "offloaded", "awake"):
            assert not layout.switch(state).different
        assert bytes_of(layout, "h", address) == {0}


def test_memory_is_given_back_while_a_state_is_without_it(machine: Any) -> None:
    with memtopo.applied(SPEC, machine) as layout:
        session = layout._session
        layout.heap("weights").allocate(32 * M)

        def handles() -> int:
            return len(session.driver.accounts["handles"])  # type: ignore[attr-defined]

        assert handles() == 1
        layout.switch("level-1")
        assert handles() == 0
        layout.switch("awake")
        assert handles() == 1


def test_bytes_of_what_is_allocated_later_and_freed_between_two_sleeps(layout: Live) -> None:
    """Backups follow the allocations: one that is freed leaves none, and a new one at its address has its own bytes."""
    heap = layout.heap("weights")
    first, second = heap.allocate(2 * M), heap.allocate(4 * M)
    fill(layout, "weights", first, 1)
    fill(layout, "weights", second, 2)
    layout.switch("level-1")
    layout.switch("awake")
    heap.free(first)
    again, third = heap.allocate(2 * M), heap.allocate(2 * M)
    assert again == first
    fill(layout, "weights", again, 3)
    fill(layout, "weights", third, 4)
    layout.switch("level-1")
    layout.switch("awake")
    assert [bytes_of(layout, "weights", each) for each in (again, second, third)] == [{3}, {2}, {4}]


@pytest.mark.parametrize(("keep", "found"), [("page-locked", 5), ("pageable", 5), (None, 0)])
def test_a_heap_sleeps_at_the_programs_request(layout: Live, keep: Any, found: int) -> None:
    heap, other = layout.heap("weights"), layout.heap("cache")
    address, untouched = heap.allocate(70 * M // 2), other.allocate(2 * M)
    fill(layout, "weights", address, 5)
    fill(layout, "cache", untouched, 6)
    heap.sleep(keep)
    assert heap.asleep
    assert (heap.backup(address + 5) is not None) is (keep is not None)
    assert not layout.check().different
    assert bytes_of(layout, "cache", untouched) == {6}
    for refused in (lambda: heap.allocate(1), lambda: heap.free(address), heap.sleep, heap.drop_backup):
        with pytest.raises(Unsuitable, match=r"asleep|currently has no memory"):
            refused()
    heap.wake()
    assert bytes_of(layout, "weights", address) == {found}
    with pytest.raises(Unsuitable, match="not asleep"):
        heap.wake()
    heap.drop_backup()
    assert heap.backup(address) is None
    heap.sleep()
    heap.wake()
    heap.sleep(None)
    assert heap.backup(address) is None


def test_the_bytes_of_a_heap_that_sleeps_are_in_a_folder(layout: Live, tmp_path: Path) -> None:
    """They come back in another sleep, too, and damaged ones leave it asleep."""
    heap, folder = layout.heap("weights"), tmp_path / "saved"
    addresses = [heap.allocate(70 * M // 2), heap.allocate(2 * M)]
    for _ in range(2):
        for value, address in enumerate(addresses):
            fill(layout, "weights", address, value + 3)
        heap.sleep(folder=folder)
        assert heap.asleep
        assert heap.backup(addresses[0]) is None
        heap.wake()
        assert [bytes_of(layout, "weights", each) for each in addresses] == [{3}, {4}]
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(NotMapped, match=r"is not asleep: .* is a link; it is as before .hint: name the folder"):
        heap.sleep(folder=tmp_path / "link")
    for keep in (None, "pageable"):
        with pytest.raises(memtopo.UsageError, match=r"keep=.* is not possible with a folder"):
            heap.sleep(keep, folder=tmp_path)
    with opened_folder(str(tmp_path / "layout"), write=True) as saved:
        saved.write_index(Index(layout.name, "", {}))
    with pytest.raises(NotMapped, match=r"has a save of '(\w+)', which one of 'heaps of \1' would replace"):
        heap.sleep(folder=tmp_path / "layout")
    assert bytes_of(layout, "weights", addresses[1]) == {4}
    heap.sleep(folder=folder)
    (file,) = folder.glob("*.bin")
    data = file.read_bytes()
    file.write_bytes(b"\1" + data[1:])
    with pytest.raises(NotMapped, match=r"stays asleep: .* chunk 0 of 'weights.0' is not as it was saved"):
        heap.wake()
    file.write_bytes(data)
    heap.wake()
    assert [bytes_of(layout, "weights", each) for each in addresses] == [{3}, {4}]


def test_a_folder_is_locked_while_a_heap_sleeps_in_it(tmp_path: Path, machine: Any) -> None:
    with memtopo.applied(SPEC, machine) as layout:
        heap, other = layout.heap("weights"), layout.heap("cache")
        address = heap.allocate(2 * M)
        fill(layout, "weights", address, 3)
        heap.sleep(folder=tmp_path)
        with pytest.raises(NotMapped, match=r"is not asleep: .* is in use"):
            other.sleep(folder=tmp_path)
        heap.wake()
        assert bytes_of(layout, "weights", address) == {3}
        other.sleep(folder=tmp_path)
    with opened_folder(str(tmp_path), write=True):
        pass  # the heap has ended asleep


def test_the_backup_of_an_address_is_that_of_its_own_allocation(layout: Live) -> None:
    """A later allocation at the same address has none."""
    heap = layout.heap("weights")
    first, second = made = heap.allocate(2 * M), heap.allocate(2 * M)
    for value, address in enumerate(made):
        fill(layout, "weights", address, value + 3)
        np.from_dlpack(heap.view(address))[7] = value + 5
    heap.sleep("pageable")
    for value, address in enumerate(made):
        kept = heap.backup(address)
        assert kept
        assert heap.backup(address + 7) == kept + 7
        assert [*(ctypes.c_ubyte * 8).from_address(kept)] == [value + 3] * 7 + [value + 5]
    assert (heap.backup(first - 1), heap.backup(second + 2 * M)) == (None, None)
    heap.wake()
    heap.free(first)
    assert heap.allocate(2 * M) == first
    assert (heap.backup(first), heap.backup(second)) == (None, kept)


def test_a_heap_that_sleeps_at_the_programs_request_sleeps_through_states(layout: Live) -> None:
    heap = layout.heap("weights")
    address = heap.allocate(4 * M)
    fill(layout, "weights", address, 5)
    heap.sleep()
    for state in ("level-1", "awake", "level-2", "awake"):
        assert not layout.switch(state).different
        assert heap.asleep
        if state != "awake":
            with pytest.raises(Unsuitable, match="heap 'weights' has no memory in the state of the layout"):
                heap.wake()
    heap.wake()
    assert bytes_of(layout, "weights", address) == {5}


def calls_of(act: Callable[[Live], object], before: Callable[[Live], object]) -> range:
    with memtopo.applied(SPEC, failing(0)) as layout:
        prepare(layout)
        before(layout)
        driver: Any = layout._session._opened
        first = driver.calls
        act(layout)
        return range(first + 1, driver.calls + 1)


def prepare(layout: Live) -> list[int]:
    """Five allocations of known bytes in a heap that a state offloads, and one in a heap that it drops."""
    heap = layout.heap("weights")
    addresses = [heap.allocate((index + 1) * M) for index in range(5)]
    for index, address in enumerate(addresses):
        fill(layout, "weights", address, index + 1)
    layout.heap("cache").allocate(2 * M)
    return addresses


def nothing(_layout: Live) -> None:
    """Leave the layout awake."""


REQUESTS: dict[str, tuple[Callable[[Live], object], Callable[[Live], object], type[Exception]]] = {
    "sleep by a state": (lambda layout: layout.switch("level-1"), nothing, memtopo.NotSwitched),
    "wake by a state": (
        lambda layout: layout.switch("awake"),
        lambda layout: layout.switch("level-1"),
        memtopo.NotSwitched,
    ),
    "sleep": (lambda layout: layout.heap("weights").sleep(), nothing, NotMapped),
    "sleep in pageable memory": (lambda layout: layout.heap("weights").sleep("pageable"), nothing, NotMapped),
    "wake": (lambda layout: layout.heap("weights").wake(), lambda layout: layout.heap("weights").sleep(), NotMapped),
}


@pytest.mark.exhaustive(seconds=5)
@pytest.mark.parametrize("name", REQUESTS)
def test_each_call_of_a_sleep_or_a_wake_that_fails_leaves_all_bytes(name: str) -> None:
    fail_calls(name, 1)


@pytest.mark.parametrize("name", REQUESTS)
def test_some_calls_of_a_sleep_or_a_wake_that_fail_leave_all_bytes(name: str) -> None:
    fail_calls(name, 9)


def fail_calls(name: str, step: int) -> None:
    """Let every so many calls of a request fail: the heap is as before, and the same request succeeds afterwards."""
    act, before, error = REQUESTS[name]
    calls = calls_of(act, before)
    for at in calls[::step]:
        with memtopo.applied(SPEC, failing(0)) as layout:
            driver: Any = layout._session._opened
            addresses = prepare(layout)
            before(layout)
            driver.at = at
            try:
                act(layout)
            except error as failed:
                if not re.match("heap 'weights' is (asleep|awake): ", str(failed)):
                    act(layout)
            if layout.heap("weights").asleep:
                layout.heap("weights").wake()
            layout.switch("awake")
            assert not layout.check().different
            assert [bytes_of(layout, "weights", each) for each in addresses] == [{i + 1} for i in range(5)], at
            layout.heap("weights").allocate(2 * M)
        assert layout.report
        assert (layout.report.outcome, layout.report.leaks) == ("ok", ()), at
    assert len(calls) > 10


def test_a_heap_whose_bytes_do_not_come_back_takes_no_memory() -> None:
    act, before, error = REQUESTS["wake"]
    calls = calls_of(act, before)
    with memtopo.applied(SPEC, failing(0)) as layout:
        driver: Any = layout._session._opened
        prepare(layout)
        before(layout)
        driver.at = calls[-2]
        with pytest.raises(error):
            act(layout)
        assert (driver.failed, layout.heap("weights")._content.native.mapped) == ("cuCtxSynchronize", 0)


def test_a_heap_wakes_later_with_its_bytes_if_a_wake_and_its_undo_have_failed() -> None:
    act, before, error = REQUESTS["wake"]
    calls = calls_of(act, before)
    with memtopo.applied(SPEC, failing(0)) as layout:
        driver: Any = layout._session._opened
        addresses = prepare(layout)
        before(layout)
        driver.at, driver._every = calls[-2], True
        with pytest.raises(error):
            act(layout)
        driver.at = 0
        act(layout)
        assert [bytes_of(layout, "weights", address) for address in addresses] == [{1}, {2}, {3}, {4}, {5}]
    assert layout.report
    assert (layout.report.outcome, layout.report.leaks) == ("ok", ())


def test_any_call_of_an_allocation_or_a_free_that_fails_changes_nothing() -> None:
    def act(layout: Live) -> None:
        heap = layout.heap("plain")
        heap.free(heap.allocate(4 * M))

    for at in calls_of(act, nothing):
        with memtopo.applied(SPEC, failing(0)) as layout:
            driver: Any = layout._session._opened
            addresses = prepare(layout)
            driver.at = at
            with suppress(OutOfMemory, NotMapped):  # a free that has to wait is made later
                act(layout)
            layout.heap("plain").allocate(64 * M)
            assert layout.heap("plain").used == 64 * M, "nothing else is left in it"
            assert [bytes_of(layout, "weights", each) for each in addresses] == [{i + 1} for i in range(5)], at
        assert layout.report
        assert (layout.report.outcome, layout.report.leaks) == ("ok", ()), at


def test_memory_that_the_program_has_not_freed_is_taken_down(machine: Any) -> None:
    with memtopo.applied(SPEC, machine) as layout:
        prepare(layout)
        heap = layout.heap("weights")
        heap.sleep()
        layout.heap("cache").allocate(2 * M)
    assert layout.report
    assert (layout.report.outcome, layout.report.leaks) == ("ok", ())
    with pytest.raises(Unsuitable, match="taken down"):
        layout.heap("weights")
    assert repr(heap) == "<heap 'weights' no longer exists: its layout was taken down>"
    assert not heap.exists


def test_a_change_keeps_allocations_and_follows_limits(layout: Live) -> None:
    address = layout.heap("weights").allocate(32 * M)
    fill(layout, "weights", address, 9)
    heaps = {**SPEC["heaps"], "more": {"location": "gpu0", "size": "8MiB"}}  # type: ignore[dict-item]
    heaps["weights"] = {"location": "gpu0", "size": "64MiB", "limit": "34MiB"}
    del heaps["plain"]
    access = {**SPEC["access"], "more": {"gpu0": "rw"}}  # type: ignore[dict-item]
    del access["plain"]
    assert not layout.change({**SPEC, "heaps": heaps, "access": access}).different
    assert bytes_of(layout, "weights", address) == {9}
    assert layout.heap("cache").limit == 34 * M
    layout.heap("cache").allocate(2 * M)
    with pytest.raises(OutOfMemory):
        layout.heap("cache").allocate(2 * M)
    heaps["weights"] = {"location": "gpu0", "size": "64MiB", "limit": "4MiB"}
    layout.change({**SPEC, "heaps": heaps, "access": access})
    with pytest.raises(OutOfMemory, match=r": 0 B of its limit of 4 MiB are left; 32 MiB are allocated in it"):
        layout.heap("weights").allocate(2 * M)
    layout.heap("more").allocate(8 * M)
    with pytest.raises(Unsuitable, match="no heap 'plain'"):
        layout.heap("plain")


def test_views_are_of_one_allocation(layout: Live) -> None:
    heap = layout.heap("weights")
    address = heap.allocate(4 * M)
    heap.allocate(4 * M)
    assert np.from_dlpack(heap.view(address, dtype="float32", shape=(-1, 4))).shape == (M // 4, 4)
    assert np.from_dlpack(heap.view(address + M, dtype="uint8")).shape == (3 * M,)
    with pytest.raises(Unsuitable, match="nothing is allocated"):
        heap.view(address + 8 * M)
    for too_much in ({"size": 80 * M}, {"size": 6 * M}, {"dtype": "float32", "shape": (M + M // 2,)}):
        with pytest.raises(Unsuitable, match=r"the allocation at 0x.* has 4MiB, and this view would be its bytes"):
            heap.view(address, **too_much)
    with pytest.raises(Unsuitable, match="margin is -1 bytes"):
        heap.keep_free(-1)
    with pytest.raises(Unsuitable, match="size is -1 bytes"):
        heap.allocate(-1)


def test_a_heap_without_a_margin_allocates_what_is_left(layout: Live) -> None:
    heap = layout.heap("weights")
    heap.keep_free(1 << 50)
    with pytest.raises(OutOfMemory, match="less than its margin free"):
        heap.allocate(2 * M)
    heap.keep_free(0)
    heap.allocate(2 * M)


def test_threads_allocate_in_heaps_of_their_own_while_another_one_switches_states(machine: Any) -> None:
    """A pattern for each allocation; no allocation is lost, and none of a heap that a state names is made meanwhile."""
    spec = {
        "memtopo": 1,
        "name": "threads",
        "heaps": {f"t{i}": {"location": "gpu0", "size": "64MiB"} for i in range(8)}
        | {"cache": {"location": "gpu0", "size": "64MiB"}},
        "access": {name: {"gpu0": "rw"} for name in (*(f"t{i}" for i in range(8)), "cache")},
        "states": {"asleep": {"offload": {"cache": "pinned"}}},
    }
    with memtopo.applied(spec, machine) as layout:
        cache = layout.heap("cache").allocate(2 * M)
        fill(layout, "cache", cache, 9)
        wrong: list[object] = []

        def work(name: str, value: int) -> None:
            try:
                heap = layout.heap(name)
                for _ in range(10):
                    made = [heap.allocate(size * M) for size in (3, 5)]
                    for address in made:
                        fill(layout, name, address, value)
                    assert all(bytes_of(layout, name, address) == {value} for address in made)
                    for address in made:
                        heap.free(address)
            except BaseException as error:  # noqa: BLE001 reported by the test
                wrong.append(error)

        threads = [threading.Thread(target=work, args=(f"t{i}", i + 1)) for i in range(8)]
        for each in threads:
            each.start()
        while any(each.is_alive() for each in threads):
            layout.switch("asleep")
            layout.switch("awake")
        assert not wrong
        assert bytes_of(layout, "cache", cache) == {9}
        assert not any(layout.heap(f"t{i}").allocations for i in range(8))


def test_pinned_memory_of_a_spec_keeps_what_has_room_there(machine: Any) -> None:
    spec = {
        "memtopo": 1,
        "name": "inside",
        "heaps": {"h": {"location": "gpu0", "size": "64MiB"}},
        "pinned": {"area": {"size": "8MiB", "accessed_by": ["gpu0"]}},
        "access": {"h": {"gpu0": "rw"}},
        "states": {"asleep": {"offload": {"h": "area"}}},
    }
    with memtopo.applied(spec, machine) as layout:
        heap = layout.heap("h")
        first, second = heap.allocate(4 * M), heap.allocate(4 * M)
        fill(layout, "h", first, 1)
        fill(layout, "h", second, 2)
        layout.switch("asleep")
        layout.switch("awake")
        assert [bytes_of(layout, "h", each) for each in (first, second)] == [{1}, {2}]
        third = heap.allocate(2 * M)
        with pytest.raises(memtopo.NotSwitched, match="has 10 MiB allocated, and 'area' keeps 8 MiB"):
            layout.switch("asleep")
        assert layout.state == "awake"
        assert [bytes_of(layout, "h", each) for each in (first, second)] == [{1}, {2}]
        heap.free(third)
        layout.switch("asleep")


CRAMPED = {
    "memtopo": 1,
    "name": "engine",
    "heaps": {name: {"location": "gpu0", "size": "64MiB"} for name in ("g", "h")},
    "pinned": {f"area-{name}": {"size": "8MiB", "accessed_by": "gpu0"} for name in ("g", "h")},
    "access": {name: {"gpu0": "rw"} for name in ("g", "h")},
    "states": {"asleep": {"offload": {name: f"area-{name}" for name in ("g", "h")}}},
}
"""Heaps of which each has more addresses than a state has room for its bytes."""


@pytest.mark.parametrize("full", ["g", "h"])
def test_all_heaps_are_open_after_a_switch_that_failed_for_want_of_room_for_one(machine: Any, full: str) -> None:
    with memtopo.applied(CRAMPED, machine) as layout:
        for name in ("g", "h"):
            fill(layout, name, layout.heap(name).allocate(2 * M), 1)
        large = layout.heap(full).allocate(8 * M)
        with pytest.raises(memtopo.NotSwitched, match=f"has 10 MiB allocated, and 'area-{full}' keeps 8"):
            layout.switch("asleep")
        layout.heap(full).free(large)
        for name in ("g", "h"):
            fill(layout, name, layout.heap(name).allocate(2 * M), 2)
        layout.switch("asleep")
        layout.switch("awake")
        for name in ("g", "h"):
            assert [bytes_of(layout, name, each.address) for each in layout.heap(name).allocations] == [{1}, {2}]


@pytest.mark.parametrize(("full", "asleep"), [("g", "h"), ("h", "g")])
def test_a_heap_that_the_program_put_to_sleep_sleeps_on_after_a_switch_that_failed(
    machine: Any, full: str, asleep: str
) -> None:
    with memtopo.applied(CRAMPED, machine) as layout:
        heap = layout.heap(asleep)
        address = heap.allocate(2 * M)
        fill(layout, asleep, address, 1)
        heap.sleep()
        layout.heap(full).allocate(10 * M)
        with pytest.raises(memtopo.NotSwitched, match=f"'area-{full}' keeps 8"):
            layout.switch("asleep")
        with pytest.raises(Unsuitable, match="currently has no memory"):
            heap.allocate(1)
        heap.wake()
        assert bytes_of(layout, asleep, address) == {1}


def test_another_process_maps_what_was_allocated_and_keeps_it_through_a_sleep(machine: Any) -> None:
    sharing = yaml.safe_load(yaml.safe_dump(SPEC))
    sharing["heaps"]["weights"]["handles"] = "fd"
    other = Other(dump(machine.machine))
    try:
        other.init()
        with memtopo.applied(sharing, machine) as layout, current(other):
            heap = layout.heap("weights")
            heap.allocate(2 * M)
            address = heap.allocate(4 * M)
            fill(layout, "weights", address, 7)
            with mapped_by(other, heap, address) as theirs:
                assert other.memcpy_dtoh(theirs + 4 * M - 8, 8) == b"\x07" * 8
                other.memcpy_htod(theirs, b"\x08" * 8)
                assert bytes_of(layout, "weights", address) == {7, 8}
                layout.switch("level-1")
                with pytest.raises(Unsuitable, match="no memory in the state"):
                    heap.export(address)
                assert other.memcpy_dtoh(theirs, 8) == b"\x08" * 8
                layout.switch("awake")
                other.memcpy_htod(theirs, b"\x09" * 8)
                assert bytes_of(layout, "weights", address) == {7, 8}, "it has other memory after a sleep"
            with mapped_by(other, heap, address) as theirs:
                assert other.memcpy_dtoh(theirs, 16) == b"\x08" * 8 + b"\x07" * 8
    finally:
        other.end()


@contextmanager
def mapped_by(other: Other, heap: Heap, address: int) -> Iterator[int]:
    """Address in another process of an allocation of 4 MiB."""
    fd = heap.export(address)
    assert isinstance(fd, int)
    with closing(fd), imported(other, fd) as handle, usable(other, 4 * M, handle) as theirs:
        yield theirs


class Library:
    """A library that allocates in a heap, and writes down what it is told."""

    def __init__(self, heap: Heap) -> None:
        self.heap, self.told = heap, list[str]()
        self.refuses = False

    def before_change(self) -> None:
        self.told.append("asleep" if self.heap.asleep else "awake")
        if self.refuses:
            raise Unsuitable("not now")

    def end(self) -> bool:
        self.told.append(f"ends with {len(self.heap.allocations)}")
        return False


def test_a_library_that_allocates_in_a_heap_is_told_of_changes_and_may_refuse_them(machine: Any) -> None:
    with memtopo.applied(SPEC, machine) as layout:
        heap = layout.heap("weights")
        library = heap.user(lambda: Library(heap))
        assert layout.heap("weights").user(lambda: Library(heap)) is library
        heap.allocate(2 * M)
        layout.heap("cache").sleep()
        assert not library.told
        heap.sleep()
        heap.wake()
        library.refuses = True
        for change in (lambda: layout.switch("level-2"), heap.sleep):
            with pytest.raises(Unsuitable, match="not now"):
                change()
        assert (layout.state, heap.asleep) == ("awake", False)
    assert library.told == ["awake", "asleep", "awake", "awake", "ends with 1"]


def test_an_allocation_is_not_exported_without_handles_nor_what_is_none(layout: Live) -> None:
    heap = layout.heap("weights")
    with pytest.raises(Unsuitable, match="no handles of type 'fd'") as error:
        heap.export(heap.allocate(2 * M))
    assert error.value.hint == "add 'handles: fd' to it"
    with pytest.raises(memtopo.UsageError, match="via='ipc' is not known"):
        heap.export(heap.address, "ipc")  # type: ignore[arg-type]


def test_an_allocation_is_exported_as_the_bytes_of_a_fabric_handle() -> None:
    spec = {**SPEC, "heaps": {"h": {"location": "gpu0", "size": "8MiB", "handles": "fabric"}}, "states": {}}
    with memtopo.applied({**spec, "access": {"h": {"gpu0": "rw"}}}, recorded("fabric", with_fabric(2))) as layout:
        heap = layout.heap("h")
        handle = heap.export(heap.allocate(2 * M), "fabric")
        assert (type(handle), len(handle)) == (bytes, 64)  # type: ignore[arg-type]


def test_functions_for_other_libraries_are_of_64_heaps_of_a_process(machine: Any) -> None:
    """The end of a layout gives them back."""
    names = [f"h{number}" for number in range(65)]
    heaps = {name: {"location": "gpu0", "size": "2MiB"} for name in names}
    spec = {"memtopo": 1, "name": "many", "heaps": heaps, "access": {name: {"gpu0": "rw"} for name in names}}
    for _ in range(2):
        with memtopo.applied(spec, machine) as layout:
            assert len({layout.heap(name).functions for name in names[:64]}) == 64
            with pytest.raises(Unsuitable, match="64 heaps of this process have functions"):
                layout.heap(names[64]).functions  # noqa: B018


def test_bytes_are_kept_in_memory_of_two_kinds_alone(layout: Live) -> None:
    heap = layout.heap("weights")
    address = heap.allocate(2 * M)
    fill(layout, "weights", address, 5)
    with pytest.raises(memtopo.UsageError, match="keep='disk' is not known"):
        heap.sleep("disk")  # type: ignore[arg-type]
    assert (heap.asleep, bytes_of(layout, "weights", address)) == (False, {5})


@pytest.mark.parametrize("node", ["host", "host:0"])
def test_a_heap_of_the_host_needs_no_access_of_a_gpu(node: str, machine: Any) -> None:
    spec = {
        "memtopo": 1,
        "name": "host",
        "heaps": {"h": {"location": node, "size": "8MiB"}},
        "access": {"h": {"host": "rw"}},
    }
    with memtopo.applied(spec, machine) as layout:
        heap = layout.heap("h")
        address = heap.allocate(4 * M)
        fill(layout, "h", address, 3)
        heap.sleep()
        heap.wake()
        assert bytes_of(layout, "h", address) == {3}
    assert layout.report
    assert (layout.report.outcome, layout.report.leaks) == ("ok", ())
