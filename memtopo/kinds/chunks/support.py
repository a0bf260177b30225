"""Handle types and properties of chunks that a machine supports: the choice among alternatives, and rules.

Of alternatives, the first one is taken that works in the trials of a machine, at all locations of an entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from operator import or_
from typing import Any, NamedTuple

from memtopo import machine
from memtopo.diagnostics.model import Diagnostic, Label, Path
from memtopo.driver.types import PROPERTY_FLAGS, HandleType, Location, LocationKind
from memtopo.geometry.groups import ChunkGroup
from memtopo.geometry.model import Geometry
from memtopo.kinds.kind import Scope
from memtopo.kinds.resolution import Refused
from memtopo.language.entries import Entry, Spec
from memtopo.language.fields import Alternatives
from memtopo.language.names import NamedDevice
from memtopo.machine import Machine, Trial

_REASONS = 3
"""Reasons of alternatives that do not work, which a diagnostic shows."""


class Support(NamedTuple):
    """Support of one alternative: true if a trial showed it, false if it is refused, None if nothing was tried."""

    works: bool | None
    reason: str = ""


ACROSS = HandleType.FABRIC
"""Handle type that is valid on other nodes (fact 88)."""


def confined(scope: Scope, name: str, written: Any, handles: HandleType) -> Support | None:
    """Refusal of one of the alternatives of handle types: without fabric, for an object that is imported elsewhere.

    None if the object stays on one node, or if no alternative has fabric.
    """
    options = written.options if isinstance(written, Alternatives) else ()
    if ACROSS in handles or not any(ACROSS in each for each in options):
        return None
    importer = scope.user_elsewhere(name)
    return Support(works=False, reason=elsewhere(importer)) if importer else None


def elsewhere(importer: str) -> str:
    """Reason against handles that are valid on one node only."""
    return f"process {importer!r} imports it on another node"


def weakest(found: Iterable[Support]) -> Support:
    """Support at all of some locations: the first that is refused, else the first that was not tried."""
    every = list(found)
    refused = (each for each in every if each.works is False)
    untried = (each for each in every if each.works is None)
    return next(refused, None) or next(untried, None) or (every[0] if every else Support(works=True))


def chosen(scope: Scope, written: Any, subject: str, path: Path, support: Callable[[Any], Support]) -> Any:
    """Value of a field: the written one, or the first alternative that works; the choice is noted in the scope.

    An alternative that was not tried is taken only if none works and it is the last one. Raises `Refused` with MT408 if
    all of them are refused.
    """
    if not isinstance(written, Alternatives):
        return written
    found = [support(option) for option in written.options]
    taken = _taken(found)
    reasons = list(zip(written.words, (each.reason for each in found), strict=True))
    if taken is None:
        message = f"{subject} {written}: none of these works on this machine"
        fabric = "fabric needs IMEX (/dev/nvidia-caps-imex-channels); " if "fabric" in written.words else ""
        help = f"{fabric}add an alternative that works, or omit the field"
        notes = tuple(f"{word}: {reason}" for word, reason in reasons[:_REASONS])
        raise Refused(Diagnostic("MT408", message, path, notes=notes, help=help))
    refused = tuple(machine.Refused(*each) for each in reasons[:taken])
    scope.choices[path] = machine.Choice(subject, *reasons[taken], refused, written.words, path)
    return written.options[taken]


def needed_trials(spec: Spec) -> frozenset[str]:
    """Names of the trials that decide the alternatives of a spec; a property's trial has the name of its field."""
    found: set[str] = set()
    for part in (spec, *spec.processes.values()):
        for section in part.sections.values():
            for entry in section.values():
                if isinstance(entry, Entry):
                    found.update(_trials(entry))
    return frozenset(found | {"fd+fabric"} if "fabric" in found else found)


def _trials(entry: Entry) -> Iterator[str]:
    for name, value in entry:
        for each in value if isinstance(value, list) else (value,):
            if isinstance(each, Alternatives):
                tried = zip(each.options, each.words, strict=True)
                yield from (name if option is True else word for option, word in tried if option is not False)


def _taken(found: Sequence[Support]) -> int | None:
    """Index of the first alternative that works, else of the last that is not refused; None if all are."""
    works = (index for index, each in enumerate(found) if each.works)
    possible = (index for index in reversed(range(len(found))) if found[index].works is None)
    return next(works, next(possible, None))


_LISTED = 7
"""Entries with the same error that a diagnostic shows besides the first one."""

FABRIC_HELP = "fabric handles need an IMEX channel (/dev/nvidia-caps-imex-channels) in this machine or container"

_WINDOWS = ("win32", "win32_kmt")
_FD_AND_FABRIC = HandleType.FD | HandleType.FABRIC


def supported_at(scope: Scope, names: Sequence[NamedDevice], word: str) -> Support:
    """Support of a handle type or property at the locations of some names, in all instances of the process."""
    locations = scope.devices.everywhere(names)
    found = weakest(_support(location, word, scope.machines.of(location.node)) for location in locations)
    where = ", ".join(map(str, locations[:_LISTED])) + " …" * (len(locations) > _LISTED)
    return found._replace(reason=f"it worked in a trial on {where}") if found.works else found


def taken_handles(
    scope: Scope, noun: str, path: Path, written: Sequence[Any], names: Sequence[NamedDevice]
) -> HandleType:
    """Handle types of an entry; of alternatives, the first that works at all of its locations."""
    handles = reduce(or_, (each for each in written if not isinstance(each, Alternatives)), HandleType.NONE)
    for index, each in enumerate(written):
        if not isinstance(each, Alternatives):
            continue

        def support(option: HandleType, fixed: HandleType = handles, written: object = each) -> Support:
            refused = confined(scope, str(path[-1]), written, fixed | option)
            return refused or supported_at(scope, names, "+".join((fixed | option).words))

        where = (*path, "handles") if len(written) == 1 else (*path, "handles", index)
        handles |= chosen(scope, each, f"{noun} {path[-1]}: handles", where, support)
    return handles


