"""Commands on programs: `memtopo simulator`, and on their records: `memtopo capture`, `spec`, `replay` and `import`.

A program that is run gets the signals of this process, and its exit status is that of the command.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Literal

from memtopo.cli.options import AsJson, At, MachineName, MachineNames, argument, one_target, option
from memtopo.cli.results import pages, require_replaceable, show, write
from memtopo.common.errors import Exit, ProgramExit, UsageError, reason, signal_status, system_errors
from memtopo.common.text import plural
from memtopo.driver import trace_files
from memtopo.driver.trace_files import HEAD, Stacks, create_record
from memtopo.output import plain

if TYPE_CHECKING:
    from memtopo.records import Record
    from memtopo.records.replay import Replay

_STACKS = "Record the call stack of each call, in C or in Python, which makes calls slower."

Output = Annotated[
    str, option("--output -o", "File of the record; a trace is replaced.", "FILE", "MEMTOPO_CAPTURE_OUTPUT")
]
Cupti = Annotated[
    str | None,
    option("--cupti", "CUPTI's library, libcupti.so.13, if it is not found.", "FILE", "MEMTOPO_CAPTURE_CUPTI"),
]


def capture_command(
    command: Annotated[list[str], argument("COMMAND…", "A program and its arguments.")],
    output: Output = "memtopo-capture.jsonl",
    stacks: Annotated[Stacks, option("--stacks", _STACKS, variable="MEMTOPO_CAPTURE_STACKS")] = "none",
    cupti: Cupti = None,
) -> int:
    """Run a program, and record its calls for CUDA memory.

    The calls are those of the driver, as 'memtopo trace' summarizes them: virtual memory, allocations, pools, managed
    and page-locked memory, IPC, events, external memory, multicast. The program runs as it would by itself, and its
    exit status is that of this command. Its options follow '--'.
    """
    from memtopo.native.injection import RECORD, Injection, require_stacks, working_cupti

    require_program("capture", command[0])
    around = os.environ.get(RECORD)
    if around and os.path.realpath(output) == os.path.realpath(around):
        raise UsageError(f"{output!r} is the record of the capture that runs this one", hint="name another file: -o")
    injected = working_cupti(cupti, command)
    if stacks == "python":
        require_stacks(command)
    create_record(output)
    status = run_program(command, Injection(os.path.realpath(output), injected, stacks).environment)
    lines = processes = marks = 0
    unread = system_errors(UsageError, f"the record {output!r} cannot be read")
    with unread, open(output, "rb") as file:  # noqa: PTH123 a path as it was written
        for line in file:
            lines += 1
            processes += line.startswith(HEAD.encode())
            marks += b'"method": "mark"' in line
    text = f"no process made a CUDA memory call: {output} is empty"
    if processes:
        noun = "process" if processes == 1 else "processes"
        text = f"captured {plural(lines - processes - marks, 'call')} of {processes} {noun} in {output}"
    plain.print_lines([text], sys.stderr)
    return status


SimulatedCommand = Annotated[list[str] | None, argument("[COMMAND…]", "A program and its arguments.")]
_PATH = "Print the folder of libcuda.so.1, for LD_LIBRARY_PATH, and exit."
Path = Annotated[bool, option("--path", _PATH, variable="MEMTOPO_SIMULATOR_PATH")]
_STRICT = "Exit with 81 if a program that succeeds has leaked, with 82 if calls were refused, with 83 for both."
Strict = Annotated[bool, option("--strict", _STRICT, variable="MEMTOPO_SIMULATOR_STRICT")]


def simulator_command(
    command: SimulatedCommand = None, machine: MachineName = "h200x2", strict: Strict = False, path: Path = False
) -> int:
    """Run a program on a simulated machine.

    The program and its children get the simulator as their CUDA driver, libcuda.so.1. Memory, pools, events and copies
    work; kernels do not run. Refused calls are reported with their reasons, and memory and objects that a program did
    not free. The exit status is the program's.
    """
    from memtopo.machine import load
    from memtopo.testing.library import folder, variables
    from memtopo.testing.program import SharedMachine
    from memtopo.testing.server import Refusals, Server, report_left

    if path:
        plain.print_lines([str(folder())])
        return 0
    if not command:
        raise UsageError("no program was given", hint="name one: memtopo simulator -- COMMAND…")
    require_program("simulator", command[0])
    refused = Refusals()
    shared = SharedMachine(load(machine), refused=refused)
    with closing(Server(shared)) as server:
        status = run_program(command, variables(server.address))
        server.programs()  # which waits for the last to be noticed
    report_left(shared.left)
    if status or not strict:
        return status
    if shared.left and refused:
        return ProgramExit.BOTH
    if shared.left:
        return ProgramExit.LEFT
    return ProgramExit.REFUSED if refused else 0


_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


def require_program(command: str, program: str) -> None:
    """Raise `UsageError` for a program that does not exist or cannot be executed."""
    if shutil.which(program):
        return
    found = os.path.exists(program)  # noqa: PTH110 a path as it was written
    why = "it is a folder" if os.path.isdir(program) else "it is not executable"  # noqa: PTH112 likewise
    raise UsageError(
        f"the program {program!r} cannot be started: {why if found else 'it does not exist'}",
        hint=f"name a program and its arguments: memtopo {command} -- COMMAND…",
    )


def run_program(command: Sequence[str], variables: Mapping[str, str]) -> int:
    """Run a program to its end, with these variables besides its own; return its status as shells have it.

    Raises `UsageError` if it cannot be started.

    Signals for this process go to the program. Ctrl-C reaches it by the terminal.
    """
    from memtopo.common.processes import program_environment

    waited = {signal.SIGCHLD, *_FORWARDED}
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # which may be ignored: then no child could be waited for
    before = signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    environment = program_environment() | {**variables}
    try:
        child = os.posix_spawnp(command[0], list(command), environment, setsigmask=before, setsigdef=_IGNORED_BY_PYTHON)
        while True:
            found = signal.sigwaitinfo(waited)
            if found.si_signo != signal.SIGCHLD:
                if found.si_pid:  # the system sends those of the terminal, to the program too
                    os.kill(child, found.si_signo)
            elif (ended := os.waitpid(child, os.WNOHANG))[0]:
                code = os.waitstatus_to_exitcode(ended[1])
                return code if code >= 0 else signal_status(-code)
    except (OSError, ValueError) as error:
        why = reason(error) if isinstance(error, OSError) else str(error)
        raise UsageError(f"the program {command[0]!r} cannot be started: {why}") from error
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# Records

RecordFile = Annotated[str, argument("RECORD", "A record of 'memtopo capture' or 'memtopo apply --trace'.")]
_SPEC_OUTPUT = "Write the spec to a file, in place of a spec that memtopo wrote."
SpecOutput = Annotated[str | None, option("--output -o", _SPEC_OUTPUT, "FILE", "MEMTOPO_SPEC_OUTPUT")]


def spec_command(record: RecordFile, at: At = None, output: SpecOutput = None) -> int:
    """Write a spec of the memory in a record.

    Equal objects become entries with counts. What a spec cannot say is a comment at its begin.
    """
    from memtopo.records.spec import OWN, document

    lines = document(record, at).text.splitlines()
    return _print_or_save(lines, output, lambda file: require_replaceable(file, OWN))


def _print_or_save(
    lines: Sequence[str], output: str | None, require_own: Callable[[str], object], about: str = ""
) -> int:
    """Print lines, or write them to a file, for which `require_own` raises an error if it may not be replaced."""
    if output in (None, "-"):
        plain.print_document(lines)
    else:
        require_own(output)
        write(output, "".join(f"{line}\n" for line in lines))
        plain.print_message(f"saved to {output}{about}")
    return Exit.OK


_RECORDS = "A record of 'memtopo capture' or 'memtopo apply --trace': files, or a folder."
Records = Annotated[list[str], argument("RECORD", _RECORDS)]


_AS = "Print a program with the calls of the process up to that call, which needs no memtopo."
Language = Annotated[
    Literal["c", "cuda-python"] | None, option("--as", _AS, "c|cuda-python", "MEMTOPO_REPLAY_AS", show_default=False)
]


def replay_command(
    records: Records, machine: MachineNames = None, language: Language = None, as_json: AsJson = False
) -> int:
    """Make the calls of a record on another machine.

    The first call that ends otherwise is named: it fails here and succeeded in the record, or the other way round.
    The exit status is 1 if there is one.
    """
    from memtopo.records import read_record
    from memtopo.records.replay import replay

    if language and as_json:
        raise UsageError("--as prints a program, and no JSON", hint="omit one of them")
    record, target = read_record(records), one_target(machine)
    if target.nodes:
        raise UsageError("a replay is on one machine", hint="name one: --machine h200x4")
    found = replay(record, target)
    if language:
        _print_program(record, found, language)
    else:
        show(found, lambda: pages("calls").replay_page(found), as_json=as_json, marker="replay")
    return Exit.INVALID if found.difference else Exit.OK


def _print_program(record: Record, found: Replay, language: Literal["c", "cuda-python"]) -> None:
    """Print the program of the process of the difference, or of a record's only process. Raises `MemtopoError`."""
    from memtopo.output.programs import recorded_program
    from memtopo.output.programs.languages import text
    from memtopo.records.player import program_calls

    last = found.difference.call if found.difference else None
    process = next((each.process for each in record.calls if each.call is last), 0)
    if last is None and len(record.heads) > 1:
        raise UsageError(
            "the record has several processes, and no call ends otherwise",
            hint="a program can be written only for one process that shares nothing",
        )
    calls = program_calls(record, process, last)
    program = recorded_program(found.record or "record", record.heads[process].process, found.machine, calls)
    plain.print_lines(text(program, language).splitlines())
    if found.difference:
        reason = f": {found.difference.reason}" if found.difference.reason else ""
        ends = found.difference.error or "success"
        plain.print_message(f"call {found.difference.call.number}, {found.difference.call.call}: {ends}{reason}")


_RECORD_OUTPUT = "Write the record to a file, in place of another record."
RecordOutput = Annotated[str | None, option("--output -o", _RECORD_OUTPUT, "FILE", "MEMTOPO_IMPORT_OUTPUT")]
SnapshotFile = Annotated[str, argument("SNAPSHOT", "A file of torch.cuda.memory._dump_snapshot().")]


def import_command(snapshot: SnapshotFile, output: RecordOutput = None) -> int:
    """Make a record of a memory snapshot of PyTorch.

    The record has the driver calls of its allocator, with times and stacks where the history was recorded.
    """
    from memtopo.records.snapshot import read_snapshot, record_lines

    lines = list(record_lines(read_snapshot(snapshot)))
    return _print_or_save(lines, output, trace_files.require_replaceable, f": {len(lines) - 1:,} calls")
