"""Access of the simulator to the process that it is in."""

from __future__ import annotations

import ctypes
import mmap
import os
from tempfile import TemporaryFile

import pytest

from memtopo.testing.library import OwnProgram
from tests.helpers.processes import open_descriptors


def test_memory_and_descriptors_of_this_process_are_its_own() -> None:
    """A descriptor that it gets is closed by exec, and stays open here. Memory is not mapped over other memory."""
    program, pointer = OwnProgram(), ctypes.c_int()
    reading, writing = os.pipe()
    before = open_descriptors()
    opened = program.opened(reading)
    assert opened != reading
    assert open_descriptors() == before + 1
    os.set_inheritable(opened, True)
    program.store_descriptor(ctypes.addressof(pointer), opened)
    assert pointer.value == opened
    assert not os.get_inheritable(opened)
    for each in (opened, reading, writing):
        os.close(each)
    with mmap.mmap(-1, mmap.PAGESIZE) as own, TemporaryFile() as other:
        own[:], address = b"x" * mmap.PAGESIZE, ctypes.addressof(ctypes.c_char.from_buffer(own))
        other.truncate(mmap.PAGESIZE)
        with pytest.raises(OSError, match=f"no memory can be mapped at {address:#x}: File exists"):
            program.map(address, mmap.PAGESIZE, other.fileno(), 0)
        assert own[:] == b"x" * mmap.PAGESIZE
    with pytest.raises(OSError, match="Bad file"):
        program.opened((1 << 32) - 1)


def test_frames_are_those_of_the_program_and_not_of_what_runs_it() -> None:
    program = OwnProgram()

    def nested(depth: int) -> object:
        return nested(depth - 1) if depth else program.frames()

    found = nested(8)
    assert isinstance(found, tuple)
    assert [code.co_name for code, _ in found] == ["nested"] * 3
    assert all(code.co_filename == __file__ for code, _ in found)
