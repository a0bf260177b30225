"""What another API made: external memory with its parts, and semaphores. It always comes from outside of the spec."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from memtopo.common.units import exact
from memtopo.diagnostics.model import Diagnostic, Label, Path
from memtopo.driver.types import Location
from memtopo.geometry.exporting import Shared, is_taken, no_gpu
from memtopo.geometry.groups import ExternalObject, ExternalPart, ImportedSemaphore, Origin, Via
from memtopo.geometry.importing import Sibling
from memtopo.geometry.naming import Devices
from memtopo.spec import External, Semaphore, Source, Spec

_OTHERS = ("chunks", "buffers", "managed", "events", "imports")
_WINDOWS = "it is for Windows, and the driver of Linux answers NOT_SUPPORTED (fact 54)"
_REASONS = {
    "dma_buf": "the driver hands out DMA-BUFs and takes none: it answers NOT_SUPPORTED (fact 54)",
    "nvscibuf": "it is for Jetson and DRIVE, and the driver answers NOT_SUPPORTED here (fact 54)",
    "nvscisync": "it is for Jetson and DRIVE, and the driver answers NOT_SUPPORTED here (fact 54)",
}
"""Why a kind is refused that is known and is no descriptor of Vulkan's; all others are for Windows."""


def take(
    spec: Spec, shared: Shared, siblings: Mapping[str, Sibling], devices: Devices, faults: list[Diagnostic]
) -> None:
    """Put what other APIs made beside what a process creates; what has a fault of its own is unsure."""
    for name, external in spec.external.items():
        run = _external(spec.at("external", name), external, siblings, devices, faults)
        taken = is_taken(spec, name, "external", ("ranges", *_OTHERS), faults)
        shared.put("external", name, None if taken else run)
    for name, semaphore in spec.semaphores.items():
        made = _semaphore(spec.at("semaphores", name), semaphore, siblings, devices, faults)
        taken = is_taken(spec, name, "semaphores", (*_OTHERS, "external"), faults)
        shared.put("semaphores", name, None if taken else made)


def _external(
    path: Path, entry: External, siblings: Mapping[str, Sibling], devices: Devices, faults: list[Diagnostic]
) -> ExternalObject | None:
    name = str(path[-1])
    what = f"external object {name!r}"
    place = _place(what, path, entry, devices, faults)
    parts = tuple(
        ExternalPart(label, (*path, "buffers", label), part.offset.bytes(1), part.size.bytes(1))
        for label, part in entry.buffers.items()
    )
    size = entry.size.bytes(1)
    wrong = _told(
        faults,
        *_refused(what, path, entry.via, "opaque_fd"),
        *_from_a_process(what, path, entry.source, siblings),
        *(_past(part, size, path) for part in parts if part.offset + part.size > size),
        *(_inside(part, path) for part in parts if part.offset and entry.dedicated),
    )
    if wrong or place is None:
        return None
    return ExternalObject(name, path, size, place, entry.dedicated, _origin(name, entry.source, "opaque_fd"), parts)


def _semaphore(
    path: Path, entry: Semaphore, siblings: Mapping[str, Sibling], devices: Devices, faults: list[Diagnostic]
) -> ImportedSemaphore | None:
    name = str(path[-1])
    what = f"semaphore {name!r}"
    place = _place(what, path, entry, devices, faults)
    timeline = entry.via == "timeline_fd"
    wrong = _told(
        faults,
        *_refused(what, path, entry.via, "timeline_fd", "opaque_fd"),
        *_from_a_process(what, path, entry.source, siblings),
        *(_backwards(what, path, entry.wait, entry.signal) if timeline else ()),
    )
    if wrong or place is None:
        return None
    origin = _origin(name, entry.source, "timeline_fd" if timeline else "opaque_fd")
    return ImportedSemaphore(
        name, path, place, timeline, origin, *(_value(each) for each in (entry.wait, entry.signal))
    )


def _told(faults: list[Diagnostic], *wrong: Diagnostic) -> bool:
    """Whether anything is wrong, each of which is told."""
    faults.extend(wrong)
    return bool(wrong)


def _value(point: int | None) -> int | None:
    return 0 if point is True else point


def _place(
    what: str, path: Path, entry: External | Semaphore, devices: Devices, faults: list[Diagnostic]
) -> Location | None:
    place = devices.resolve(entry.device, (*path, "device"))
    if place and (wrong := no_gpu(what, [place], (*path, "device"))):
        faults.append(wrong)
        return None
    return place


def _origin(name: str, source: Source, via: Via) -> Origin:
    """Where it comes from: from a producer alone, that is its export of the entry's own name."""
    return Origin((source.holder,), source.export or name, 1, via, siblings=False)


def _refused(what: str, path: Path, via: str, *possible: str) -> Iterator[Diagnostic]:
    """MT702, where CUDA has a kind of handle by name and cannot take it."""
    if via not in possible:
        told = f"{what}: {via!r} cannot be imported on Linux"
        help = f"have its producer hand it out as an opaque fd: via: {' or '.join(possible)}"
        yield Diagnostic("MT702", told, (*path, "via"), notes=(_REASONS.get(via, _WINDOWS),), help=help)


def _from_a_process(what: str, path: Path, source: Source, processes: Collection[str]) -> Iterator[Diagnostic]:
    """MT203, where a producer goes by the name of a process, of which only imports can come."""
    if source.holder in processes:
        told = f"{what} is from {source.holder!r}, which is the name of a process of this spec"
        help = "what a process exports is imported under 'imports'; a producer outside has another name"
        yield Diagnostic("MT203", told, (*path, "from"), help=help)


def _past(part: ExternalPart, size: int, path: Path) -> Diagnostic:
    told = f"'{path[-1]}.{part.name}' ends at {exact(part.offset + part.size)} of {path[-1]!r}, which has {exact(size)}"
    label = Label(f"{exact(size)} declared here", (*path, "size"))
    note = "the driver maps nothing past the end of an object (fact 53)"
    help = f"write 'size: {exact(size - part.offset)}' at most" if part.offset < size else None
    return Diagnostic("MT703", told, (*part.path, "size"), labels=(label,), notes=(note,), help=help)


def _inside(part: ExternalPart, path: Path) -> Diagnostic:
    told = f"'{path[-1]}.{part.name}' begins at {exact(part.offset)} of {path[-1]!r}, which is dedicated"
    label = Label("dedicated here", (*path, "dedicated"))
    note = "the driver maps a dedicated object from its begin alone (fact 53)"
    help = "write 'offset: 0', or have it allocated and offered without 'dedicated', and leave that out here too"
    return Diagnostic("MT703", told, (*part.path, "offset"), labels=(label,), notes=(note,), help=help)


def _backwards(what: str, path: Path, wait: int | None, signal: int | None) -> Iterator[Diagnostic]:
    """MT704, where a timeline would not go forward: it begins at 0, and a smaller value sets it back."""
    if wait == 0:
        told = f"{what} waits for 0, which is where a timeline begins"
        yield Diagnostic("MT704", told, (*path, "wait"), help="wait for 1 or more, or leave 'wait' out")
    if signal is not None and signal <= (least := wait or 0):
        told = f"{what} signals {signal}, and its timeline is at {least} or more by then"
        note = "the driver would set it back, and whoever waits for more would wait again (fact 56)"
        label = (Label(f"waits for {wait}", (*path, "wait")),) if wait else ()
        help = f"signal {least + 1} or more"
        yield Diagnostic("MT704", told, (*path, "signal"), labels=label, notes=(note,), help=help)
