"""Command line: `python -m tests.differential record|replay|minimise|run|count`."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from tests.differential import recorder, runner, traces
from tests.differential.families import FAMILIES, NAMES
from tests.differential.traces import END, Origin, Step, Trace

if TYPE_CHECKING:
    from tests.differential.replayer import Difference


def main() -> int:
    """Run one command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.differential", description=__doc__)
    commands = parser.add_subparsers(required=True)
    _add_record(commands.add_parser("record", help="record random sequences on a driver"))
    _add_replay(commands.add_parser("replay", help="replay recorded sequences on the simulator"))
    _add_minimise(commands.add_parser("minimise", help="find the shortest sequence for each kind of difference"))
    _add_run(commands.add_parser("run", help="make the calls of given sequences, each in a fresh process"))
    counts = commands.add_parser("count", help="write how many recorded calls the simulator answers as the GPUs did")
    counts.set_defaults(run=_count)
    options = parser.parse_args()
    return int(options.run(options))


def _add_record(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, nargs="?", help="file to write")
    parser.add_argument("--out", type=Path, help="the same; with --all-families, the begin of a file's name for each")
    _add_driver(parser)
    parser.add_argument("--machine", default="", help="name of the machine in the file")
    parser.add_argument("--family", "--mode", choices=NAMES, default=NAMES[0], help="calls of the sequences")
    parser.add_argument("--all-families", action="store_true", help="record every family beside the VMM's, in turn")
    parser.add_argument("--seconds", type=float, help="time for each family; 60, or unlimited with --sequences")
    parser.add_argument("--first", "--seed", type=int, default=0, help="first seed")
    parser.add_argument("--sequences", type=int, help="sequences of each family, by all workers together")
    parser.add_argument("--most", type=int, default=recorder.ENDLESS, help="sequences of each worker")
    parser.set_defaults(run=_record)


def _add_replay(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path)
    parser.add_argument("--show", type=int, default=3, help="examples of each kind")
    parser.add_argument("--differences", type=Path, help="file for the sequences that differ, as text")
    parser.set_defaults(run=_replay)


def _add_minimise(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, help="sequences that differ, as text")
    _add_driver(parser)
    parser.add_argument("--machine", required=True, help="machine to simulate")
    parser.add_argument("--each", type=int, default=1, help="sequences of each kind")
    parser.set_defaults(run=_minimise)


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, help="sequences as text, each after a line that begins with #")
    _add_driver(parser)
    parser.set_defaults(run=_run)


def _add_driver(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--driver", default="gpu", help="gpu, or a machine to simulate")
    parser.add_argument("--workers", type=int, default=1, help="processes at a time")


def _record(options: argparse.Namespace) -> int:
    out = options.out or options.file
    if out is None:
        sys.exit("record: no file to write: give --out FILE")
    if not options.all_families:
        return _record_family(options, options.family, out)
    return max(_record_family(options, family, out.with_name(f"{out.name}.{family}.xz")) for family in FAMILIES)


def _record_family(options: argparse.Namespace, family: str, out: Path) -> int:
    """Record one family; returns 1 if it cannot be recorded here."""
    most, seconds = options.most, options.seconds
    if options.sequences:
        most, seconds = -(-options.sequences // options.workers), seconds or recorder.ENDLESS
    order = recorder.Order(options.driver, family, seconds or 60, options.first, most)
    start = time.monotonic()
    found = recorder.record(order, Origin(options.machine or options.driver, family), options.workers, out)
    seconds = time.monotonic() - start
    print(f"{out}: {found.sequences} sequences, {found.calls} calls, {found.calls / seconds:.0f} calls/s", flush=True)
    for cause in sorted(set(found.ended)):
        print(f"{found.ended.count(cause)} workers ended early: {cause}")
    return int(not found.sequences)


def _replay(options: argparse.Namespace) -> int:
    from memtopo import machine
    from tests.differential.replayer import replay

    origin, recorded = traces.read(options.file)
    found = list(recorded)
    start = time.process_time()
    result = replay(machine.load(origin.machine), found)
    seconds = time.process_time() - start
    print(f"{result.sequences} sequences, {result.calls} calls, {result.calls / seconds:.0f} calls/s")
    beside = [each for each in result.differences if each.by_neighbours]
    explained = [each for each in result.differences if each.explained_by and not each.by_neighbours]
    differences = [each for each in result.differences if not (each.explained_by or each.by_neighbours)]
    print(f"{len(differences)} differences; {len(beside)} more depend on what lies beside a reservation")
    print(f"{len(explained)} more are explained by an entry of STRICTER or LAXER")
    _print_kinds(differences, options.show)
    if options.differences:
        parts = [Trace(each.trace.seed, each.trace.steps[: each.position + 1]) for each in differences]
        options.differences.write_text("".join(map(str, parts)))
    return int(bool(differences))


def _print_kinds(differences: list[Difference], show: int) -> None:
    from tests.differential.replayer import by_kind

    for kind, found in by_kind(differences):
        print(f"{len(found):6}  {kind}")
        for each in islice(found, show):
            print(f"        {each.trace.seed}, call {each.position}: {each.step.call} -> {each.step.answer}")


def _minimise(options: argparse.Namespace) -> int:
    from memtopo import machine
    from tests.differential.minimiser import NoDifference, minimised
    from tests.differential.replayer import by_kind, compare

    simulated = machine.load(options.machine)
    found = [each for trace in _parsed(options.file) if (each := compare(simulated, trace))]
    for kind, differences in by_kind(found):
        for each in differences[: options.each]:
            try:
                shortest = minimised(each, options.driver, simulated, options.workers)
            except NoDifference:
                print(f"# {kind}: seed {each.trace.seed} does not show it in a fresh process\n", flush=True)
                continue
            print(f"# {kind}: simulated {shortest.simulated}", flush=True)
            print(*(f"{call} -> {answer}" for call, answer in shortest.trace.steps), "", sep="\n", flush=True)
    return 0


def _parsed(path: Path) -> Iterator[Trace]:
    return traces.parse(path.read_text().splitlines())


def _run(options: argparse.Namespace) -> int:
    given = traces.sequences(options.file.read_text())
    found = runner.all_answers(options.driver, [calls for _, calls in given], options.workers)
    for (name, calls), answered in zip(given, found, strict=True):
        print(Trace(name, tuple(map(Step, [*calls, END], answered))))
    return 0


def _count(_: argparse.Namespace) -> int:
    from tests.differential import counts

    counts.write()
    return 0


if __name__ == "__main__":
    sys.exit(main())
