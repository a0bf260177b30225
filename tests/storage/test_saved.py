"""Saved folders: the bytes that come back are those that were saved, of one save, or nothing comes back."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from hashlib import sha256
from itertools import chain, repeat
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from memtopo.common.files import closing_fd
from memtopo.storage.direct import BLOCK, BUFFER, Buffer, DirectFile, Transfer
from memtopo.storage.pieces import Restored, restore, save_part
from memtopo.storage.saved import (
    INDEX,
    FolderRefused,
    Index,
    Piece,
    SavedPart,
    opened_folder,
    refusing,
    saving_to,
)

Contents = Mapping[str, bytes]

SMALL = {"a": b"first", "b.0": bytes(range(256)) * 16, "b.1": b"x" * (BLOCK + 1)}
CHANGED = {"a": b"FIRST", "b.0": bytes(range(256)) * 16, "b.1": b"y" * (BLOCK + 1)}


class HostMemory:
    """Memory of this process in place of a layout's."""

    def __init__(self, contents: Contents) -> None:
        self.contents = {name: bytearray(data) for name, data in contents.items()}

    def read(self, piece: str, offset: int, size: int, address: int) -> None:
        ctypes.memmove(address, bytes(self.contents[piece][offset : offset + size]), size)

    def write(self, piece: str, offset: int, size: int, address: int) -> None:
        self.contents[piece][offset : offset + size] = ctypes.string_at(address, size)


def groups(contents: Contents) -> list[list[Piece]]:
    """The pieces `a`, and those of the entry `b`, as a run groups them."""
    entries = dict.fromkeys(name.partition(".")[0] for name in contents)
    return [[Piece(name, len(contents[name])) for name in contents if name.startswith(each)] for each in entries]


def save(path: Path, contents: Contents, number: int = 1) -> SavedPart:
    """Save as a conductor does."""
    transfer = Transfer(lambda _done: None)
    with saving_to(str(path), "kv") as folder, transfer.running():
        part = save_part(folder, "", f"{number:016x}", groups(contents), HostMemory(contents), transfer)
        with refusing(str(path)):
            folder.write_index(Index("kv", "sha256:0", {"": part.file}))
    return part


def restored(path: Path, contents: Contents) -> tuple[Restored, Contents]:
    """Bring the bytes back to memory of the sizes of `contents`, which has zeros."""
    memory = HostMemory({name: bytes(len(data)) for name, data in contents.items()})
    transfer = Transfer(lambda _done: None)
    with opened_folder(str(path)) as folder, transfer.running():
        index = folder.read_index()
        assert index
        part = folder.read_part(index, "")
        assert part
        found = restore(folder, part, [each for group in groups(contents) for each in group], memory, transfer)
    return found, {name: bytes(data) for name, data in memory.contents.items()}


@pytest.mark.parametrize("size", [1, BLOCK - 1, BLOCK, BUFFER, BUFFER + 1, 2 * BUFFER + BLOCK + 5])
def test_bytes_of_any_size_come_back(tmp_path: Path, size: int) -> None:
    contents = {"a": os.urandom(size), "b.0": b"beside"}
    part = save(tmp_path / "saved", contents)
    assert (part.pieces, part.unchanged) == (2, 0)
    assert restored(tmp_path / "saved", contents) == (Restored(("a", "b.0"), (), (), size + 6, part.direct), contents)


def test_pieces_of_the_same_name_and_size_come_back_and_the_others_are_listed(tmp_path: Path) -> None:
    save(tmp_path / "saved", SMALL)
    found, contents = restored(tmp_path / "saved", {"a": b"     ", "b.1": b"-", "c": b"-"})
    assert (found.pieces, found.unused, found.without) == (("a",), ("b.0", "b.1"), ("b.1", "c"))
    assert contents == {"a": b"first", "b.1": b"\0", "c": b"\0"}


