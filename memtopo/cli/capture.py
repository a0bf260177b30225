"""`memtopo capture`: run a program, and record each memory call that it and its children make of the CUDA driver."""

from __future__ import annotations

import os
import sys
from typing import Annotated

from memtopo.cli.options import argument, option
from memtopo.cli.programs import require_program, run_program
from memtopo.common.errors import UsageError
from memtopo.driver.trace_files import HEAD, create_record
from memtopo.native.injection import RECORD, Injection, Stacks, require_stacks, working_cupti
from memtopo.output import plain
from memtopo.output.humanize import plural

_STACKS = "Record the call stack of each call, in C or in Python, which makes calls slower."

Command = Annotated[list[str], argument("COMMAND…", "A program and its arguments.")]
Output = Annotated[
    str, option("--output -o", "File of the record; a trace is replaced.", "FILE", "MEMTOPO_CAPTURE_OUTPUT")
]
StackKind = Annotated[Stacks, option("--stacks", _STACKS, variable="MEMTOPO_CAPTURE_STACKS")]
Cupti = Annotated[
    str | None,
    option("--cupti", "CUPTI's library, libcupti.so.13, if it is not found.", "FILE", "MEMTOPO_CAPTURE_CUPTI"),
]


def capture_command(
    command: Command,
    output: Output = "memtopo-capture.jsonl",
    stacks: StackKind = "none",
    cupti: Cupti = None,
) -> int:
    """Run a program, and record its calls for CUDA memory.

    The calls are those of the driver, as 'memtopo trace' summarizes them: virtual memory, allocations, pools, managed
    and page-locked memory, IPC, events, external memory, multicast. The program runs as it would by itself, and its
    exit status is that of this command. Its options follow '--'.
    """
    require_program("capture", command[0])
    _require_own(output)
    injected = working_cupti(cupti, command)
    if stacks == "python":
        require_stacks(command)
    create_record(output)
    status = run_program(command, {**os.environ, **Injection(os.path.realpath(output), injected, stacks).environment})
    plain.print_lines([_summary(output, *_count(output))], sys.stderr)
    return status


def _require_own(output: str) -> None:
    """Raise `UsageError` for the file to which a capture around this one writes."""
    around = os.environ.get(RECORD)
    if around and os.path.realpath(output) == os.path.realpath(around):
        raise UsageError(f"{output!r} is the record of the capture that runs this one", hint="name another file: -o")


def _count(record: str) -> tuple[int, int]:
    """Count the calls of a record, without its marks, and its processes. Raises `MemtopoError`."""
    lines = heads = marks = 0
    try:
        with open(record, "rb") as file:  # noqa: PTH123 a path as it was written
            for line in file:
                lines += 1
                heads += line.startswith(HEAD.encode())
                marks += b'"method": "mark"' in line
    except OSError as error:
        raise UsageError(f"the record {record!r} cannot be read: {error.strerror}") from error
    return lines - heads - marks, heads


def _summary(record: str, calls: int, processes: int) -> str:
    if not processes:
        return f"no process made a CUDA memory call: {record} is empty"
    return f"captured {plural(calls, 'call')} of {processes} {'process' if processes == 1 else 'processes'} in {record}"
