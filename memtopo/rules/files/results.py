"""What a check found, as data: one result for each file and machine, and each fault once for all machines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from memtopo.diagnostics.model import Diagnostic, Severity
from memtopo.language import Document


@dataclass(frozen=True, slots=True)
class Result:
    """One file on one machine: what is told, and how many diagnostics comments in the file ignore."""

    document: Document
    machine: str
    diagnostics: tuple[Diagnostic, ...]
    ignored: int = 0

    def count(self, severity: Severity) -> int:
        return sum(fault.severity == severity for fault in self.diagnostics)


class Shared(NamedTuple):
    """One fault, and the machines that it is a fault on; `only` are these where they are not all."""

    diagnostic: Diagnostic
    machines: tuple[str, ...]
    only: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class File:
    """One file with its results, machine by machine."""

    document: Document
    results: tuple[Result, ...]

    def faults(self) -> list[Shared]:
        """Every fault once, in the order in which the machines first gave them."""
        found: dict[object, dict[str, Diagnostic]] = {}
        for result in self.results:
            for fault in result.diagnostics:
                found.setdefault(_alike(fault, len(self.results)), {})[result.machine] = fault
        return [_shared(each, all=len(each) == len(self.results)) for each in found.values()]

    def count(self, severity: Severity) -> int:
        """How many different faults there are."""
        return sum(fault.diagnostic.severity == severity for fault in self.faults())


class Checked(NamedTuple):
    """A whole check: files in their order, each on every machine; where it is `strict`, warnings fail too."""

    machines: tuple[str, ...]
    files: tuple[File, ...]
    strict: bool = False

    @property
    def results(self) -> Iterator[Result]:
        return (result for file in self.files for result in file.results)

    def failed(self, checked: Result | File) -> bool:
        """Whether a result, or any result of a file, is not as it should be."""
        return bool(checked.count("error") or (self.strict and checked.count("warning")))

    @property
    def ok(self) -> bool:
        return not any(self.failed(result) for result in self.results)


def _alike(fault: Diagnostic, machines: int) -> object:
    """What two machines' faults are the same by; notes and help may speak of the machine."""
    return fault if machines == 1 else fault._replace(notes=(), help=None)


def _shared(found: dict[str, Diagnostic], *, all: bool) -> Shared:
    machines = tuple(found)
    first, *others = found.values()
    if not all or any(other != first for other in others):
        first = _merged(found)
    return Shared(first, machines, () if all else machines)


def _merged(found: dict[str, Diagnostic]) -> Diagnostic:
    """One fault for several machines: what only some of them say is noted with their names."""
    notes = _by_text((note, machine) for machine, fault in found.items() for note in fault.notes)
    helps = _by_text((fault.help, machine) for machine, fault in found.items() if fault.help)
    shared = [text for text, machines in helps.items() if len(machines) == len(found)]
    told = [
        text if len(machines) == len(found) else f"on {', '.join(machines)}: {text}"
        for text, machines in (*notes.items(), *helps.items())
        if text not in shared
    ]
    return next(iter(found.values()))._replace(notes=tuple(told), help=shared[0] if shared else None)


def _by_text(remarks: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for text, machine in remarks:
        found.setdefault(text, []).append(machine)
    return found