def test_a_file_whose_memory_has_not_changed_is_not_written_again(tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    save(folder, SMALL)
    before = {file.name: file.stat().st_ino for file in folder.glob("*.bin")}
    assert (save(folder, SMALL, 2).written, len(list(folder.iterdir()))) == (0, 4)
    part = save(folder, SMALL | {"a": b"FIRST"}, 3)
    assert (part.written, part.unchanged) == (BLOCK, 3 * BLOCK)
    after = {file.name: file.stat().st_ino for file in folder.glob("*.bin")}
    assert len(before.items() & after.items()) == 1
    (folder / next(iter(before.keys() & after.keys()))).write_bytes(b"cut")
    assert save(folder, SMALL | {"a": b"FIRST"}, 4).unchanged == BLOCK
    assert restored(folder, SMALL)[1] == SMALL | {"a": b"FIRST"}


def in_child(act: Callable[[], object]) -> int:
    """Call a function in a child process; return its exit status, -9 if it was killed."""
    child = os.fork()
    if not child:
        status = 1
        try:
            act()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def at_call(number: int, act: Callable[[], object]) -> None:
    """Call a function before that call of the system by `memtopo.storage`, in any thread; raise what it raises."""
    strikes = chain(repeat(False, number), [True], repeat(False))  # once, in whichever thread

    def count(frame: FrameType, event: str, function: Any) -> None:
        if event != "c_call" or getattr(function, "__module__", "") != "posix":
            return
        caller = frame.f_globals["__name__"]
        if caller.startswith(("memtopo.storage", "memtopo.common")) and next(strikes):
            sys.setprofile(None)
            threading.setprofile(None)
            act()

    threading.setprofile(count)
    sys.setprofile(count)


def fail(code: int) -> None:
    raise OSError(code, os.strerror(code))


FAULTS = {
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "full": lambda: fail(errno.ENOSPC),
    "broken": lambda: fail(errno.EIO),
}


@pytest.mark.parametrize(("fault", "first", "step"), [("killed", 0, 3), ("full", 0, 4), ("broken", 2, 4)])
def test_a_fault_at_any_call_leaves_the_save_before_or_the_new_one(
    tmp_path: Path, fault: str, first: int, step: int
) -> None:
    seen = set()
    for number in range(first, 1000, step):
        folder = tmp_path / f"saved-{number}"
        save(folder, SMALL)

        def save_with_fault(folder: Path = folder, number: int = number) -> None:
            at_call(number, FAULTS[fault])
            save(folder, CHANGED, 2)
            sys.setprofile(None)

        status = in_child(save_with_fault)
        _, contents = restored(folder, SMALL)
        assert contents in (SMALL, CHANGED)
        seen.add(contents["a"])
        save(folder, CHANGED, 3)
        assert len(list(folder.iterdir())) == 4
        if status == 0:
            break
    assert restored(folder, SMALL)[1] == CHANGED
    assert number > 20
    assert seen == {b"first", b"FIRST"}


@pytest.mark.parametrize("limit", [0, 100, BLOCK, 2 * BLOCK, 3 * BLOCK])
def test_a_limit_of_file_size_leaves_the_save_before(tmp_path: Path, limit: int) -> None:
    save(tmp_path / "saved", SMALL)

    def save_within_limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        with pytest.raises(FolderRefused, match="file too large"):
            save(tmp_path / "saved", {name: data + b"!" * 2 * BLOCK for name, data in CHANGED.items()}, 2)

    assert in_child(save_within_limit) == 0
    assert restored(tmp_path / "saved", SMALL)[1] == SMALL
    assert len(list((tmp_path / "saved").iterdir())) == 4


def test_each_file_is_synced(tmp_path: Path) -> None:
    def syncs(number: int) -> int:
        found: list[str] = []

        def note(_frame: FrameType, event: str, function: Any) -> None:
            if event == "c_call":
                found.append(function.__name__)

        threading.setprofile(note)
        save(tmp_path / str(number), {f"entry{each}": b"some" for each in range(number)})
        threading.setprofile(None)
        return found.count("fsync")

    assert [syncs(number) for number in (1, 2, 5)] == [1, 2, 5]


def test_many_files_are_saved_with_few_of_them_open(tmp_path: Path) -> None:
    many = {f"entry{number:03}": bytes([number % 256]) * (number + 1) for number in range(150)}

    def save_within_limit() -> None:
        limit = len(os.listdir("/proc/self/fd")) + 80
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
        assert save(tmp_path / "saved", many).written == 150 * BLOCK
        assert restored(tmp_path / "saved", many)[1] == many

    assert in_child(save_within_limit) == 0


def flipped(file: Path, offset: int) -> None:
    data = bytearray(file.read_bytes())
    data[offset] ^= 1
    file.write_bytes(data)


def test_a_flipped_bit_in_any_file_is_refused(tmp_path: Path) -> None:
    save(tmp_path / "saved", SMALL)
    for file in (tmp_path / "saved").iterdir():
        used = range(file.stat().st_size) if file.suffix == ".json" else [0, 4]
        for offset in [*used][:: max(len(used) // 20, 1)]:
            flipped(file, offset)
            with pytest.raises(FolderRefused, match=r"not as it was saved|has version"):
                restored(tmp_path / "saved", SMALL)
            flipped(file, offset)
    assert restored(tmp_path / "saved", SMALL)[1] == SMALL


def test_an_error_names_the_chunk(tmp_path: Path) -> None:
    contents = {"a": bytes(2 * BUFFER + 5)}
    save(tmp_path / "saved", contents)
    (file,) = (tmp_path / "saved").glob("*.bin")
    flipped(file, BUFFER + 7)
    with pytest.raises(FolderRefused, match=r"layout-0.bin: chunk 1 of 'a' is not as it was saved"):
        restored(tmp_path / "saved", contents)
    os.truncate(file, 2 * BUFFER)
    with pytest.raises(FolderRefused, match=r"was cut to 32MiB: chunk 2 of 'a' ends beyond its end"):
        restored(tmp_path / "saved", contents)


def missing(folder: Path) -> None:
    next(folder.glob("*.bin")).unlink()


def piped(folder: Path) -> None:
    file = next(folder.glob("*.bin"))
    file.unlink()
    os.mkfifo(file)


def linked(folder: Path) -> None:
    file = next(folder.glob("*.bin"))
    file.rename(folder.parent / "elsewhere")
    file.symlink_to(folder.parent / "elsewhere")


def of_another(folder: Path) -> None:
    save(folder.parent / "other", CHANGED, 9)
    (folder / INDEX).write_bytes((folder.parent / "other" / INDEX).read_bytes())


def part_of_another(folder: Path) -> None:
    save(folder.parent / "other", CHANGED, 1)
    name = next((folder.parent / "other").glob("*.json")).name
    (folder / name).write_bytes((folder.parent / "other" / name).read_bytes())


def signed(folder: Path, change: Callable[[Any], object]) -> None:
    """Change the index, with the checksums that it has to have."""
    index = json.loads((folder / INDEX).read_text())
    found = json.loads(index["index"])
    change(found)
    text = json.dumps(found)
    (folder / INDEX).write_text(json.dumps({"index": text, "sha256": sha256(text.encode()).hexdigest()}))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (missing, "bin is missing"),
        (piped, "is not as it was saved"),
        (linked, "is not as it was saved"),
        (of_another, "json is missing"),
        (part_of_another, "is not as it was saved"),
        (lambda folder: (folder / INDEX).write_text("[" * 100_000), "is not as it was saved"),
        (lambda folder: signed(folder, lambda index: index.update(version=2)), "has version 2"),
        (lambda folder: signed(folder, lambda index: index.update(parts={"": {"name": "/etc/passwd"}})), "not as"),
        (lambda folder: signed(folder, lambda index: index.update(more=1)), "not as it was saved"),
    ],
)
def test_a_damaged_folder_is_refused(tmp_path: Path, damage: Callable[[Path], object], message: str) -> None:
    save(tmp_path / "saved", SMALL)
    damage(tmp_path / "saved")
    with pytest.raises(FolderRefused, match=message):
        restored(tmp_path / "saved", SMALL)


def link(path: Path) -> Iterator[None]:
    path.with_name("real").mkdir()
    path.symlink_to(path.with_name("real"))
    yield


def open_to_all(path: Path) -> Iterator[None]:
    path.mkdir()
    path.chmod(0o777)
    yield


def locked(path: Path) -> Iterator[None]:
    path.mkdir()
    fd = os.open(path, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_SH)
    yield
    os.close(fd)


def someones(path: Path) -> Iterator[None]:
    path.mkdir()
    (path / "thesis.tex").touch()
    yield


def a_file(path: Path) -> Iterator[None]:
    path.touch()
    yield


def nowhere(path: Path) -> Iterator[None]:
    path.symlink_to(path.with_name("nothing"))
    yield


def of_others(path: Path) -> Iterator[None]:
    with saving_to(str(path), "others") as folder:
        folder.write_index(Index("others", "", {}))
    yield


UNUSABLE = [
    (link, "is a link"),
    (nowhere, "is a link"),
    (open_to_all, "every user may write"),
    (locked, "is in use"),
    (someones, "has other files, such as 'thesis.tex'"),
    (a_file, "not a directory"),
    (of_others, r"has a save of 'others', which one of '\w+' would replace"),
]


@pytest.mark.parametrize(("prepare", "message"), UNUSABLE)
def test_a_folder_that_cannot_be_used_is_refused(
    tmp_path: Path, prepare: Callable[[Path], Iterator[None]], message: str
) -> None:
    prepared = prepare(tmp_path / "saved")
    next(prepared)
    with pytest.raises(FolderRefused, match=message):
        save(tmp_path / "saved", SMALL)
    next(prepared, None)


def test_a_folder_is_made_where_there_is_one_for_it(tmp_path: Path) -> None:
    with pytest.raises(FolderRefused, match=r"/new/saved' is in a folder that does not exist"):
        save(tmp_path / "new" / "saved", SMALL)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a folder to another user")
def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "saved").mkdir()
    os.chown(tmp_path / "saved", 65534, 65534)
    with pytest.raises(FolderRefused, match="belongs to uid 65534, and this process has uid 0"):
        save(tmp_path / "saved", SMALL)


