"""Programs out of plans: the calls of each process as a program that needs no memtopo, as data.

`statements` makes loops of equal calls, `languages` writes a program in C or Python.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from itertools import chain

from msgspec import Struct

from memtopo.common.errors import Failed
from memtopo.common.text import printable
from memtopo.driver.recorder import DriverCall
from memtopo.machine import MachineLine
from memtopo.output import humanize
from memtopo.output.programs.statements import Call, Loop, PhaseBody, Variable, sections, variables
from memtopo.plans.calls import Exchange, NamedCall, PlannedCall, named

_WIDTH = 100
"""Width of the comment at the begin."""


class NotExpressible(Failed):
    """A plan that no program of its calls alone can make."""


class Program(Struct, frozen=True):
    """Program of one process. It imports from the `exporters`, and the `importers` from it."""

    name: str
    process: str
    machine: MachineLine
    sections: tuple[PhaseBody, ...]
    variables: tuple[Variable, ...]
    exporters: tuple[str, ...]
    importers: tuple[str, ...]
    shares: bool
    """True if it makes or imports shareable handles."""
    common: tuple[str, ...]
    """Ranges that have one address in all processes of the layout."""
    recorded: bool = False
    """True for calls of a record, which need not be those of a layout."""

    @property
    def file(self) -> str:
        """Name of its file without the suffix."""
        return self.process or self.name

    @property
    def peers(self) -> tuple[str, ...]:
        """Processes that it exchanges handles with."""
        return (*self.exporters, *self.importers)

    @property
    def methods(self) -> set[str]:
        """Methods of its calls."""
        every = chain.from_iterable(each.statements for each in self.sections)
        calls = chain.from_iterable(each.body if isinstance(each, Loop) else (each,) for each in every)
        return {each.method for each in calls if isinstance(each, Call)}

    @property
    def title(self) -> str:
        """Title in the first line."""
        if self.recorded:
            return f"Program of memtopo replay: calls of {_safe(self.process or self.name)}."
        return f"Program of memtopo plan: layout {self.name}{f', process {self.process}' if self.process else ''}."

    @property
    def about(self) -> tuple[str, ...]:
        """Lines of the comment at the begin."""
        if self.recorded:
            return (
                "The driver calls of a record that change something, in their order, without those that failed there.",
                f"The last one ends otherwise on {_safe(humanize.machine(self.machine))}, or all calls are here.",
                "It ends at the first call that fails; the end of the process gives back what it has.",
            )
        lines = [
            "The driver calls by which memtopo builds this layout and takes it down, in their order.",
            f"Planned for {_safe(humanize.machine(self.machine))}. GPUs are numbered as in the plan.",
            "It ends at the first call that fails; the end of the process gives back what it has.",
        ]
        if any("@" in each.entry for each in self.variables):  # the area of offloaded chunks, such as weight@host:0
            lines += [
                "",
                "It also makes the memory that keeps the bytes of offloaded chunks in the states of the layout,",
                "although it changes to none of them: memtopo makes that memory before the first change.",
            ]
        if self.common:
            lines += [
                "",
                *textwrap.wrap(f"Ranges that have one address in all processes: {', '.join(self.common)}.", _WIDTH),
                "All programs ask for the same address, and do not compare what the driver returns. memtopo does, and",
                "has the processes reserve the range elsewhere if it differs.",
            ]
        if self.peers:
            lines += [
                "",
                "The processes exchange handles over sockets in the folder MEMTOPO_SOCKETS, by default in",
                "the current one. Start all of them, in any order.",
            ]
        return tuple(lines)


def _safe(text: str) -> str:
    """A text that neither ends nor begins a comment."""
    return printable(text).replace("\\", "/").replace('"', "'").replace("*/", "* /").replace("/*", "/ *")


_REASONS = {
    "import_external_memory": "memory of another API, whose producer sends it by memtopo's protocol",
    "import_external_semaphore": "a semaphore of another API, whose producer sends it by memtopo's protocol",
    "mem_host_register": "a file that another program shares",
    "multicast_create": "a multicast object, which was never tried on GPUs (fact 87)",
    "multicast_add_device": "a multicast object, which was never tried on GPUs (fact 87)",
}
_HINT = "'memtopo plan --calls' lists the calls"


ProcessCalls = Mapping[str, Sequence[PlannedCall]]
"""Calls of each process of a layout, by its label."""


def programs_of(
    name: str, machine: MachineLine, calls: ProcessCalls, common: Mapping[str, Sequence[str]]
) -> list[Program]:
    """Programs of all processes of a layout. Raises `NotExpressible`."""
    for label, entries in calls.items():
        _require_expressible(label, entries, calls)
    return [_program(name, machine, label, calls, common.get(label, ())) for label in calls]


def recorded_program(name: str, process: str, machine: MachineLine, calls: Sequence[DriverCall]) -> Program:
    """Program of the calls of one process of a record. Raises `NotExpressible`."""
    _require_expressible(process, calls, {})
    return _program(name, machine, process, {process: calls}, (), recorded=True)


def _require_expressible(label: str, entries: Sequence[PlannedCall], calls: ProcessCalls) -> None:
    where = f"process {label!r} has" if label else "the layout has"
    for each in entries:
        if isinstance(each, DriverCall) and (reason := _REASONS.get(each.method)):
            raise NotExpressible(f"{where} {reason}, which a program of its calls cannot make", hint=_HINT)
        if isinstance(each, Exchange) and each.action == "receive" and each.peer not in calls:
            what = f"{where} an import from {each.peer!r}, a holder outside of the spec"
            raise NotExpressible(f"{what}, whose handle a program of its calls cannot request", hint=_HINT)


def _program(
    name: str, machine: MachineLine, label: str, every: ProcessCalls, common: Sequence[str], *, recorded: bool = False
) -> Program:
    # What a process exchanges with itself, it has.
    calls = [each for each in named(every[label]) if not (isinstance(each, Exchange) and each.peer == label)]

    def peers(action: str) -> tuple[str, ...]:
        found = [each.peer for each in calls if isinstance(each, Exchange) and each.action == action]
        return tuple(peer for peer in every if peer in found)

    makes = {each.made.kind for each in calls if isinstance(each, NamedCall) and each.made}
    shares = bool(makes & {"shared", "secret"}) or any(isinstance(each, Exchange) for each in calls)
    found = tuple(sections(calls)), tuple(variables(calls))
    ends = peers("receive"), peers("send")
    return Program(name, label, machine, *found, *ends, shares, tuple(common), recorded)
