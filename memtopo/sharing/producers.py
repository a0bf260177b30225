"""Producers: the holders from which a spec imports, by the sockets or commands that their names are bound to.

A spec only names its holders; `--with` or `bind` gives a socket or a command for each. On a simulated machine, holders
of external objects that are bound to nothing are simulated.
"""

from __future__ import annotations

import os
import shlex
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from memtopo.common.errors import ExchangeError, NoLayout, Unavailable, UsageError
from memtopo.common.processes import python_command
from memtopo.common.text import nearest
from memtopo.common.units import shorten
from memtopo.diagnostics.messages import COMPARED, did_you_mean, known_names
from memtopo.drivers import target
from memtopo.geometry import Geometry
from memtopo.geometry.groups import from_outside
from memtopo.kinds.external import ExternalObject
from memtopo.kinds.external.semaphores import ImportedSemaphore
from memtopo.kinds.pinned import PinnedGroup
from memtopo.machine import Machine
from memtopo.plans.report import Report
from memtopo.sharing.client import connect
from memtopo.sharing.endpoints import NAME, endpoint, is_folder
from memtopo.sharing.programs import ProducerProgram
from memtopo.sharing.simulated_producer import ProducerSpec, SimulatedFile, SimulatedMemory, SimulatedSemaphore

T = TypeVar("T")

Bound = str | tuple[str, ...]
"""The path of a socket, or the words of a command."""

PATIENCE = 30.0
"""Seconds that a program has until it serves."""

_DYING = 0.2
"""Seconds by which the end of a connection precedes the end of its process."""

_COMMAND = python_command("memtopo.sharing.simulated_producer:main")


def resolve(name: str, text: str) -> Bound:
    """Resolve `--with NAME=TEXT`: an existing socket, a folder with NAME.sock, else a command.

    A command is split as by a shell, and run without one.

    Raises `Unavailable` if it is neither, `UsageError` if the text cannot be split.
    """
    if _is_socket(text):
        return text
    if is_folder(text):
        return endpoint(name, text).path
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        message = f"--with {name}: {text!r} cannot be split into words: {str(error).lower()}"
        raise UsageError(message) from error
    if not words or shutil.which(words[0]) is None:
        message = f"--with {name}: there is neither a socket {text!r} nor a program {words[0] if words else ''!r}"
        if _is_hidden(text):
            message = f"--with {name}: {text!r} is in a folder that this user may not enter"
            raise Unavailable(message, hint="hold the layout in a folder that others may enter, with --allow-uid UID")
        raise Unavailable(message, hint="a producer that is not running yet is started by its command")
    return words


def in_folder(folder: str, names: Iterable[str]) -> dict[str, Bound]:
    """Return the sockets of holders that are in a folder, by name."""
    paths = {name: endpoint(name, folder).path for name in names if NAME.fullmatch(name)}
    return {name: path for name, path in paths.items() if _is_socket(path)}


def holders(geometry: Geometry) -> set[str]:
    """Return the names of all holders outside of a spec from which it imports."""
    every = (group for member in geometry.members.values() for group in member.every if from_outside(group))
    return {holder for group in every if group.origin for holder in group.origin.holders}


def unused(names: Iterable[str], geometry: Geometry) -> tuple[str, str] | None:
    """Return an error and its hint for the first name from which a spec imports nothing; None if it uses all."""
    known = sorted(holders(geometry))
    for name in names:
        if name not in known:
            meant = nearest(name, known[:COMPARED])
            hint = did_you_mean(meant) if meant else known_names(known, "it imports nothing from outside")
            return f"the spec imports nothing from {shorten(name)!r}", hint
    return None


def producer_specs(members: Iterable[Geometry], machine: str, gpus: Sequence[str]) -> dict[str, ProducerSpec]:
    """Return what each holder with a name must export to be simulated.

    `gpus` are UUIDs by ordinal, in hexadecimal digits. The first of several declarations counts, except for the values
    that are waited for and signalled: the highest count.
    """
    memory: dict[str, dict[str, SimulatedMemory]] = {}
    semaphores: dict[str, dict[str, SimulatedSemaphore]] = {}
    files: dict[str, dict[str, SimulatedFile]] = {}
    for each in (group for member in members for group in member.every if group.produced):
        if not each.origin:
            continue
        (holder,), name = each.origin.holders, each.origin.export
        match each:
            case ExternalObject():
                found = SimulatedMemory(name, each.size, gpus[each.location.id], each.dedicated)
                memory.setdefault(holder, {}).setdefault(name, found)
            case ImportedSemaphore():
                declared = SimulatedSemaphore(name, each.timeline, gpus[each.location.id], each.wait, each.signal)
                first = semaphores.setdefault(holder, {}).setdefault(name, declared)
                wait, signal = _highest(first.wait, each.wait), _highest(first.signal, each.signal)
                semaphores[holder][name] = replace(first, wait=wait, signal=signal)
            case PinnedGroup():
                files.setdefault(holder, {}).setdefault(name, SimulatedFile(name, each.size))
    return {
        holder: ProducerSpec(machine, _of(holder, memory), _of(holder, semaphores), _of(holder, files))
        for holder in dict.fromkeys([*memory, *semaphores, *files])
        if "/" not in holder
    }


