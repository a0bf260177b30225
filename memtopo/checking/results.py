"""What a check found, as data: one result for each file and machine, and each fault once for all machines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from memtopo.diagnostics import Diagnostic, Severity
from memtopo.source import Document


@dataclass(frozen=True, slots=True)
class Result:
    """One file on one machine: what is told, and how many diagnostics comments in the file ignore."""

    document: Document
    machine: str
    diagnostics: tuple[Diagnostic, ...]
    ignored: int = 0

    def count(self, severity: Severity) -> int:
        return sum(fault.severity == severity for fault in self.diagnostics)


@dataclass(frozen=True, slots=True)
class Shared:
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
        found: dict[Diagnostic, dict[str, None]] = {}
        for result in self.results:
            for fault in result.diagnostics:
                found.setdefault(fault, {})[result.machine] = None
        return [
            Shared(fault, tuple(machines), () if len(machines) == len(self.results) else tuple(machines))
            for fault, machines in found.items()
        ]

    def count(self, severity: Severity) -> int:
        """How many different faults there are."""
        return sum(fault.diagnostic.severity == severity for fault in self.faults())


@dataclass(frozen=True, slots=True)
class Checked:
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
