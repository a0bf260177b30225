"""The steps of managed memory: allocated, advised, attached to a stream, and moved to where it is used first."""

from __future__ import annotations

from collections.abc import Iterator

from memtopo.driver.types import Advice, MemAttach, gpu
from memtopo.geometry import Geometry, ManagedAllocation
from memtopo.kinds.steps import Advise, AllocateManaged, AttachStream, Prefetch, Step

_FLAGS = {"global": MemAttach.GLOBAL, "host": MemAttach.HOST, "single": MemAttach.HOST}
"""What it is allocated as. What is to belong to one stream is the host's until it is attached to that (fact 60)."""


def created(geometry: Geometry) -> Iterator[Step]:
    """All of it, then every advice, then whatever belongs to a stream."""
    runs = list(geometry.managed.values())
    for run in runs:
        yield AllocateManaged(run.path, run.name, run.size, run.home, _FLAGS[run.attach])
    for run in runs:
        yield from _advised(run)
    for run in runs:
        if run.attach == "single":
            yield AttachStream(run.path, run.name, run.home)


def moved(geometry: Geometry) -> Iterator[Step]:
    """What is prefetched, once everything else stands."""
    for run in geometry.managed.values():
        if run.prefetch:
            own = run.attach == "single"
            yield Prefetch((*run.path, "prefetch"), run.name, run.prefetch, run.home, own)


def _advised(run: ManagedAllocation) -> Iterator[Step]:
    if run.read_mostly:
        # The location is not looked at.
        yield Advise((*run.path, "read_mostly"), run.name, Advice.SET_READ_MOSTLY, gpu(run.home), run.home)
    if run.prefer:
        yield Advise((*run.path, "prefer"), run.name, Advice.SET_PREFERRED_LOCATION, run.prefer, run.home)
    for place in run.accessed_by:
        yield Advise((*run.path, "accessed_by"), run.name, Advice.SET_ACCESSED_BY, place, run.home)
