"""Results of a check: one for each file and machine, and each diagnostic once for all machines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from memtopo.diagnostics.model import Diagnostic, Severity
from memtopo.language import Document


@dataclass(frozen=True, slots=True)
class Result:
    """One file on one machine: the reported diagnostics, and the number of those that comments ignore.

    If several variants of each file were validated, `machine` names the variant, too: `h200x2 with pages=100`.
    """

    document: Document
    machine: str
    diagnostics: tuple[Diagnostic, ...]
    ignored: int = 0

    def count(self, severity: Severity) -> int:
        """Number of diagnostics of a severity."""
        return sum(each.severity == severity for each in self.diagnostics)


class SharedDiagnostic(NamedTuple):
    """One diagnostic and the machines on which it was found; `only` repeats them if they are not all machines."""

    diagnostic: Diagnostic
    machines: tuple[str, ...]
    only: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class File:
    """One file with its results on all machines."""

    document: Document
    results: tuple[Result, ...]

    def diagnostics(self) -> list[SharedDiagnostic]:
        """Each diagnostic once, in the order in which it was first found."""
        found: dict[object, dict[str, Diagnostic]] = {}
        for result in self.results:
            for each in result.diagnostics:
                found.setdefault(_identity(each, len(self.results)), {})[result.machine] = each
        return [_shared(each, all=len(each) == len(self.results)) for each in found.values()]

    def count(self, severity: Severity) -> int:
        """Number of different diagnostics of a severity."""
        return sum(each.diagnostic.severity == severity for each in self.diagnostics())


class Checked(NamedTuple):
    """Results of all files, in their order, on every machine; if `strict`, warnings are failures.

    `variants` is the number of combinations of settings; `machines` has each machine with each of them.
    """

    machines: tuple[str, ...]
    files: tuple[File, ...]
    strict: bool = False
    variants: int = 1

    @property
    def results(self) -> Iterator[Result]:
        return (result for file in self.files for result in file.results)

    def failed(self, checked: Result | File) -> bool:
        """Return true if a result, or any result of a file, is a failure."""
        return bool(checked.count("error") or (self.strict and checked.count("warning")))

    @property
    def ok(self) -> bool:
        return not any(self.failed(result) for result in self.results)


def _identity(each: Diagnostic, machines: int) -> object:
    """Key by which diagnostics of several machines are equal; notes and help may depend on the machine."""
    return each if machines == 1 else each._replace(notes=(), help=None)


def _shared(found: dict[str, Diagnostic], *, all: bool) -> SharedDiagnostic:
    machines = tuple(found)
    first, *others = found.values()
    if not all or any(other != first for other in others):
        first = _merged(found)
    return SharedDiagnostic(first, machines, () if all else machines)


def _merged(found: dict[str, Diagnostic]) -> Diagnostic:
    """Merge the diagnostics of several machines; notes that only some of them have get the machines' names."""
    notes = _by_text((note, machine) for machine, each in found.items() for note in each.notes)
    helps = _by_text((each.help, machine) for machine, each in found.items() if each.help)
    shared = [text for text, machines in helps.items() if len(machines) == len(found)]
    merged = [
        text if len(machines) == len(found) else f"on {', '.join(machines)}: {text}"
        for text, machines in (*notes.items(), *helps.items())
        if text not in shared
    ]
    return next(iter(found.values()))._replace(notes=tuple(merged), help=shared[0] if shared else None)


def _by_text(texts: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for text, machine in texts:
        found.setdefault(text, []).append(machine)
    return found
