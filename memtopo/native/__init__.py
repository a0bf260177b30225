"""C libraries of memtopo, whose code runs in any thread of a program.

`HEAPS` is memory that a program allocates in a layout, `CAPTURE` the record of a program's memory calls; neither runs
Python. `LIBCUDA` has the functions of the driver, which the simulator answers. Each is part of a wheel, or compiled by
the system's compiler when it is first needed. Without them, everything else works.
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
from typing import NamedTuple

from memtopo.common.errors import Exit, MemtopoError

_FOLDER = Path(__file__).parent
FLAGS = ("-O2", "-shared", "-fPIC", "-pthread")


class NoLibrary(MemtopoError):
    """A C library is neither installed nor can it be compiled."""

    exit_code = Exit.USAGE


class Library(NamedTuple):
    """C library: its name, which is that of its source, its contents as a word of messages, and compiler options.

    It is no `Struct`, since a wheel is built where nothing is installed.
    """

    name: str
    contents: str
    options: tuple[str, ...] = ()

    @property
    def source(self) -> Path:
        """The file that is compiled."""
        return _FOLDER / f"{self.name}.c"

    @property
    def sources(self) -> tuple[Path, ...]:
        """All files of the source, that which is compiled first."""
        return self.source, *sorted(_FOLDER.glob("*.h")), *sorted((_FOLDER / self.name).glob("*.h"))

    def file_name(self, processor: str) -> str:
        """Name of the library for a processor, as `uname -m` names it."""
        return f"{self.name}-{processor}.so"

    def file(self) -> Path:
        """The library for this processor, which is compiled if it is not part of the installation.

        It is compiled into the user's cache, once for the same source. Raises `NoLibrary`.
        """
        built = _FOLDER / self.file_name(platform.machine())
        if built.exists():
            return built
        content = b"".join(file.read_bytes() for file in self.sources)
        digest = sha256(content + " ".join((*FLAGS, *self.options)).encode()).hexdigest()[:16]
        try:
            caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        except RuntimeError as error:  # the user has neither HOME nor an entry in the passwords
            message = f"there is no folder for the compiled library of {self.contents}"
            raise NoLibrary(message, hint="XDG_CACHE_HOME names one") from error
        file = Path(caches, "memtopo").absolute() / f"{digest}-{self.file_name(platform.machine())}"
        if not file.exists():
            self.compile(os.environ.get("CC", "cc"), file)
        return file

    def compile(self, compiler: str, file: Path) -> None:
        """Compile the library into a file, which is replaced as a whole. Raises `NoLibrary`."""
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=file.parent) as folder:
                made = Path(folder, file.name)
                command = [
                    *shlex.split(compiler),
                    *FLAGS,
                    *self.options,
                    "-o",
                    os.fspath(made),
                    os.fspath(self.source),
                    "-ldl",
                ]
                subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603 the system's own compiler
                made.replace(file)
        except OSError as error:
            hint = "install a C compiler, or a wheel of memtopo, which has the library"
            raise NoLibrary(f"the library of {self.contents} cannot be compiled: {error}", hint=hint) from error
        except subprocess.CalledProcessError as error:
            message = f"{compiler} cannot compile the library of {self.contents}: {error.stderr.strip()}"
            raise NoLibrary(message) from error


HEAPS, CAPTURE = Library("heaps", "heaps"), Library("capture", "captures")
LIBCUDA = Library("libcuda", "the simulator", ("-Wl,-soname,libcuda.so.1", "-Wl,-Bsymbolic"))
LIBRARIES = (HEAPS, CAPTURE, LIBCUDA)


@cache
def loaded(library: Library) -> ctypes.CDLL:
    """Load a library, which is compiled if it is not part of the installation. Raises `NoLibrary`."""
    file = library.file()
    try:
        return ctypes.CDLL(os.fspath(file))
    except OSError as error:
        raise NoLibrary(f"{file} cannot be loaded: {error}") from error
