"""Programs under a capture without a GPU: the stubs of the driver and of CUPTI, and what was recorded."""

from __future__ import annotations

import atexit
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

from memtopo.driver.trace_files import Stacks
from memtopo.native.injection import Injection
from memtopo.plans.trace import TracedCall, TraceFile, read_traces
from tests.helpers.command_line import ROOT, environment
from tests.helpers.python_process import install_another

STUB = ROOT / "tests/native/stub_cupti.c"
BEFORE = "from tests.native.captured_program import Driver\n"
NAMES = "cuMemAlloc_v2,cuMemFree_v2,cuLaunchKernel,cuMemAllocAsync_ptsz"


@cache
def stubs() -> Path:
    """Folder with a libcuda.so.1 and a libcupti.so.13, which are compiled once; a fork server finds them."""
    folder = Path(mkdtemp(prefix="memtopo-stubs-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    for name, more in (("libcuda.so.1", ["-DCUDA"]), ("libcupti.so.13", [])):
        subprocess.run(["cc", *flags, *more, "-o", str(folder / name), str(STUB)], check=True)
    install_another(LD_LIBRARY_PATH=str(folder))
    return folder


def cupti() -> str:
    """Path of the stub of CUPTI."""
    return str(stubs() / "libcupti.so.13")


def variables(**more: str) -> dict[str, str]:
    """Environment in which the stubs are found."""
    found = {"LD_LIBRARY_PATH": str(stubs()), "STUB_CUPTI": cupti(), "CUPTI_NAMES": NAMES}
    return environment(**found | more)


@dataclass(frozen=True, slots=True)
class Captured:
    """A program that has ended, and its record."""

    done: subprocess.CompletedProcess[str]
    file: Path

    @property
    def traces(self) -> list[TraceFile]:
        return read_traces([self.file])

    @property
    def calls(self) -> list[TracedCall]:
        return [call for trace in self.traces for call in trace.calls]


def run(
    code: str,
    file: Path,
    *,
    stacks: Stacks = "none",
    names: str = NAMES,
    given: str = "",
    python: str = sys.executable,
    preexec: Callable[[], object] | None = None,
) -> Captured:
    """Run a program in Python into which the stub of the driver loads the library, as `memtopo capture` has it."""
    if not file.exists():
        file.touch()
    injected = Injection(str(file), cupti(), stacks).environment
    done = subprocess.run(
        [shutil.which(python) or "/bin/false", "-c", BEFORE + code],
        env=variables(CUPTI_NAMES=names) | dict(injected),
        capture_output=True,
        text=True,
        check=False,
        input=given,
        preexec_fn=preexec,
    )
    return Captured(done, file)