def test_a_file_system_without_room_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    transfer = Transfer(lambda _done: None)
    with opened_folder(str(tmp_path / "saved"), write=True) as folder, transfer.running():
        with pytest.raises(FolderRefused, match=r"free, and the save needs 1024 TiB .hint"):
            save_part(folder, "", "0" * 16, [[Piece("a", 1 << 50)]], HostMemory({}), transfer)
        assert os.listdir(folder.fd) == []


def test_what_direct_io_refuses_is_written_through_the_page_cache(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w+b") as file:
        found = DirectFile(file.fileno())
        found.set_direct()
        found.write(memoryview(b"unaligned"), 3)
        data = bytearray(20)
        assert found.read(memoryview(data), 0) == 12
    assert bytes(data[:12]) == b"\0\0\0unaligned"


@pytest.mark.parametrize(("size", "expected"), [(BLOCK, b"cached"), (BLOCK + 1, b"disk"), (None, b"disk")])
def test_what_the_page_cache_has_is_read_from_there(tmp_path: Path, size: int | None, expected: bytes) -> None:
    """The file of `buffered` is another one here: if it has a second block, no one has read or written that.

    A folder is a file that cannot be mapped.
    """
    (tmp_path / "disk").write_bytes(b"disk".ljust(2 * BLOCK))
    (tmp_path / "cached").write_bytes(b"cached".ljust(BLOCK))
    other = tmp_path / "cached" if size else tmp_path
    if size:
        os.truncate(other, size)
    buffer = Buffer.allocate()
    with (tmp_path / "disk").open("rb") as disk, closing_fd(os.open(other, os.O_RDONLY)) as cached:
        file = DirectFile(disk.fileno(), buffered=cached)
        file.set_direct()
        file.read(buffer.part(2 * BLOCK), 0)
    assert bytes(buffer.part(len(expected))) == expected


def memory_size() -> int:
    """Bytes of the addresses that this process has mapped."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def divide(number: int, _buffer: Buffer) -> float:
    return 1 / number


def test_the_buffers_of_a_transfer_are_freed() -> None:
    sizes = []
    for _ in range(3):
        with Transfer(lambda _done: None).running():
            pass
        sizes.append(memory_size())
    assert sizes[2] - sizes[0] < BUFFER


def test_a_forked_process_has_no_buffers() -> None:
    def look(buffer: Buffer) -> None:
        ranges = [line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines()]
        assert not any(int(start, 16) <= buffer.address < int(end, 16) for start, end in ranges)

    with Transfer(lambda _done: None).running() as transfer:
        assert {in_child(partial(look, each)) for each in transfer.buffers} == {0}


def test_the_first_error_of_a_task_ends_a_transfer() -> None:
    done: list[int] = []
    transfer = Transfer(done.append)
    with transfer.running(), pytest.raises(ZeroDivisionError):
        transfer.run([partial(divide, number - 3) for number in range(10_000)])
    assert sum(done) == 3
