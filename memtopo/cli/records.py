"""Commands on records: `memtopo spec`, `memtopo replay` on another machine, and `memtopo import` of a snapshot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Literal

from memtopo.cli.options import AsJson, At, MachineNames, argument, one_target, option
from memtopo.cli.results import pages, require_replaceable, show, write
from memtopo.common.errors import Exit, UsageError
from memtopo.driver import trace_files
from memtopo.output import plain

if TYPE_CHECKING:
    from memtopo.records.record import Record
    from memtopo.records.replay import Replay

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
    from memtopo.records.record import read_record
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
    from memtopo.records.program import program_calls

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
