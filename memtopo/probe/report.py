"""Report of a probe, from which its page and its JSON are made, and its comparison with a recorded machine."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any, Literal

from msgspec import Struct

from memtopo.driver.types import flags_of
from memtopo.machine import Copies, Device, Machine, Memory, Peer, Trial
from memtopo.machine.queries import anonymous
from memtopo.probe import Probed, Times
from memtopo.probe.diagnosis import Cause, causes


class Comparison(Struct, frozen=True):
    """Differences from a recorded machine, which `fits` unless one of them may make a valid spec fail here."""

    name: str
    fits: bool
    differences: tuple[Difference, ...]


class ProbeReport(Struct, frozen=True):
    """A probe of a machine by its name: the record that -o writes, and data of this one run."""

    memtopo_probe: Literal[1]
    name: str
    simulated: bool
    machine: Machine
    why_not: tuple[Cause, ...]
    against: Comparison | None
    notes: tuple[str, ...]
    left: tuple[str, ...]
    seconds: Times


def probe_report(
    probed: Probed, machine: Machine, name: str, *, simulated: bool, against: tuple[str, Machine] | None
) -> ProbeReport:
    """Make the report; `machine` is the probed one, with its identity or without, `against` a record by its name."""
    found = differences(against[1], probed.machine) if against else []
    comparison = Comparison(against[0], not any(each.breaks for each in found), tuple(found)) if against else None
    why_not = tuple(causes(machine))
    return ProbeReport(1, name, simulated, machine, why_not, comparison, probed.notes, probed.left, probed.seconds)


TOLERANCE = 0.1
"""Relative difference up to which measured rates are equal."""

_HOST_TOLERANCE = 0.01
"""Relative difference up to which amounts of host memory are equal: the kernel keeps some, more or less each time."""


class Difference(Struct, frozen=True):
    """A value that differs from the record.

    With `breaks`, a spec that is valid on the record may fail here: something is missing, smaller, or coarser.
    """

    where: str
    what: str
    recorded: str
    here: str
    breaks: bool


def differences(recorded: Machine, here: Machine) -> list[Difference]:
    """All differences, in the order of the record. A value that only one of the two has is none."""
    return [*_all(anonymous(recorded), anonymous(here))]


def _all(recorded: Machine, here: Machine) -> Iterator[Difference]:
    yield from _values("driver", recorded.driver.model_dump(), here.driver.model_dump())
    for n, (old, new) in enumerate(zip_longest(recorded.devices, here.devices)):
        if old is None or new is None:
            yield Difference(f"gpu{n}", "GPU", old.name if old else "none", new.name if new else "none", new is None)
        else:
            yield from _device(f"gpu{n}", old, new)
    for what in ("host_bytes", "pinned_bytes"):
        yield from _host_bytes("host", what, recorded, here)
    for name, memory in recorded.host.items():
        if name in here.host:
            yield from _host_bytes(name, "memory_bytes", memory, here.host[name])
            yield from _memory(name, memory, here.host[name])
        else:
            yield Difference(name, "memory", "there", "not there", breaks=True)
    count = min(len(recorded.devices), len(here.devices))
    for a in range(count):
        for b in range(count):
            if (was := recorded.peers[a][b]) and (now := here.peers[a][b]):
                yield from _peer(f"gpu{a} to gpu{b}", was, now)
    if recorded.surroundings and here.surroundings:
        yield from _values("system", recorded.surroundings.model_dump(), here.surroundings.model_dump())


def _device(where: str, old: Device, new: Device) -> Iterator[Difference]:
    yield from _value(where, "name", old.name, new.name, breaks=True)
    if old.compute_capability:
        yield from _value(where, "compute capability", old.capability, new.capability, breaks=True)
    less = new.memory_bytes < old.memory_bytes
    yield from _value(where, "memory_bytes", old.memory_bytes, new.memory_bytes, breaks=less)
    for name, value in old.attributes.items():
        if name in new.attributes and not name.isdecimal():  # the others tell nothing about memory
            yield from _value(where, name, value, new.attributes[name], breaks=bool(value) and not new.attributes[name])
    yield from _memory(where, old.memory, new.memory)
    yield from _copies(where, old.copies, new.copies)
    if old.fabric and new.fabric:
        yield from _value(where, "clique", old.fabric.clique, new.fabric.clique, breaks=True)


def _memory(where: str, old: Memory, new: Memory) -> Iterator[Difference]:
    found = {(*each.handles, *flags_of(each)): each for each in new.granularity}
    for each in old.granularity:
        words = (*each.handles, *flags_of(each))
        same = found.get(words)
        what = f"granularity of {'+'.join(words) or 'plain'}"
        if same:
            breaks = same.minimum > each.minimum
            yield from _value(where, what, each.minimum, same.minimum, breaks=breaks)
            yield from _value(where, f"recommended {what}", each.recommended, same.recommended)
    for name, trial in old.trials.items():
        yield from _trial(where, name, trial, new.trials.get(name))


def _peer(where: str, old: Peer, new: Peer) -> Iterator[Difference]:
    yield from _value(where, "access", old.access, new.access, breaks=old.access)
    for name in ("performance_rank", "link", "links"):
        yield from _value(where, name, getattr(old, name), getattr(new, name))
    yield from _value(where, "native_atomics", old.native_atomics, new.native_atomics, breaks=bool(old.native_atomics))
    if old.store:
        yield from _trial(where, "store", old.store, new.store)
    yield from _copies(where, old.copies, new.copies)


def _trial(where: str, name: str, old: Trial, new: Trial | None) -> Iterator[Difference]:
    if new and new.works is not None and old.works is not None and old.works != new.works:
        yield Difference(where, name, _works(old), _works(new), breaks=bool(old.works))


def _copies(where: str, old: Copies | None, new: Copies | None) -> Iterator[Difference]:
    for name in Copies.model_fields:
        was, now = getattr(old, name, None), getattr(new, name, None)
        if was and now and abs(now.bytes_per_second / was.bytes_per_second - 1) > TOLERANCE:
            before, after = (f"{rate.bytes_per_second / 1e9:.1f} GB/s" for rate in (was, now))
            yield Difference(where, name.replace("_", " "), before, after, breaks=False)


def _values(where: str, old: dict[str, Any], new: dict[str, Any]) -> Iterator[Difference]:
    for name, value in old.items():
        yield from _value(where, name, value, new[name])


def _value(where: str, what: str, old: Any, new: Any, *, breaks: bool = False) -> Iterator[Difference]:
    if old != new and old is not None and new is not None:
        yield Difference(where, what, _text(old), _text(new), breaks)


def _host_bytes(where: str, what: str, old: object, new: object) -> Iterator[Difference]:
    """Difference of an amount of host memory, of which less may make a valid spec fail."""
    was, now = getattr(old, what), getattr(new, what)
    if was and now and abs(now / was - 1) > _HOST_TOLERANCE:
        yield Difference(where, what, _text(was), _text(now), breaks=now < was)


def _works(trial: Trial) -> str:
    return "works" if trial.works else f"does not work: {trial.error or 'bytes were lost'}"


def _text(value: object) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
