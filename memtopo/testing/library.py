"""The library of the simulator: in this process, and in a folder for the programs of `LD_LIBRARY_PATH`."""

from __future__ import annotations

import atexit
import ctypes
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path

from memtopo.common.errors import UsageError
from memtopo.common.processes import python_command
from memtopo.native import LIBCUDA, loaded

SOCKET = "MEMTOPO_SIMULATOR"
"""Variable with the address of a simulator, which programs inherit."""

_ANSWER = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_uint64] * 9)
_SKIPPED = ("memtopo.testing", "cuda.", "contextlib", "ctypes")

Answer = Callable[[int, Sequence[int]], int]

_callback: object = None
"""Function that the library calls; it exists as long as the library has it."""


class OwnProgram:
    """Access to this process."""

    def __init__(self) -> None:
        self._map = loaded(LIBCUDA).memtopo_map
        self._map.argtypes = ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int, ctypes.c_uint64
        self._unmap = ctypes.CDLL(None).munmap
        self._unmap.argtypes = ctypes.c_void_p, ctypes.c_size_t

    def read(self, address: int, count: int) -> bytes:
        return ctypes.string_at(address, count)

    def write(self, address: int, data: bytes) -> None:
        ctypes.memmove(address, data, len(data))

    def opened(self, fd: int) -> int:
        return os.dup(ctypes.c_int(fd).value)

    def map(self, address: int, size: int, fd: int, offset: int) -> None:
        if error := self._map(address, size, fd, offset):
            raise OSError(error, f"no memory can be mapped at {address:#x}: {os.strerror(error)}")

    def unmap(self, address: int, size: int) -> None:
        self._unmap(address, size)

    def store_descriptor(self, pointer: int, fd: int) -> None:
        os.set_inheritable(fd, False)  # noqa: FBT003
        self.write(pointer, fd.to_bytes(4, sys.byteorder))

    def place(self) -> str:
        frame = sys._getframe(1)  # noqa: SLF001
        while frame and frame.f_globals.get("__name__", "").startswith(_SKIPPED):
            frame = frame.f_back  # type: ignore[assignment]
        return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else ""


def answer_calls(answer: Answer | None) -> None:
    """Have the calls of this process answered by a function, or refused. Raises `NoLibrary`.

    They are refused at the end of the interpreter, when libraries free what they have.
    """
    global _callback  # noqa: PLW0603 the library is one for a process
    callback = _ANSWER(lambda number, *words: answer(number, words)) if answer else None
    loaded(LIBCUDA).memtopo_answer(callback)
    _callback = callback
    atexit.unregister(_refuse_calls)
    atexit.register(_refuse_calls)


def _refuse_calls() -> None:
    loaded(LIBCUDA).memtopo_answer(None)


def require_no_driver() -> None:
    """Raise `UsageError` if this process has loaded a driver: functions of it may be in use."""
    own = str(LIBCUDA.file())
    files = {line.split(maxsplit=5)[-1].strip() for line in Path("/proc/self/maps").read_text().splitlines()}
    other = next((file for file in files if "libcuda.so" in file and file != own), None)
    if other:
        message = f"this process has loaded {other}, so that the simulator cannot take its place"
        raise UsageError(message, hint="enter 'simulated' before the first call of the driver, or in another process")


def folder() -> Path:
    """Folder with `libcuda.so.1`, `libcuda.so` to link with, and the program that starts a simulator.

    Raises `NoLibrary`.
    """
    built = LIBCUDA.file()
    command = shlex.join([*python_command("memtopo.testing.server:serve")])
    digest = sha256(f"{built}\n{command}".encode() + built.read_bytes()).hexdigest()[:16]
    made = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "memtopo", f"libcuda-{digest}").absolute()
    if not made.exists():
        part = made.with_name(f"{made.name}.{os.getpid()}")
        part.mkdir(parents=True)
        shutil.copy(built, part / "libcuda.so.1")
        (part / "libcuda.so").symlink_to("libcuda.so.1")
        (part / "simulator").write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        (part / "simulator").chmod(0o755)
        try:
            part.rename(made)
        except OSError:  # another process was faster
            shutil.rmtree(part)
    return made