def _support(location: Location, word: str, machine: Machine) -> Support:
    if word in PROPERTY_FLAGS and location.kind is not LocationKind.GPU:
        return Support(works=False, reason=f"memory of {location} cannot have it")
    if location.kind is LocationKind.HOST:
        return Support(works=False, reason="memory of 'host' has no handle types")
    trial = machine.trial(location.on(None), word)
    if trial.works:
        return Support(works=True)
    if trial.refused or word in _WINDOWS:
        return Support(works=False, reason=f"{_reason(word, trial)} on {location}")
    return Support(works=None, reason=f"it was not tried on {location}")


def handle_types(geometry: Geometry, machine: Machine, kind: type[ChunkGroup] = ChunkGroup) -> Iterator[Diagnostic]:
    """Yield MT404 for handle types whose trial failed; an attribute alone is not sufficient (fact 4)."""
    equal: dict[tuple[object, ...], list[Diagnostic]] = {}
    for group in geometry.of(kind).values():
        for location in group.distinct_locations:
            if fault := _handles(group, location, machine, geometry):
                what, diagnostic = fault
                equal.setdefault((what, diagnostic.notes), []).append(diagnostic)
                break
    for first, *others in equal.values():
        labels = tuple(Label(f"the same for {str(each.path[-2])!r}", each.path) for each in others[:_LISTED])
        more = (f"and {len(others) - _LISTED:,} more entries",) if len(others) > _LISTED else ()
        yield first._replace(labels=(*first.labels, *labels), notes=(*first.notes, *more))


def properties(geometry: Geometry, machine: Machine, kind: type[ChunkGroup] = ChunkGroup) -> Iterator[Diagnostic]:
    """Yield MT405 for devices without virtual memory management or without a requested property."""
    for group in geometry.of(kind).values():
        if group.origin and group.origin.siblings:
            continue
        for location in group.distinct_locations:
            if diagnostic := _unsupported(group, location, machine, geometry):
                yield diagnostic
                break


_Fault = tuple[str, Diagnostic]
"""What does not work, and the diagnostic of an entry with it."""


def _handles(group: ChunkGroup, location: Location, machine: Machine, geometry: Geometry) -> _Fault | None:
    words, path = group.handles.words, (*group.path, "handles")
    received = group.origin is not None and not group.origin.siblings
    if (words or received) and location.kind is LocationKind.HOST:
        message = f"{_kind(group)} {group.name!r}: memory of 'host' has no handle types"
        where = (*group.path, "location") if received else path
        return "host", Diagnostic("MT404", message, where, help="name a NUMA node: location: host:0")
    for word in (*words, *(["fd+fabric"] if _FD_AND_FABRIC in group.handles else [])):
        trial = machine.trial(location, word)
        untried = word == "fabric" and trial.works is None and trial.advertised is None
        if trial.refused or untried or (word in _WINDOWS and not trial.works):
            place = geometry.place(location)
            return word, _not_supported("MT404", group, f"handle type {word!r}", place, trial, path)
    if group.origin and received:  # other chunks are checked in the process that creates them
        word, trial = group.origin.via, machine.trial(location, group.origin.via)
        if trial.refused:
            what, where = f"handle type {word!r}", (*group.path, "via")
            return word, _not_supported("MT404", group, what, geometry.place(location), trial, where)
    return None


def _unsupported(group: ChunkGroup, location: Location, machine: Machine, geometry: Geometry) -> Diagnostic | None:
    first, trial = group.properties[0], machine.trial(location, "vmm")
    if trial.refused:
        what, where = "virtual memory management", (*group.path, "location")
        return _not_supported("MT405", group, what, geometry.place(location), trial, where)
    if first.rdma and first.compressible and location.kind is LocationKind.GPU:
        message = f"chunk {group.name!r} cannot be both rdma and compressible"
        note = "the driver creates it without compression, and reports no error"
        return Diagnostic("MT405", message, (*group.path, "compressible"), notes=(note,), help="keep one of them")
    for word in first.flags:
        path = (*group.path, word)
        if location.kind is not LocationKind.GPU:
            message = f"chunk {group.name!r}: host memory cannot be {word}"
            return Diagnostic("MT405", message, path, help=f"omit {word!r}")
        if (trial := machine.trial(location, word)).refused:
            return _not_supported("MT405", group, f"{word!r}", geometry.place(location), trial, path)
    return None


def _not_supported(code: str, group: ChunkGroup, what: str, place: str, trial: Trial, path: Path) -> Diagnostic:
    message = f"{_kind(group)} {group.name!r}: {what} does not work on {place}"
    help = None
    if "fabric" in what:
        help = FABRIC_HELP
    if path[-1] in PROPERTY_FLAGS:
        help = f"write '{path[-1]}: true else false', which takes it only on devices where it works"
    if "win32" in what:
        help = "they exist on Windows only; on Linux, use fd"
    return Diagnostic(code, message, path, notes=(_reason(what, trial),), help=help)


def _kind(group: ChunkGroup) -> str:
    return "import" if group.origin else group.noun


def _reason(what: str, trial: Trial) -> str:
    if trial.works is False:
        return trial.failure("a trial of one granule", "created memory without it")
    if "win32" in what:
        return "the driver returns INVALID_VALUE on Linux"
    if trial.advertised is None:
        return "it is neither advertised nor was it tried"
    return "no GPU advertises it" if what == "virtual memory management" else "the device does not advertise it"
