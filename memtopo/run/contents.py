"""Who sees which bytes: every chunk, buffer and managed memory of a geometry with all mappings, and every event.

What another API made is not among them: its bytes are somebody else's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from memtopo.diagnostics.model import Path
from memtopo.driver.types import Access, Grant, Location, LocationKind, gpu
from memtopo.geometry import BufferGroup, ChunkGroup, EventGroup, Geometry, ManagedAllocation, Placement, Stretch
from memtopo.geometry.granting import Asked, stretches
from memtopo.geometry.model import Instance

Granted = dict[Instance, list[Stretch]]


def granted(geometry: Geometry) -> Granted:
    """The access of each reservation, as it will be."""
    asked = Asked(geometry.parts)
    return {where: list(stretches(placed, asked.of(*where))) for where, placed in geometry.placements.items()}


class Identity(NamedTuple):
    """A thing by who created it: a process's label, empty where there is but one, or a holder outside, and its name."""

    owner: str
    label: str


@dataclass(frozen=True, slots=True)
class Contents:
    """One chunk, buffer or managed memory, and everywhere that it can be seen: (range or itself, offset, access).

    `ours` is whether this run created it, in whichever process; only then may anything be written to it.
    """

    identity: Identity
    chunk: str
    size: int
    location: Location
    path: Path
    seen_at: tuple[tuple[str, int, tuple[Grant, ...]], ...]
    ours: bool = True


def contents(geometry: Geometry, label: str = "", siblings: Mapping[str, Geometry] | None = None) -> list[Contents]:
    """All that a process has of its own or imports, for whoever looks at bytes; in the order of creation.

    `label` is the process's own, and `siblings` the geometries of all of them, its own too.
    """
    found: dict[str, list[tuple[str, int, tuple[Grant, ...]]]] = {}
    access_of = granted(geometry)
    for placements in geometry.placements.values():
        for placement, index, offset, access in mappings(placements, access_of):
            chunk = placement.chunk.label(index)
            found.setdefault(chunk, []).append((placement.range.label(placement.instance), offset, access))
    every = [
        Contents(
            *_who(run, index, label, siblings), run.size, run.place_of(index), run.path,
            tuple(found.get(run.label(index), ())), ours=_ours(run),
        )
        for run in geometry.chunks.values()
        for index in range(run.count)
    ]  # fmt: skip
    every += [
        Contents(
            *_who(run, index, label, siblings), run.declared, run.place_of(index), run.path,
            ((run.label(index), 0, (Grant(run.place_of(index), Access.RW),)),), ours=_ours(run),
        )
        for run in geometry.buffers.values()
        for index in range(run.count)
    ]  # fmt: skip
    return every + [
        Contents(Identity(label, run.name), run.name, run.size, gpu(run.home), run.path, ((run.name, 0, _users(run)),))
        for run in geometry.managed.values()
    ]


def _users(run: ManagedAllocation) -> tuple[Grant, ...]:
    """Who may read and write managed memory: the GPUs that it is for, its home first, and the host."""
    gpus = [run.home, *sorted(run.gpus - {run.home})]
    return tuple(Grant(place, Access.RW) for place in (*map(gpu, gpus), Location(LocationKind.HOST)))


def everything(geometry: Geometry) -> dict[str, list[Contents]]:
    """The contents of each process by its label; of a layout of one process, without a label."""
    siblings = geometry.processes or None
    return {label: contents(member, label, siblings) for label, member in geometry.members.items()}


def _ours(run: ChunkGroup | BufferGroup) -> bool:
    return run.origin is None or run.origin.siblings


def _who(
    run: ChunkGroup | BufferGroup | EventGroup, index: int, label: str, siblings: Mapping[str, Geometry] | None
) -> tuple[Identity, str]:
    """Who created one of a run's things, and what it is called here."""
    own = run.label(index)
    if run.origin is None:
        return Identity(label, own), own
    holder, number = run.origin.of(index)
    if run.origin.siblings and siblings:
        return Identity(holder, siblings[holder].exports[run.origin.export].label(number)), own
    # A holder outside may have the name of a process; no process has one with a slash.
    return Identity(f"{holder}/", f"{run.origin.export}.{number}"), own


def events(geometry: Geometry, label: str = "", siblings: Mapping[str, Geometry] | None = None) -> list[Recorded]:
    """Every event of one process, its own and those that it opened from siblings."""
    return [
        Recorded(*_who(run, index, label, siblings), run.place_of(index).id, run.path)
        for run in geometry.events.values()
        if run.origin is None or run.origin.siblings
        for index in range(run.count)
    ]


class Recorded(NamedTuple):
    """One event that may be recorded in this run: who created it, its name here, its GPU."""

    identity: Identity
    event: str
    device: int
    path: Path


def mappings(
    placements: Sequence[Placement], access_of: Granted
) -> Iterator[tuple[Placement, int, int, tuple[Grant, ...]]]:
    """Each mapping of one reservation: its placement, the chunk's index, the offset, and the access it shall have."""
    waiting = iter(access_of[placements[0].where])
    stretch = next(waiting, None)
    for placement in placements:
        size = placement.chunk.size
        for turn in range(placement.count):
            offset = placement.offset + turn * size
            while stretch and stretch.offset + stretch.size <= offset:
                stretch = next(waiting, None)
            covered = stretch is not None and stretch.offset <= offset
            yield placement, placement.first + turn, offset, stretch.grants if stretch and covered else ()