def _of(holder: str, objects: Mapping[str, Mapping[str, T]]) -> tuple[T, ...]:
    """Objects of a holder."""
    return tuple(objects.get(holder, {}).values())


class Producers(Struct, frozen=True):
    """Sockets of holders by name, and the programs that were started; those of `simulated` are memtopo's own."""

    sockets: Mapping[str, str]
    programs: Sequence[ProducerProgram] = ()
    simulated: Sequence[str] = ()

    def with_notes(self, report: Report) -> Report:
        """Return a report with notes of the simulated holders, and of programs that ended before the layout did."""
        notes = [f"{name} is simulated by a built-in producer: this machine is simulated" for name in self.simulated]
        # The end of a program may be the cause of a failure, and become visible after it.
        within = _DYING if report.exit_code else 0.0
        programs = [program for program in self.programs if program.name not in self.simulated]
        ends = [(program.name, program.end(within)) for program in programs]
        notes += [f"the program of {name} {end} while its layout was in use" for name, end in ends if end]
        return replace(report, notes=(*notes, *report.notes)) if notes else report

    def with_survivors(self, report: Report) -> Report:
        """Return a report with notes of the programs that did not end, after all were ended."""
        left = [(program.name, program.survivor) for program in self.programs]
        notes = [
            f"the program of {name} did not end when it was killed: process {pid} is left" for name, pid in left if pid
        ]
        return replace(report, notes=(*report.notes, *notes)) if notes else report


@contextmanager
def start_producers(
    geometry: Geometry,
    bound: Mapping[str, Bound],
    machine: Machine | None,
    *,
    name: str = "",
    stop: Callable[[], int] = lambda: 0,
    patience: float = PATIENCE,
) -> Iterator[Producers]:
    """Start the programs that a layout needs, and end them with the `with`; holders that it does not use are ignored.

    `machine` is the simulated machine, called `name`, if there is one: there, external objects that no process offers
    are simulated. Elsewhere a producer that is neither bound nor running is a `UsageError`. Raises `ProducerFailed` if
    a program does not serve within `patience` seconds, `Stopped`.
    """
    used = {holder: bound[holder] for holder in sorted(holders(geometry)) if holder in bound}
    sockets = {holder: path for holder, path in used.items() if isinstance(path, str)}
    programs = [ProducerProgram(holder, words) for holder, words in used.items() if not isinstance(words, str)]
    simulated = _simulated_programs(geometry, machine, name, used) if machine else []
    if machine is None:
        _require_holders(geometry, used)
    started = [*programs, *simulated]
    with ExitStack() as stack:
        try:
            for program in started:
                stack.enter_context(program)
            for program in started:
                program.wait_until_serving(stop, patience)
            sockets |= {program.name: program.socket for program in started}
            yield Producers(sockets, started, [program.name for program in simulated])
        finally:
            for program in started:  # before one is waited for: their grace periods run at the same time
                program.terminate()


def simulated_program(holder: str, spec: ProducerSpec) -> ProducerProgram:
    """Return the program of a simulated producer, which is not started yet."""
    return ProducerProgram(holder, _COMMAND, spec.encode())


def _simulated_programs(
    geometry: Geometry, machine: Machine, name: str, bound: Mapping[str, Bound]
) -> list[ProducerProgram]:
    """Return a program for each holder of external objects that is neither bound nor running."""
    members = geometry.members.values()
    if not any(member.produced for member in members):
        return []
    specs = producer_specs(members, name, target.uuids(machine))
    return [
        simulated_program(holder, spec)
        for holder, spec in specs.items()
        if holder not in bound and not _is_held(holder)
    ]


def _require_holders(geometry: Geometry, bound: Mapping[str, Bound]) -> None:
    """Require a process for each external object, before anything is built. Raises `UsageError`."""
    for member in geometry.members.values():
        for each in (group for group in member.every if group.produced and group.origin):
            (holder,) = each.origin.holders if each.origin else ()
            if holder not in bound and "/" not in holder and not _is_held(holder):
                message = f"{each.name!r} comes from {holder!r}, which is neither bound nor running"
                hint = f"--with {holder}=/path/to/its/socket, or --with '{holder}=COMMAND'; in Python, bind="
                raise UsageError(message, hint=hint)


def _is_held(name: str) -> bool:
    """Return whether a process holds a layout of this name, even if it refuses a connection."""
    try:
        connect(endpoint(name)).close()
    except NoLayout:
        return False
    except ExchangeError:
        return True
    return True


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)  # noqa: PTH116 the text may not be a valid path
    except (OSError, ValueError):
        return False


def _is_hidden(path: str) -> bool:
    """Return whether this user may not look up a path."""
    try:
        os.stat(path)  # noqa: PTH116 as above
    except PermissionError:
        return True
    except (OSError, ValueError):
        return False
    return False


def _highest(*values: int | None) -> int | None:
    """Return the highest value: a timeline that has reached it has passed all others."""
    return max((value for value in values if value is not None), default=None)
