"""The C library of memtopo: memory that a program allocates in a layout, by calls that never run Python.

It is part of a wheel, or compiled by the system's compiler when it is first needed. Without it, everything works but
allocations in heaps.
"""

from __future__ import annotations

import ctypes
import os
import platform
import shlex
import subprocess
import tempfile
from functools import cache
from hashlib import sha256
from pathlib import Path

from memtopo.common.errors import Exit, MemtopoError

_FOLDER = Path(__file__).parent
SOURCE = _FOLDER / "heaps.c"
FLAGS = ("-O2", "-shared", "-fPIC", "-pthread")


class NoLibrary(MemtopoError):
    """The C library is neither installed nor can it be compiled."""

    exit_code = Exit.USAGE


@cache
def library() -> ctypes.CDLL:
    """Load the library, which is compiled if it is not part of the installation. Raises `NoLibrary`."""
    built = _FOLDER / file_name(platform.machine())
    file = built if built.exists() else _compiled()
    try:
        return ctypes.CDLL(os.fspath(file))
    except OSError as error:
        raise NoLibrary(f"{file} cannot be loaded: {error}") from error


def file_name(processor: str) -> str:
    """Name of the library for a processor, as `uname -m` names it."""
    return f"heaps-{processor}.so"


def _compiled() -> Path:
    """Compile the library into the user's cache, unless it has been compiled from the same source before."""
    digest = sha256(SOURCE.read_bytes() + " ".join(FLAGS).encode()).hexdigest()[:16]
    try:
        caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError as error:  # the user has neither HOME nor an entry in the passwords
        message = "there is no folder for the compiled library of heaps"
        raise NoLibrary(message, hint="XDG_CACHE_HOME names one") from error
    file = Path(caches, "memtopo") / f"{digest}-{file_name(platform.machine())}"
    if not file.exists():
        compile_library(os.environ.get("CC", "cc"), file)
    return file


def compile_library(compiler: str, file: Path) -> None:
    """Compile the library into a file, which is replaced as a whole. Raises `NoLibrary`."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=file.parent) as folder:
            made = Path(folder, file.name)
            command = [*shlex.split(compiler), *FLAGS, "-o", os.fspath(made), os.fspath(SOURCE)]
            subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603 the system's own compiler
            made.replace(file)
    except OSError as error:
        hint = "install a C compiler, or a wheel of memtopo, which has the library"
        raise NoLibrary(f"the library of heaps cannot be compiled: {error}", hint=hint) from error
    except subprocess.CalledProcessError as error:
        raise NoLibrary(f"{compiler} cannot compile the library of heaps: {error.stderr.strip()}") from error
