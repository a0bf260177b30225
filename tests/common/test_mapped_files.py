"""Mappings of files: what is written through one is in the file and in every other one."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from memtopo.common.mapped_files import (
    ANONYMOUS,
    FIXED,
    READ,
    READ_WRITE,
    FileSegment,
    HostMapping,
    is_cached,
    map_memory,
    map_shared,
    punch_hole,
    unmap,
)
from tests.storage.test_saved import in_child, memory_size

PAGE = mmap.PAGESIZE


@pytest.fixture
def file() -> Iterator[int]:
    """A file in memory of three pages, each of bytes of its own."""
    fd = os.memfd_create("memtopo-test", os.MFD_CLOEXEC)
    os.pwrite(fd, b"".join(bytes([number]) * PAGE for number in (1, 2, 3)), 0)
    yield fd
    os.close(fd)


def test_a_mapping_shows_its_part_of_a_file_and_shares_what_is_written(file: int) -> None:
    address, other = map_shared(file, PAGE, 2 * PAGE, writable=True), map_shared(file, 2 * PAGE, PAGE, writable=False)
    assert [ctypes.string_at(each, 1) for each in (address, address + PAGE, other)] == [b"\2", b"\3", b"\3"]
    ctypes.memset(address + PAGE, 7, 2)
    assert (ctypes.string_at(other, 3), os.pread(file, 3, 2 * PAGE)) == (b"\7\7\3", b"\7\7\3")
    unmap(address, PAGE)
    assert ctypes.string_at(address + PAGE, 1) == b"\7"
    unmap(address + PAGE, PAGE)
    unmap(other, PAGE)


def test_a_file_that_may_only_be_read_is_not_mapped_for_writing(file: int) -> None:
    reader = os.open(f"/proc/self/fd/{file}", os.O_RDONLY)
    with pytest.raises(PermissionError):
        map_shared(reader, 0, PAGE, writable=True)
    address = map_shared(reader, 0, PAGE, writable=False)
    assert ctypes.string_at(address, 1) == b"\1"
    unmap(address, PAGE)
    os.close(reader)


def test_a_hole_empties_its_part_of_a_file_and_no_other(file: int) -> None:
    """The file keeps its size, also with a hole at its end."""
    for offset, left in ((PAGE, [1, 0, 3]), (2 * PAGE, [1, 0, 0])):
        punch_hole(file, offset, PAGE)
        assert [os.pread(file, 1, number * PAGE)[0] for number in range(3)] == left
        assert os.fstat(file).st_size == 3 * PAGE
    assert os.fstat(file).st_blocks * 512 == PAGE


def test_memory_at_a_given_address_is_in_place_of_what_was_there() -> None:
    address = map_memory(None, 2 * PAGE, READ_WRITE, ANONYMOUS)
    ctypes.memset(address, 5, 2 * PAGE)
    assert map_memory(address + PAGE, PAGE, READ_WRITE, ANONYMOUS | FIXED) == address + PAGE
    assert [ctypes.string_at(address + at, 1) for at in (0, PAGE)] == [b"\5", b"\0"]
    unmap(address, 2 * PAGE)


def test_a_part_of_a_file_is_cached_if_all_of_its_pages_are(file: int) -> None:
    os.ftruncate(file, 5 * PAGE)  # two pages that no one has read or written
    cached = {(0, PAGE), (0, 3 * PAGE), (PAGE + 5, PAGE), (2 * PAGE, PAGE)}
    parts = [*cached, (0, 4 * PAGE), (2 * PAGE + 5, PAGE), (3 * PAGE, PAGE), (4 * PAGE, 5 * PAGE), (5 * PAGE, PAGE)]
    assert {part for part in parts if is_cached(file, *part)} == cached
    os.ftruncate(file, 2 * PAGE + 7)
    assert is_cached(file, PAGE, 9 * PAGE)
    os.ftruncate(file, 1 << 30)
    before = memory_size()
    assert not is_cached(file, 0, 1 << 30)
    assert memory_size() - before < 1 << 29


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_a_user_who_may_not_write_a_file_is_not_told_that_it_is_cached(file: int) -> None:
    def look() -> None:
        os.seteuid(65534)
        assert not is_cached(file, 0, PAGE)

    os.fchmod(file, 0o644)
    assert in_child(look) == 0


def test_a_mapping_follows_another_file_under_the_number_of_a_closed_one() -> None:
    with os.fdopen(os.memfd_create("a"), "w+b") as file, os.fdopen(os.memfd_create("b"), "w+b") as other:
        for each, byte in ((file, b"a"), (other, b"b")):
            os.write(each.fileno(), byte * PAGE)
        part = FileSegment(0, PAGE, file.fileno(), 0, READ)
        mapping = HostMapping(part.size, [part])
        found = []
        for _ in range(2):
            found.append(ctypes.string_at(mapping.address, 1))
            os.dup2(other.fileno(), part.fd)
            mapping.replace([part])
        mapping.close()
    assert found == [b"a", b"b"]


def test_parts_of_one_file_have_their_own_access() -> None:
    size, granted = PAGE, (READ, READ_WRITE, READ_WRITE)
    with os.fdopen(os.memfd_create("a"), "w+b") as file:
        os.truncate(file.fileno(), 3 * size)
        parts = [FileSegment(size * at, size, file.fileno(), size * at, each) for at, each in enumerate(granted)]
        mapping = HostMapping(3 * size, parts)
        maps = [line.split()[:2] for line in Path("/proc/self/maps").read_text().splitlines()]
        mapping.close()
    start, middle, end = (f"{mapping.address + size * at:x}" for at in (0, 1, 3))
    readable, writable = [f"{start}-{middle}", "r--s"], [f"{middle}-{end}", "rw-s"]
    assert [each for each in maps if each in (readable, writable)] == [readable, writable]
