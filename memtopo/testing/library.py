"""The library of the simulator: in this process, and in a folder for the programs of `LD_LIBRARY_PATH`."""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from threading import RLock
from types import CodeType

from memtopo.common.errors import UsageError
from memtopo.common.processes import python_command
from memtopo.native import LIBCUDA, NoLibrary, loaded
from memtopo.testing.program import Frames

SOCKET = "MEMTOPO_SIMULATOR"
"""Variable with the address of a simulator, which programs inherit."""

_ANSWER = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_uint64] * 9)
_DEINITIALIZED, _UNKNOWN = 4, 999
_FRAMES = 3
"""Places that are named of a call: its own, and those of its callers."""
_WAY = 4
"""Frames of memtopo at least between the library and the question for frames."""
_SKIPPED = ("memtopo.testing", "cuda.", "contextlib", "ctypes")

_ENDS = ("_pytest", "pluggy", "runpy", "threading", "multiprocessing")
"""Modules that run the programs of users."""

Answer = Callable[[int, Sequence[int]], int]

_answer: Answer | None = None
_callback: object = None
"""Function that the library calls."""


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

    def check(self, address: int, count: int, *, writable: bool) -> None:
        """Refuse nothing: as on hardware, SIGSEGV ends a process that copies from or to a hole."""

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

    def frames(self) -> Frames:
        found, frame = list[tuple[CodeType, int]](), sys._getframe(_WAY)  # noqa: SLF001
        while frame and len(found) < _FRAMES:
            name = frame.f_globals.get("__name__", "")
            if name.startswith(_ENDS):
                break
            if not name.startswith(_SKIPPED):
                found.append((frame.f_code, frame.f_lineno))
            frame = frame.f_back  # type: ignore[assignment]
        return tuple(found)


def answer_calls(answer: Answer) -> None:
    """Have the calls of this process answered by a function until `refuse_calls`. Raises `NoLibrary`."""
    global _answer, _callback  # noqa: PLW0603 the library is one for a process
    if _callback is None:  # it is never freed: a thread may be on its way into it

        def answered(number: int, words: Sequence[int]) -> int:
            current = _answer  # another thread may call `refuse_calls`
            return current(number, words) if current else _DEINITIALIZED

        _callback = _ANSWER(_without_collection(answered))
        atexit.register(loaded(LIBCUDA).memtopo_answer, None)  # libraries free objects at the interpreter's end
    _answer = answer
    loaded(LIBCUDA).memtopo_answer(_callback)


def refuse_calls() -> None:
    """Refuse the calls of this process."""
    global _answer  # noqa: PLW0603 likewise
    _answer = None


def _without_collection(answer: Answer) -> Callable[..., int]:
    """Return the function with no collection of garbage while it answers a call, on any thread.

    A finalizer may call the driver. On a thread whose call has the simulator's lock, it would never get it.
    """
    lock = RLock()
    answered = 0
    is_enabled = False

    def called(number: int, *words: int) -> int:
        nonlocal answered, is_enabled
        with lock:
            if not answered:
                is_enabled = gc.isenabled()
                gc.disable()
            answered += 1
        try:
            return answer(number, words)
        except KeyboardInterrupt:  # raised here it would be lost in C: again, when the call has returned
            loaded(LIBCUDA).memtopo_interrupt()
            return _UNKNOWN
        finally:
            with lock:
                answered -= 1
                if not answered and is_enabled:
                    gc.enable()

    return called


def require_no_driver() -> None:
    """Raise `UsageError` if this process has loaded a driver: functions of it may be in use."""
    own = str(LIBCUDA.file())
    files = {line.split(maxsplit=5)[-1].strip() for line in Path("/proc/self/maps").read_text().splitlines()}
    other = next((file for file in files if "libcuda.so" in file and file != own), None)
    if other:
        message = f"this process has loaded {other}, so the simulator cannot replace it"
        raise UsageError(message, hint="enter 'simulated' before the first call of the driver, or in another process")


def variables(address: str) -> dict[str, str]:
    """Variables of processes whose driver is the simulator at an address. Raises `NoLibrary`."""
    libraries = os.pathsep.join(filter(None, [str(folder()), os.environ.get("LD_LIBRARY_PATH")]))
    return {"LD_LIBRARY_PATH": libraries, SOCKET: address}


def folder() -> Path:
    """Folder with `libcuda.so.1`, `libcuda.so` to link with, and the program that starts a simulator.

    Raises `NoLibrary`.
    """
    built = LIBCUDA.file()
    command = shlex.join([*python_command("memtopo.testing.server:serve")])
    digest = sha256(f"{built}\n{command}".encode() + built.read_bytes()).hexdigest()[:16]
    made = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "memtopo", f"libcuda-{digest}").absolute()
    try:
        if not made.exists():
            made.parent.mkdir(parents=True, exist_ok=True)
            part = Path(tempfile.mkdtemp(prefix=f"{made.name}.", dir=made.parent))
            try:
                shutil.copy(built, part / "libcuda.so.1")
                (part / "libcuda.so").symlink_to("libcuda.so.1")
                (part / "simulator").write_text(f'#!/bin/sh\nexec {command} "$@"\n')
                (part / "simulator").chmod(0o755)
                with suppress(OSError):  # another process was faster
                    part.rename(made)
            finally:
                shutil.rmtree(part, ignore_errors=True)
    except OSError as error:
        message = f"the library of the simulator cannot be written to {made.parent}: {(error.strerror or '').lower()}"
        raise NoLibrary(message, hint="XDG_CACHE_HOME names another folder") from error
    return made
