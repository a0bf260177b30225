"""All that a layout takes from outside, brought together: what is bound, what is started, and what is played."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from memtopo.common.spawn import python_command
from memtopo.geometry import Geometry
from memtopo.machine import Machine, target
from memtopo.plans.report import Report
from memtopo.sharing import ExchangeError, NoLayout, connect, place
from memtopo.sharing.playing.script import Script
from memtopo.sharing.producers.binding import Bound, holders
from memtopo.sharing.producers.casting import scripts
from memtopo.sharing.producers.program import Program

PATIENCE = 30.0
"""Seconds that a program has until it serves."""

_DYING = 0.2

_COMMAND = python_command("memtopo.sharing.playing.__main__:main")


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
def producers(
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


def player(holder: str, script: Script) -> Program:
    """A built-in producer, before it is started."""
    return Program(holder, _COMMAND, script.text())


def _played(geometry: Geometry, machine: Machine, name: str, bound: Mapping[str, Bound]) -> list[Program]:
    """A built-in producer for each holder of another API's objects that nobody else is."""
    members = geometry.members.values()
    if not any(member.foreign for member in members):
        return []
    found = scripts(members, name, target.uuids(machine))
    return [player(holder, script) for holder, script in found.items() if holder not in bound and not _held(holder)]


def _held(name: str) -> bool:
    """Whether somebody holds a layout of that name, whatever else may be wrong with it."""
    try:
        connect(place(name)).close()
    except NoLayout:
        return False
    except ExchangeError:
        return True
    return True
