"""Tables of allocations that several processes share: one that reads them, and one that was forked."""

from __future__ import annotations

import ctypes
import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

import memtopo
from memtopo.api import Live
from memtopo.native.heaps import Refusal
from memtopo.native.tables import AllocationTable, tables_of

M = 1 << 20
SPEC = {
    "memtopo": 1,
    "name": "tables",
    "heaps": {"h": {"location": "gpu0", "size": "4GiB"}},
    "access": {"h": {"gpu0": "rw"}},
}
READER = """
import sys
from memtopo.native.tables import AllocationTable
table = AllocationTable(int(sys.argv[1]), writable=False)
print(*((each.address, each.size, each.mapped) for each in table.allocations()))
"""


@pytest.fixture
def layout() -> Iterator[Live]:
    with memtopo.applied(SPEC, "h200x2") as found:
        yield found


def table_of(layout: Live) -> AllocationTable:
    return layout.heap("h")._content.native.table


def test_another_process_reads_what_is_allocated(layout: Live) -> None:
    heap, fd = layout.heap("h"), table_of(layout).fd
    addresses = [heap.allocate(size * M) for size in (2, 6, 4)]
    heap.free(addresses[1])

    def read() -> str:
        command = [sys.executable, "-c", READER, str(fd)]
        return subprocess.run(command, check=True, capture_output=True, text=True, pass_fds=[fd]).stdout.strip()

    assert read() == f"({addresses[0]}, {2 * M}, True) ({addresses[2]}, {4 * M}, True)"
    heap.sleep()
    assert read() == f"({addresses[0]}, {2 * M}, False) ({addresses[2]}, {4 * M}, False)"


def test_a_table_has_room_for_an_allocation_of_each_granule_and_cannot_be_cut(layout: Live) -> None:
    heap, table = layout.heap("h"), table_of(layout)
    addresses = [heap.allocate(1) for _ in range(2048)]
    assert [each.address for each in table.allocations()] == addresses
    with pytest.raises(PermissionError):
        os.ftruncate(table.fd, 0)
    assert fcntl.fcntl(table.fd, fcntl.F_GET_SEALS) == fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def test_no_program_that_a_process_starts_has_the_descriptors_of_its_tables(layout: Live) -> None:
    ((_, table),) = tables_of(os.getpid(), "tables")
    assert [os.get_inheritable(each.fd) for each in (table, table_of(layout))] == [False, False]
    table.close()


def test_of_a_table_that_is_damaged_no_more_is_read_than_it_has_room_for() -> None:
    table = AllocationTable.create("damaged", "h", 2)
    assert table.head
    table.head.count = 1 << 40
    assert len(table.allocations()) == 2
    table.close()


def test_a_heap_and_its_layout_may_have_the_longest_names() -> None:
    name, label = "n" * 128, "h" * 128
    heap = {"heaps": {label: {"location": "gpu0", "size": "4MiB"}}, "access": {label: {"gpu0": "rw"}}}
    with memtopo.applied({"memtopo": 1, "name": name, **heap}, "h200x2") as layout:
        (found,) = tables_of(os.getpid(), name)
        found[1].close()
        assert found[0] == label
        assert layout.heap(label).size == 4 * M


def test_the_tables_of_a_layout_are_not_those_of_another_one_of_the_process(layout: Live) -> None:
    layout.heap("h").allocate(2 * M)
    with memtopo.applied({**SPEC, "name": "tables-2"}, "h200x2") as other:
        other.heap("h").allocate(6 * M)
        for name, size in (("tables", 2 * M), ("tables-2", 6 * M)):
            ((label, table),) = tables_of(os.getpid(), name)
            assert (label, [each.size for each in table.allocations()]) == ("h", [size])
            table.close()
        assert [*tables_of(os.getpid(), "table")] == []


def test_a_reader_never_sees_an_allocation_twice_while_others_come_and_go(layout: Live) -> None:
    """Eight of them, before some thousand that stay."""
    heap, table = layout.heap("h"), table_of(layout)
    first, *others = (heap.allocate(2 * M) for _ in range(2048))
    for each in others[:8]:
        heap.free(each)
    stop = threading.Event()

    def change() -> None:
        while not stop.is_set():
            for each in [heap.allocate(2 * M) for _ in range(8)]:
                heap.free(each)

    thread = threading.Thread(target=change)
    thread.start()
    seen = [[each.address for each in table.allocations()] for _ in range(400)]
    stop.set()
    thread.join()
    assert all(found == sorted(set(found)) for found in seen)
    assert all((found[0], *found[-2039:]) == (first, *others[8:]) for found in seen)


def test_a_forked_process_changes_nothing(layout: Live) -> None:
    """It has functions of the heap, as an allocator of another library does, which frees its memory as it ends."""
    heap = layout.heap("h")
    address = heap.allocate(2 * M)
    allocate, free = heap.functions
    before = table_of(layout).allocations()
    native = heap._content.native
    if not (child := os.fork()):
        try:
            with pytest.raises(memtopo.Unsuitable, match="from which this one was forked"):
                heap.free(address)
            free_function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)(
                free
            )
            allocate_function = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)(
                allocate
            )
            free_function(address, 2 * M, 0, None)
            with suppress(Refusal):
                native.free(address)
            code = 0 if allocate_function(2 * M, 0, None) is None else 1
            native.close()
            native.unmap()
            native.end()
            os._exit(code)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert table_of(layout).allocations() == before
    assert heap.allocate(2 * M) == address + 2 * M
    heap.free(address)


def test_a_table_that_is_still_empty_is_closed() -> None:
    fd = os.memfd_create("table", os.MFD_CLOEXEC)
    with pytest.raises(OSError, match="cannot be read"):
        AllocationTable(fd, writable=False)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
