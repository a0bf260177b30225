"""The library of captures in processes: in this one, or in those that are started, into which the driver loads it.

The library needs CUPTI, which comes with PyTorch's wheels and with the CUDA toolkit. Before a program is started, it is
tried in a process of its own.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from memtopo.common import __version__
from memtopo.common.errors import Exit, MemtopoError, NotWritten, Unavailable, UsageError
from memtopo.common.processes import python_command
from memtopo.driver.trace_files import Stacks
from memtopo.native import CAPTURE, loaded

VARIABLE = "CUDA_INJECTION64_PATH"
"""Variable by which the driver loads a library into each program that initialises it."""

RECORD, _CUPTI, _STACKS, _VERSION = (f"MEMTOPO_CAPTURE{name}" for name in ("", "_CUPTI", "_STACKS", "_VERSION"))
"""Variables that the library reads: the file of the record, the path of CUPTI, the stacks, and memtopo's version."""

_NAMES = ("libcupti.so.13", "libcupti.so.12")
_WHEELS = ("nvidia/cu13/lib", "nvidia/cuda_cupti/lib")
_TOOLKIT = ("extras/CUPTI/lib64", "lib64", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib")
_NO_DRIVER, _NO_CUPTI, _NO_FILE, _NO_PYTHON, _NO_CALLS, _RUNNING, _NO_INIT = -1, -2, -3, -4, -5, -6, -7
_MULTIPLE, _PRIVILEGES = 39, (35, 40)
_PATIENCE = 60
_MESSAGE = 512
_NO_STACKS = "gives no stacks to a library that must not take its lock"
_WITH_STACKS = "Python 3.11 to 3.13 do; stacks of C work with every program"
_ON_GPU = "a capture needs a driver and a GPU"
_OF_WHEELS = "name libcupti.so.13 of PyTorch's wheels or of the CUDA toolkit"
_ANOTHER = "another version of CUPTI may match the driver: select its file with --cupti"
_END_OTHER = "end the other one: Nsight, cuda-gdb, compute-sanitizer, or the profiler of a framework"
_PERMITTED = "an administrator permits it: developer.nvidia.com/ERR_NVGPUCTRPERM"
_LONGEST_LABEL = 4096


class NotCaptured(MemtopoError):
    """A capture that cannot be made here: CUPTI is absent, taken by a profiler or forbidden, or has no stacks."""

    exit_code = Exit.UNAVAILABLE


class _NotLoaded(NotCaptured):
    """A file that is no CUPTI, or that the loader does not find."""


class Injection(Struct, frozen=True):
    """Capture of the processes that a command starts: the file of the record, which exists, CUPTI's, and the stacks."""

    record: str
    cupti: str
    stacks: Stacks

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables of these processes. Raises `NoLibrary`."""
        return {
            VARIABLE: str(CAPTURE.file()),
            RECORD: os.path.abspath(self.record),  # noqa: PTH100 a path as it was written
            _CUPTI: self.cupti,
            _STACKS: self.stacks,
            _VERSION: __version__,
        }


def require_free() -> None:
    """Raise `NotCaptured` if another tool is to be loaded into the programs of this process."""
    if (other := os.environ.get(VARIABLE)) and other != str(CAPTURE.file()):
        message = f"{VARIABLE} is {other!r}: another tool, such as a profiler, is loaded into programs"
        raise NotCaptured(message, hint=f"unset {VARIABLE}, or capture without the other tool")


def working_cupti(given: str | None, command: Sequence[str] = ()) -> str:
    """Return the path of a CUPTI that can be subscribed to, which a process of its own tries.

    Without one that is `given`, it is looked for beside the program's Python and this one, and in CUDA toolkits. Raises
    `NotCaptured`, `Unavailable` without a driver, and `NoLibrary`.
    """
    require_free()
    CAPTURE.file()  # compiled once, and not by each try
    refusals = []
    for path in _candidates(given, command):
        if (refusal := _tried(path)) is None:
            return path
        if given or isinstance(refusal, Unavailable):
            raise refusal
        refusals.append(refusal)
    raise next((each for each in refusals if not isinstance(each, _NotLoaded)), _absent(command))


def _candidates(given: str | None, command: Sequence[str]) -> list[str]:
    """Paths of CUPTI, and the names by which the loader may find it."""
    if given:  # a capture around this one may name what the loader finds
        is_file = "/" in given or os.path.exists(given)  # noqa: PTH110 a path as it was written
        return [os.path.abspath(given) if is_file else given]  # noqa: PTH100 likewise
    files = [folder / name for folder in _folders(command) for name in _NAMES]
    return [*dict.fromkeys(str(file) for file in files if file.is_file()), *_NAMES]


def _folders(command: Sequence[str]) -> Iterator[Path]:
    """Folders in which CUPTI may be."""
    if command and (python := interpreter(command[0])):
        for packages in sorted(python.parent.parent.glob("lib*/python3*/*-packages")):
            yield from (packages / wheel for wheel in _WHEELS)
    for packages in map(Path, sys.path):
        yield from (packages / wheel for wheel in _WHEELS)
    toolkits = [os.environ.get(name, "") for name in ("CUDA_HOME", "CUDA_PATH")]
    if nvcc := shutil.which("nvcc"):
        toolkits.append(str(Path(nvcc).resolve().parent.parent))
    installed = sorted(Path("/usr/local").glob("cuda*"), reverse=True)
    for toolkit in (*(Path(name) for name in toolkits if name), *installed):
        yield from (toolkit / folder for folder in _TOOLKIT)


def _absent(command: Sequence[str]) -> NotCaptured:
    looked = [str(folder) for folder in dict.fromkeys(_folders(command)) if folder.is_dir()]
    hint = "'pip install nvidia-cuda-cupti' or the CUDA toolkit installs it; select its file with --cupti"
    details = [f"looked for in: {', '.join(looked)}"] if looked else []
    details.append("and where the loader looks: LD_LIBRARY_PATH, /etc/ld.so.conf")
    return NotCaptured(f"CUPTI ({' or '.join(_NAMES)}) was not found", hint=hint, details=details)


def interpreter(program: str) -> Path | None:
    """Return the Python that a program is, or the one that a script names in its first line; None for another program.

    Its link is not followed, since an environment is found by it.
    """
    path = shutil.which(program)
    if path is None:
        return None
    if Path(path).name.startswith("python"):
        return Path(path).absolute()
    try:
        with Path(path).open("rb") as file:
            first = file.readline(512).decode(errors="replace")
    except OSError:
        return None
    words = first[2:].split() if first.startswith("#!") else []
    name = words[1] if words[:1] and Path(words[0]).name == "env" and len(words) > 1 else "".join(words[:1])
    return interpreter(name) if Path(name).name.startswith("python") and name != program else None


def require_stacks(command: Sequence[str]) -> None:
    """Raise `NotCaptured` if a command is a Python that gives no stacks without its lock."""
    python = interpreter(command[0])
    if python is None:
        return
    code = "import ctypes, sys; v = sys.version_info[:2]; print(*v, sep='.'); v == (3, 13) or ctypes.pythonapi."
    code += "_Py_DumpTraceback"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)  # noqa: S603 as it will run
    if done.returncode and done.stdout:
        version = done.stdout.strip()
        raise NotCaptured(f"{python} is Python {version}, which {_NO_STACKS}", hint=_WITH_STACKS)


def _tried(cupti: str) -> MemtopoError | None:
    """Subscribe to CUPTI in a process of its own; return why that was not possible."""
    variables = {name: value for name, value in os.environ.items() if name not in (VARIABLE, RECORD)}
    command = [*python_command("memtopo.native.injection:try_cupti"), cupti]
    try:
        done = subprocess.run(  # noqa: S603 memtopo's own
            command, env=variables, capture_output=True, timeout=_PATIENCE, check=False
        )
        result, message = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        return NotCaptured(f"CUPTI ({cupti}) did not answer within {_PATIENCE} s")
    except (ValueError, IndexError):
        status = done.returncode
        ending = f"signal {-status}" if status < 0 else f"exit status {status}"
        return NotCaptured(f"CUPTI ({cupti}) ended the process that tried it: {ending}")
    return _refusal(result, message, cupti) if result else None


def try_cupti(cupti: str) -> None:
    """Initialise the driver, subscribe to CUPTI, and print the result with a message, as JSON."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        print(json.dumps([_NO_DRIVER, str(error)]))  # noqa: T201 for the process that started this one
        return
    if status := driver.cuInit(0):
        name = ctypes.c_char_p()
        driver.cuGetErrorName(status, ctypes.byref(name))
        result, text = _NO_INIT, (name.value or b"").decode()
    else:
        result, text = _start(os.devnull, cupti, "none")
    print(json.dumps([result, text]))  # noqa: T201 likewise


def _start(record: str, cupti: str, stacks: Stacks) -> tuple[int, str]:
    """Start the capture of this process; return the library's result and message."""
    message = ctypes.create_string_buffer(_MESSAGE)
    words = [os.fsencode(each) for each in (record, cupti, stacks, __version__)]
    result = loaded(CAPTURE).memtopo_capture_start(*words, message, ctypes.c_size_t(_MESSAGE))
    return int(result), message.value.decode(errors="replace")


_REFUSALS: Mapping[int, tuple[type[MemtopoError], str, str | None]] = {
    _NO_DRIVER: (Unavailable, "no NVIDIA driver is installed here: {message}", _ON_GPU),
    _NO_INIT: (Unavailable, "the driver cannot be used here: {message}", "'memtopo probe' says more"),
    _NO_CUPTI: (_NotLoaded, "CUPTI ({cupti}) cannot be loaded: {message}", _OF_WHEELS),
    _NO_FILE: (NotWritten, "the record cannot be written: {message}", None),
    _NO_PYTHON: (NotCaptured, f"this Python {_NO_STACKS}", _WITH_STACKS),
    _NO_CALLS: (NotCaptured, "CUPTI ({cupti}) knows none of the driver's calls", _ANOTHER),
    _RUNNING: (UsageError, "a capture of this process runs already", None),
    _MULTIPLE: (NotCaptured, "CUPTI has another subscriber, such as a profiler: {message}", _END_OTHER),
    **dict.fromkeys(_PRIVILEGES, (NotCaptured, "CUPTI is not permitted to this user: {message}", _PERMITTED)),
}
"""Errors of the library's results, and of CUPTI's."""

_OTHER = NotCaptured, "CUPTI ({cupti}) refuses to be subscribed to: error {result} {message}", _ANOTHER


def _refusal(result: int, message: str, cupti: str) -> MemtopoError:
    kind, text, hint = _REFUSALS.get(result, _OTHER)
    return kind(text.format(result=result, message=message, cupti=cupti).strip(), hint=hint)


def require_no_capture() -> None:
    """Raise `UsageError` if this process is recorded, and `NoLibrary`."""
    if loaded(CAPTURE).memtopo_capture_runs():
        raise _refusal(_RUNNING, "", "")


def start_capture(record: str, cupti: str | None, stacks: Stacks) -> None:
    """Record the calls of this process from now on, in a file that exists.

    Raises `NotCaptured`, `Unavailable`, `UsageError` if it is recorded already, and `NoLibrary`.
    """
    for path in _candidates(cupti, ()):
        result, message = _start(record, path, stacks)
        if not result:
            return
        if result in (_NO_PYTHON, _NO_CALLS):  # it runs, with less than it was asked for
            stop_capture()
        if result != _NO_CUPTI or cupti:
            raise _refusal(result, message, path)
    raise _absent(())


def stop_capture() -> None:
    """End the record of this process."""
    loaded(CAPTURE).memtopo_capture_stop()


def write_mark(label: str) -> None:
    """Write a line with a label to the record of this process, if there is one. Raises `UsageError`."""
    text = json.dumps(label)
    if len(text) > _LONGEST_LABEL:
        raise UsageError(f"the label of a mark has {len(text):,} bytes; the most are {_LONGEST_LABEL:,}")
    # The library in this process is that which the driver has loaded, or Python.
    file = os.environ.get(VARIABLE, "") if RECORD in os.environ else ""
    try:
        library = ctypes.CDLL(file or os.fspath(CAPTURE.file()), mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except (OSError, MemtopoError):  # there is none
        return
    library.memtopo_capture_mark(text.encode())
