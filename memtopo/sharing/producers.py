"""What a name of a spec is bound to: the socket of somebody who is there, or a command that is started."""

from __future__ import annotations

import os
import shlex
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from memtopo.common.errors import Unavailable, UsageError
from memtopo.common.spawn import python_command
from memtopo.common.text import nearest
from memtopo.common.units import shorten
from memtopo.diagnostics.messages import COMPARED, listed
from memtopo.geometry import ExternalObject, Geometry, ImportedSemaphore
from memtopo.machine import Machine, target
from memtopo.plans.report import Report
from memtopo.sharing import ExchangeError, NoLayout, connect, endpoint
from memtopo.sharing.programs import ProducerFailed, Program
from memtopo.sharing.simulated_producer import Memory, ProducerSpec, Semaphore

__all__ = [
    "Bound",
    "ProducerFailed",
    "Producers",
    "holders",
    "producer_specs",
    "resolve",
    "simulated_program",
    "start_producers",
    "unused",
]

Bound = str | tuple[str, ...]
"""The path of a socket, or the words of a command."""


def resolve(name: str, text: str) -> Bound:
    """What `--with NAME=TEXT` means: a socket that is there, else a command, split as a shell does and run without one.

    Raises `Unavailable` where there is neither, `UsageError` where the text cannot be split.
    """
    if _is_socket(text):
        return text
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        told = f"--with {name}: {text!r} cannot be split into words: {str(error).lower()}"
        raise UsageError(told) from error
    if not words or shutil.which(words[0]) is None:
        told = f"--with {name}: there is neither a socket {text!r} nor a program {words[0] if words else ''!r}"
        raise Unavailable(told, hint="a producer that is not running yet is started by its command")
    return words


def holders(geometry: Geometry) -> set[str]:
    """All outside of a spec that it takes something from."""
    return {holder for member in geometry.members.values() for holder in _holders(member)}


def unused(given: Iterable[str], geometry: Geometry) -> tuple[str, str] | None:
    """The first of the names that a spec takes nothing from, as an error and its hint; None where it uses them all."""
    known = sorted(holders(geometry))
    for name in given:
        if name not in known:
            meant = nearest(name, known[:COMPARED])
            help = f"did you mean {meant!r}?" if meant else listed(known) if known else "it takes nothing from outside"
            return f"the spec takes nothing from {shorten(name)!r}", help
    return None


def _holders(geometry: Geometry) -> Iterator[str]:
    origins = [run.origin for run in geometry.runs if run.origin and not run.origin.siblings]
    for origin in [*origins, *(run.origin for run in geometry.foreign)]:
        yield from origin.holders


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)  # noqa: PTH116 the text may be no path at all
    except (OSError, ValueError):
        return False


def producer_specs(members: Iterable[Geometry], machine: str, gpus: Sequence[str]) -> dict[str, ProducerSpec]:
    """A script for each holder that goes by a name of its own. `gpus` are UUIDs by ordinal, as hex text.

    Of what is declared several times, the first counts; waits and signals are all of them.
    """
    memory: dict[str, dict[str, Memory]] = {}
    semaphores: dict[str, dict[str, Semaphore]] = {}
    for run in (run for member in members for run in member.foreign):
        (holder,), name, gpu = run.origin.holders, run.origin.export, gpus[run.place.id]
        made, signals = memory.setdefault(holder, {}), semaphores.setdefault(holder, {})
        match run:
            case ExternalObject():
                made.setdefault(name, Memory(name, run.size, gpu, run.dedicated))
            case ImportedSemaphore():
                before = signals.setdefault(name, Semaphore(name, run.timeline, gpu, run.wait, run.signal))
                highest = _highest(before.wait, run.wait), _highest(before.signal, run.signal)
                signals[name] = replace(before, wait=highest[0], signal=highest[1])
    return {
        holder: ProducerSpec(machine, tuple(found.values()), tuple(semaphores[holder].values()))
        for holder, found in memory.items()
        if "/" not in holder
    }


def _highest(*values: int | None) -> int | None:
    """The highest of the values that there are: a timeline that is there has passed all others."""
    return max((value for value in values if value is not None), default=None)


PATIENCE = 30.0
"""Seconds that a program has until it serves."""

_DYING = 0.2

_COMMAND = python_command("memtopo.sharing.simulated_producer:main")


@dataclass(frozen=True, slots=True)
class Producers:
    """The sockets of holders by name, and the programs behind some of them; of these, `played` are memtopo's own."""

    sockets: Mapping[str, str]
    programs: Sequence[Program] = ()
    played: Sequence[str] = ()

    def noted(self, report: Report) -> Report:
        """A report that says who was played, and which program ended before its layout did."""
        told = [f"{name} is played by a built-in producer: this machine is simulated" for name in self.played]
        # Of a failure it may be the cause: a connection ends some time before the process does.
        within = _DYING if report.exit_code else 0.0
        ends = [(program.name, program.ended(within)) for program in self._others()]
        told += [f"the program of {name} {how} while its layout stood" for name, how in ends if how]
        return replace(report, notes=(*told, *report.notes)) if told else report

    def over(self, report: Report) -> Report:
        """A report that says which program was not to be ended, once all were."""
        left = [(program.name, pid) for program in self.programs if (pid := program.stuck) is not None]
        told = [f"the program of {name} did not end when it was killed: process {pid} is left" for name, pid in left]
        return replace(report, notes=(*report.notes, *told)) if told else report

    def _others(self) -> list[Program]:
        return [program for program in self.programs if program.name not in self.played]


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
    """Start what has to be started for a layout, and end it again; what the spec does not name is let be.

    `machine` is the simulated one, called `name`, where there is one: what of another API nobody provides is played
    there. Raises `ProducerFailed` where a program does not serve within `patience` seconds, `Stopped`.
    """
    used = {holder: bound[holder] for holder in sorted(holders(geometry)) if holder in bound}
    sockets = {holder: path for holder, path in used.items() if isinstance(path, str)}
    programs = [Program(holder, words) for holder, words in used.items() if not isinstance(words, str)]
    played = _played(geometry, machine, name, used) if machine else []
    started = [*programs, *played]
    with ExitStack() as stack:
        try:
            for program in started:
                stack.enter_context(program)
            for program in started:
                program.await_served(stop, patience)
            sockets |= {program.name: program.socket for program in started}
            yield Producers(sockets, started, [program.name for program in played])
        finally:
            for program in started:  # all of them before one is waited for: their graces are one
                program.ask()


def simulated_program(holder: str, script: ProducerSpec) -> Program:
    """A built-in producer, before it is started."""
    return Program(holder, _COMMAND, script.text())


def _played(geometry: Geometry, machine: Machine, name: str, bound: Mapping[str, Bound]) -> list[Program]:
    """A built-in producer for each holder of another API's objects that nobody else is."""
    members = geometry.members.values()
    if not any(member.foreign for member in members):
        return []
    found = producer_specs(members, name, target.uuids(machine))
    return [
        simulated_program(holder, script)
        for holder, script in found.items()
        if holder not in bound and not _held(holder)
    ]


def _held(name: str) -> bool:
    """Whether somebody holds a layout of that name, whatever else may be wrong with it."""
    try:
        connect(endpoint(name)).close()
    except NoLayout:
        return False
    except ExchangeError:
        return True
    return True
