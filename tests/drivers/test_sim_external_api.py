"""Objects of another API on the simulator, identified by descriptors in every process."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from memtopo.drivers.sim import external_api
from tests.contract.shared_resources import closing
from tests.helpers.specs import ROOT

UUID = bytes(range(16))
OTHER = """
import sys
from memtopo.drivers.sim import external_api
memory, timeline, binary = map(int, sys.argv[1:])
assert external_api.wait(timeline, 3)
assert external_api.read(memory, 100, 4) == b"ours"
external_api.write(memory, 0, b"theirs")
external_api.signal(binary)
"""


def test_external_memory_holds_bytes() -> None:
    """Memory reads as zero, then as what was written, by every descriptor of it, and not past its end"""
    with closing(external_api.allocate(UUID, 1 << 20)) as fd, closing(os.dup(fd)) as another:
        assert external_api.read(fd, 100, 3) == bytes(3)
        external_api.write(fd, 100, b"abc")
        assert external_api.read(another, 99, 5) == b"\0abc\0"
        with pytest.raises(ValueError, match="1048576 bytes"):
            external_api.write(fd, (1 << 20) - 1, b"ab")
        with pytest.raises(ValueError, match="1048576 bytes"):
            external_api.read(fd, -1, 1)


def test_small_memory_is_rounded_up() -> None:
    """Fact 53: memory of 100,000 bytes can be used a little beyond"""
    with closing(external_api.allocate(UUID, 100_000)) as fd:
        external_api.write(fd, 104_095, b"x")
        assert os.fstat(fd).st_size == 128 << 10


def test_a_timeline_reaches_values() -> None:
    """A timeline begins at its value, goes where it is set, and a wait is over at any value that is at least wanted"""
    with closing(external_api.make_semaphore(timeline=True, value=5)) as fd:
        assert external_api.counter(fd) == 5
        assert external_api.wait(fd, 5, timeout=0)
        assert not external_api.wait(fd, 6, timeout=0)
        external_api.signal(fd, 1 << 63)
        assert external_api.wait(fd, 6, timeout=0)
        assert external_api.counter(fd) == 1 << 63


def test_a_binary_signal_is_taken_once() -> None:
    """One signal of a binary semaphore ends one of several waits"""
    with closing(external_api.make_semaphore(timeline=False)) as fd:
        assert not external_api.wait(fd, timeout=0)
        external_api.signal(fd, 7)
        assert external_api.counter(fd) == 1
        over: list[bool] = []
        threads = [threading.Thread(target=lambda: over.append(external_api.wait(fd, timeout=0.1))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(over) == [False] * 7 + [True]


def test_another_process_shares_memory_and_semaphores() -> None:
    """Memory and semaphores work in every process that has their descriptors"""
    with (
        closing(external_api.allocate(UUID, 1 << 16)) as memory,
        closing(external_api.make_semaphore(timeline=True)) as timeline,
        closing(external_api.make_semaphore(timeline=False)) as binary,
    ):
        fds = (memory, timeline, binary)
        done = subprocess.Popen(
            [sys.executable, "-c", OTHER, *map(str, fds)], env=os.environ | {"PYTHONPATH": str(ROOT)}, pass_fds=fds
        )
        external_api.write(memory, 100, b"ours")
        external_api.signal(timeline, 3)
        assert external_api.wait(binary, timeout=60)
        assert external_api.read(memory, 0, 6) == b"theirs"
        assert done.wait(60) == 0


def test_what_is_something_else_is_refused() -> None:
    """Memory is no semaphore, a semaphore no memory, and a pipe is neither"""
    ours, theirs = os.pipe()
    with (
        closing(ours),
        closing(theirs),
        closing(external_api.allocate(UUID, 8)) as memory,
        closing(external_api.make_semaphore(timeline=True)) as semaphore,
    ):
        with pytest.raises(ValueError, match="simulated memory"):
            external_api.signal(memory)
        with pytest.raises(ValueError, match="simulated timeline"):
            external_api.read(semaphore, 0, 1)
        with pytest.raises(ValueError, match="not belong to a simulated object"):
            external_api.counter(ours)
    for uuid, size in ((UUID, 0), (b"short", 8)):
        with pytest.raises(ValueError, match="more than 0 bytes"):
            external_api.allocate(uuid, size)
