"""Calls of programs and of runs, so that they can be compared: without names and numbers that differ by chance."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from memtopo import machine
from memtopo.driver.functions import function
from memtopo.driver.protocol import call_name
from memtopo.driver.recorder import DriverCall
from memtopo.driver.values import CONSTANTS, PLAIN_FLAGS
from memtopo.driver.wrappers import METHODS
from memtopo.machine import Machine, MachineLine
from memtopo.output.programs.languages import Language, texts
from memtopo.plans.calls import ListedCall, listing_entry, named
from memtopo.plans.trace import TraceFile
from memtopo.records.player import changes_something
from memtopo.run.planned_calls import planned_calls
from tests.helpers.specs import EVERY_SPEC, ROOT, composed

LIBRARY = ROOT / "tests" / "programs" / "libcuda.c"
HEADERS = ROOT / "tests" / "programs" / "include"
LINE = MachineLine("h200x4", simulated=True, devices=(), driver="13.0")
REFUSED = {"multicast", "shared-ring", "vulkan-frame"}
"""Specs with what no program can make by its calls alone."""
EXPRESSIBLE = [path for path in EVERY_SPEC if path.stem not in REFUSED]
STRICT = ("-std=c11", "-Wall", "-Wextra", "-Werror", "-O1")
_METHODS = {call_name(method): method for method in METHODS if changes_something(method)}
_NUMBERS = {name: value for each in (*CONSTANTS.values(), *PLAIN_FLAGS.values()) for value, name in each.names.items()}
_RECEIVED = ("shared", "data", "fd")
_EXPORTS = (
    "cuMemExportToShareableHandle", "cuIpcGetMemHandle", "cuIpcGetEventHandle", "cuMemPoolExportToShareableHandle",
    "cuMemPoolExportPointer", "cuCtxPushCurrent", "cuCtxPopCurrent",
)  # fmt: skip

Comparable = tuple[str, str | None, tuple[tuple[str, Any], ...]]


def written(spec: str | Path, language: Language, folder: Path, facts: Machine | None = None) -> dict[str, Path]:
    """Programs of a spec by process, for a machine with four H200s unless another one is given."""
    found = composed(spec, facts or machine.load("h200x4"))
    calls = planned_calls(found.plan, found.geometry)
    written = texts(found.plan.name, LINE, calls, language, found.plan.common_ranges)
    files = {label: folder / name for label, name in zip(calls, written, strict=True)}
    for file, text in zip(files.values(), written.values(), strict=True):
        file.write_text(text)
    return files


def make_library(folder: Path) -> None:
    """Build libcuda.so.1, which logs calls, in a folder, and libcuda.so for the linker."""
    library = folder / "libcuda.so.1"
    flags = ["-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-I{HEADERS}"]
    subprocess.run(["gcc", *flags, str(LIBRARY), "-o", str(library), "-ldl"], check=True)
    (folder / "libcuda.so").symlink_to(library)


def compile_program(source: Path, library: Path, headers: Path = HEADERS) -> Path:
    """Compile a program in C with all warnings as errors, and link it with libcuda alone."""
    target = source.with_suffix("")
    subprocess.run(
        ["gcc", *STRICT, f"-I{headers}", str(source), "-o", str(target), f"-L{library}", "-lcuda"], check=True
    )
    return target


def run_programs(programs: Mapping[str, Path], library: Path, folder: Path, **more: str) -> dict[str, list[DriverCall]]:
    """Run the programs of all processes together, and return the calls of each. Raises if one fails."""
    running = {}
    for label, program in programs.items():
        log = folder / f"{label or 'only'}.log"
        log.unlink(missing_ok=True)
        variables = {"LD_LIBRARY_PATH": str(library), "CUDA_CALLS": str(log), "MEMTOPO_SOCKETS": str(folder), **more}
        command = [sys.executable, program] if program.suffix == ".py" else [program]
        running[label] = (
            log,
            subprocess.Popen(
                list(map(str, command)),
                env=os.environ | variables,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            ),
        )
    try:
        for label, (_, process) in running.items():
            out, err = process.communicate(timeout=60)
            assert process.returncode == 0, (label, err)
            assert [line.partition(": ")[2] for line in out.splitlines()] == ["built", "taken down"], out
    finally:
        for _, process in running.values():
            process.kill()
    return {label: list(logged(log)) for label, (log, _) in running.items() if log.exists()}


def logged(file: Path) -> Iterable[DriverCall]:
    """Calls in a log of the library."""
    for line in file.read_text().splitlines():
        found = json.loads(line)
        assert found["status"] == 0, found
        yield DriverCall(_METHODS[found["call"]], found["arguments"], found["result"], verb="make")


def driver_calls(trace: TraceFile) -> Iterator[DriverCall]:
    """Calls of a trace as a recorder has them; arguments that are no numbers stay as the trace has them."""
    for each in trace.calls:
        verb, _, subject = (each.step or "").rpartition(" ")
        about = each.phase, verb, subject, each.undo
        yield DriverCall(each.method, each.arguments, each.result, each.error, *about)


def comparable(calls: Sequence[DriverCall]) -> tuple[list[Comparable], Counter[Comparable]]:
    """Calls of steps in order, and all of them with the exports, whose order depends on the importers."""
    counts: Counter[str] = Counter()
    numbered = []
    for call in calls:
        if call.of_step:
            makes = function(call.method).makes
            counts[makes] += 1
            numbered.append(replace(call, subject=str(counts[makes])))
    found = [_comparable(each) for each in map(listing_entry, named(numbered)) if isinstance(each, ListedCall)]
    return [each for each in found if each[0] not in _EXPORTS], Counter(found)


def _comparable(call: ListedCall) -> Comparable:
    made = None if call.function in _EXPORTS else call.makes
    given = ((name, _value(call.function, name, value)) for name, value in call.arguments.items())
    return call.function, made, tuple(sorted((name, value) for name, value in given if value is not None))


def _value(function: str, name: str, value: Any) -> Any:
    """An argument as text: constants as numbers; None for what is received or a constant of the function."""
    if name in _RECEIVED or (name == "handle" and "Open" in function) or name in ("0", FUNCTIONS_DMA_BUF):
        return None
    if isinstance(value, str) and all(part in _NUMBERS for part in value.split(" | ")):
        value = sum(_NUMBERS[part] for part in value.split(" | "))
    return json.dumps(value, sort_keys=True)


FUNCTIONS_DMA_BUF = "CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD"
