"""Handle types and properties of chunks that a machine supports: the choice among alternatives, and rules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial, reduce
from operator import or_
from typing import Any

from memtopo.diagnostics.model import Diagnostic, Label, Path
from memtopo.driver.types import PROPERTY_FLAGS, WHOLE_HOST, HandleType, Location, LocationKind, Properties, flags_of
from memtopo.geometry.groups import ChunkGroup
from memtopo.geometry.model import Geometry
from memtopo.kinds.alternatives import Support, chosen, confined, weakest
from memtopo.kinds.chunks.entry import Chunk
from memtopo.kinds.kind import Scope
from memtopo.kinds.resolution import together
from memtopo.language.fields import Alternatives
from memtopo.language.names import NamedDevice
from memtopo.machine import Machine, Trial

_LISTED = 7
"""Entries with the same error that a diagnostic shows besides the first one."""

FABRIC_HELP = "fabric handles need an IMEX channel (/dev/nvidia-caps-imex-channels) in this machine or container"

_WINDOWS = ("win32", "win32_kmt")
_FD_AND_FABRIC = HandleType.FD | HandleType.FABRIC


def taken_properties(scope: Scope, entry: Chunk, path: Path) -> Properties:
    """Properties of a chunk's entry, the same in all instances of its process and at all of its locations."""
    handles, flags = together(
        partial(taken_handles, scope, "chunk", path, entry.handles, entry.location),
        partial(_taken_flags, scope, entry, path),
    )
    return Properties.with_flags(WHOLE_HOST, handles, flags)


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


def _taken_flags(scope: Scope, entry: Chunk, path: Path) -> set[str]:
    """Properties that are flags; the driver creates no memory with two of them."""
    taken = {*flags_of(entry)}

    def support(word: str, option: bool) -> Support:  # noqa: FBT001 one of the alternatives
        if option and taken:
            return Support(works=False, reason="the driver creates no memory that is both rdma and compressible")
        return supported_at(scope, entry.location, word) if option else Support(works=True)

    for word in PROPERTY_FLAGS:
        written, subject = getattr(entry, word), f"chunk {path[-1]}: {word}"
        if isinstance(written, Alternatives) and chosen(scope, written, subject, (*path, word), partial(support, word)):
            taken.add(word)
    return taken


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
            if fault := _handles(group, location, machine, geometry) or _received(group, location, machine, geometry):
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
            if diagnostic := _vmm(group, location, machine, geometry) or _unsupported(
                group, location, machine, geometry
            ):
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
    return None


def _received(group: ChunkGroup, location: Location, machine: Machine, geometry: Geometry) -> _Fault | None:
    """Check an import from outside of the spec; other chunks are checked in the process that creates them."""
    if not group.origin or group.origin.siblings or not (trial := machine.trial(location, group.origin.via)).refused:
        return None
    word, place, path = group.origin.via, geometry.place(location), (*group.path, "via")
    return word, _not_supported("MT404", group, f"handle type {word!r}", place, trial, path)


def _vmm(group: ChunkGroup, location: Location, machine: Machine, geometry: Geometry) -> Diagnostic | None:
    trial = machine.trial(location, "vmm")
    if not trial.refused:
        return None
    return _not_supported(
        "MT405", group, "virtual memory management", geometry.place(location), trial, (*group.path, "location")
    )


def _unsupported(group: ChunkGroup, location: Location, machine: Machine, geometry: Geometry) -> Diagnostic | None:
    first = group.properties[0]
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
