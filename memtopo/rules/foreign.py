"""What another API made can be taken where no trial said otherwise, and a wait for it has somebody who signals."""

from __future__ import annotations

from collections.abc import Iterator

from memtopo.common.units import exact
from memtopo.diagnostics.model import Diagnostic, Label
from memtopo.geometry import ExternalObject, Geometry, ImportedSemaphore
from memtopo.machine import Machine, Trial

_Export = tuple[tuple[str, ...], str]
_Waits = dict[_Export, list[tuple[int, ImportedSemaphore]]]


def imports(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """MT702. What a trial refused is refused again, and so are timelines where they are not even advertised."""
    for run in geometry.foreign:
        timeline = isinstance(run, ImportedSemaphore) and run.timeline
        trial = machine.trial(run.place, "external-memory" if isinstance(run, ExternalObject) else "external-semaphore")
        if trial.works is False or (timeline and trial.refused):
            what = "external object" if isinstance(run, ExternalObject) else "semaphore"
            told = f"{what} {run.name!r}: {run.origin.via!r} does not work on {run.place} of this machine"
            yield Diagnostic("MT702", told, (*run.path, "via"), notes=(_reason(trial),))


def alike(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """MT707. Entries that take one thing say the same of it: the driver guards neither size nor kind (facts 53, 55)."""
    del machine
    known: dict[_Export, ExternalObject | ImportedSemaphore] = {}
    for member in geometry.members.values():
        for run in member.foreign:
            first = known.setdefault(_export(run), run)
            if fault := _unlike(first, run):
                yield fault


def unsignalled(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """MT705. A wait ends only when its value is signalled (facts 56, 58): by its producer, or elsewhere in the spec.

    An entry signals after its own wait, so a value is reached only by entries whose waits have ended.
    """
    del machine
    if _unsure(geometry):
        return
    for waits in _waits(geometry).values():
        reached = -1
        for wanted, run in sorted(waits, key=_wanted):
            if wanted > reached:
                yield _endless(run)
            elif run.signal is not None:
                reached = max(reached, run.signal)


def _unsure(geometry: Geometry) -> bool:
    """Whether something was left out that might signal, or come from a producer that does."""
    left_out = {section for member in (geometry, *geometry.members.values()) for section, _ in member.unsure}
    return not left_out.isdisjoint(("external", "semaphores", "processes"))


def _waits(geometry: Geometry) -> _Waits:
    """The entries of each semaphore, in all processes, with what is to be signalled for them; -1 is nothing."""
    found: _Waits = {}
    for member in geometry.members.values():
        # A producer that memory is taken from is one that works, and signals.
        working = {run.origin.holders for run in member.external.values()}
        for run in member.semaphores.values():
            wanted = -1 if run.wait is None or run.origin.holders in working else run.wait
            found.setdefault(_export(run), []).append((wanted, run))
    return found


def _export(run: ExternalObject | ImportedSemaphore) -> _Export:
    return run.origin.holders, run.origin.export


def _unlike(first: ExternalObject | ImportedSemaphore, run: ExternalObject | ImportedSemaphore) -> Diagnostic | None:
    one, other = _said(first), _said(run)
    key = next((key for key, value in one.items() if other.get(key) != value), None)
    if key is None:
        return None
    source = run.origin.text(run.origin.holders[0])
    told = f"{run.name!r} is {source}, whose {key} is {other[key]} here and {one[key]} for {first.name!r}"
    label = Label(f"{first.name!r} is declared here", first.path, "key")
    help = "say the same of it, or name the other export that is meant"
    return Diagnostic("MT707", told, run.path, "key", labels=(label,), help=help)


def _said(run: ExternalObject | ImportedSemaphore) -> dict[str, str]:
    """What an entry says of the thing itself; what is done with it may differ. Things of two kinds differ in that."""
    if isinstance(run, ImportedSemaphore):
        return {"kind": f"a {'timeline' if run.timeline else 'binary'} semaphore"}
    dedicated = "dedicated" if run.dedicated else "not dedicated"
    return {"kind": "memory", "size": exact(run.size), "device": str(run.place), "allocation": dedicated}


def _wanted(each: tuple[int, ImportedSemaphore]) -> int:
    return each[0]


def _endless(run: ImportedSemaphore) -> Diagnostic:
    value = f" {run.wait}" if run.timeline else ""
    source = run.origin.text(run.origin.holders[0])
    told = f"semaphore {run.name!r} waits for{value or ' a signal'} of {source}, which nothing in this spec signals"
    note = "the check waits until its timeout, and fails, unless the producer signals by itself"
    help = f"let an entry signal{value or ' it'}, or declare what {run.origin.holders[0]!r} makes under 'external'"
    return Diagnostic("MT705", told, (*run.path, "wait"), notes=(note,), help=help)


def _reason(trial: Trial) -> str:
    if trial.works is False:
        return f"a trial {f'was answered with {trial.error}' if trial.error else 'read other bytes'}"
    return "the device does not advertise timeline semaphores"
