"""Held layouts as services: metrics in the text format of Prometheus (0.0.4, docs/metrics.md), and lines of a log."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

from msgspec import Struct

from memtopo.common.text import printable
from memtopo.sharing.held import Entry
from memtopo.sharing.holder.state import HolderEvent
from memtopo.sharing.offers import exported_bytes
from memtopo.sharing.status import Statistics, Status

MetricKind = Literal["gauge", "counter"]

FAMILIES: Mapping[str, tuple[MetricKind, str]] = {
    "memtopo_layout_up": ("gauge", "1 if the holder of the layout answers, else 0."),
    "memtopo_layout_info": ("gauge", "1, with the properties of the layout as labels."),
    "memtopo_layout_serving": ("gauge", "1 if the layout is served, 0 if it is being released."),
    "memtopo_layout_start_time_seconds": ("gauge", "Time since which the layout is served, in seconds of the epoch."),
    "memtopo_layout_heartbeat_time_seconds": ("gauge", "Time at which the holder reported this, of the epoch."),
    "memtopo_layout_deadline_seconds": ("gauge", "Time of the automatic release, in seconds of the epoch."),
    "memtopo_layout_generation": ("gauge", "1 when the layout is built, and one more after each change."),
    "memtopo_layout_state": ("gauge", "1 for the state that the layout is in, 0 for its other states."),
    "memtopo_memory_bytes": ("gauge", "Physical memory of the layout at a location, in bytes."),
    "memtopo_allocations": ("gauge", "Allocations of physical memory at a location: chunks and buffers."),
    "memtopo_heap_allocations": ("gauge", "Allocations of a program in a heap."),
    "memtopo_heap_allocated_bytes": ("gauge", "Size of these allocations, in bytes."),
    "memtopo_heap_memory_bytes": ("gauge", "Bytes of them that have physical memory now."),
    "memtopo_exports": ("gauge", "Exports of the layout."),
    "memtopo_exported_bytes": ("gauge", "Size of everything that is exported, in bytes."),
    "memtopo_lent_most": ("gauge", "Largest number of objects of an export that are lent at once."),
    "memtopo_lent": ("gauge", "Objects of an export that are lent to clients."),
    "memtopo_sealed": ("gauge", "Sealed objects of an export that wait for a successor of their client."),
    "memtopo_importers": ("gauge", "Attached importers."),
    "memtopo_importer_handles": ("gauge", "Handles that an importer has received and not let go of."),
    "memtopo_importer_bytes": ("gauge", "Memory behind these handles, which stays allocated while they are used."),
    "memtopo_importer_bound": ("gauge", "1 if an importer uses memory over ipc, which ends with the holder."),
    "memtopo_importer_lent": ("gauge", "Objects of an export that are lent to an importer."),
    "memtopo_changes_total": ("counter", "Changes and switches of the layout, by result."),
    "memtopo_clients_total": ("counter", "Clients that received handles."),
    "memtopo_handles_total": ("counter", "Handles that clients received."),
    "memtopo_last_check_time_seconds": ("gauge", "Time of the last check while the layout is held, of the epoch."),
    "memtopo_last_check_differences": ("gauge", "Differences that the last check found."),
}
"""Type and help of each metric, in the order of the output."""

FIRST = "# HELP memtopo_"
"""Beginning of every text."""


class _Sample(Struct, frozen=True):
    family: str
    labels: Mapping[str, str]
    value: float


def metrics(layouts: Iterable[tuple[Status, Statistics | None]], silent: Iterable[Entry] = (), *, now: float) -> str:
    """Metrics of layouts, and of holders that do not answer; statistics are None if a holder does not report them.

    `now` is the time of the reports, in seconds of the epoch.
    """
    samples = [sample for status, statistics in layouts for sample in _samples(status, statistics, now)]
    samples += [_Sample("memtopo_layout_up", {"layout": each.name}, 0) for each in silent]
    return "".join(f"{line}\n" for line in _lines(samples))


def _lines(samples: Sequence[_Sample]) -> Iterator[str]:
    for family, (kind, help) in FAMILIES.items():
        found = [each for each in samples if each.family == family]
        if found or family == "memtopo_layout_up":
            yield f"# HELP {family} {help}"
            yield f"# TYPE {family} {kind}"
        for each in found:
            labels = ",".join(f'{name}="{_escaped(value)}"' for name, value in each.labels.items())
            number = str(int(each.value)) if each.value == int(each.value) else repr(each.value)
            yield f"{family}{{{labels}}} {number}"


def _samples(status: Status, statistics: Statistics | None, now: float) -> Iterator[_Sample]:
    layout = {"layout": status.name}
    yield _Sample("memtopo_layout_up", layout, 1)
    yield _Sample("memtopo_layout_info", layout | _info(status), 1)
    yield _Sample("memtopo_layout_serving", layout, status.state == "serving")
    yield _Sample("memtopo_layout_start_time_seconds", layout, status.since)
    yield _Sample("memtopo_layout_heartbeat_time_seconds", layout, int(now))
    if status.deadline is not None:
        yield _Sample("memtopo_layout_deadline_seconds", layout, status.deadline)
    yield _Sample("memtopo_layout_generation", layout, status.generation)
    for state in status.layout_states:
        yield _Sample("memtopo_layout_state", layout | {"state": state}, state == status.layout_state)
    for heap in status.heaps:
        labels = layout | {"process": heap.process, "heap": heap.heap}
        yield _Sample("memtopo_heap_allocations", labels, heap.allocations)
        yield _Sample("memtopo_heap_allocated_bytes", labels, heap.bytes)
        yield _Sample("memtopo_heap_memory_bytes", labels, heap.mapped)
    yield _Sample("memtopo_exports", layout, len(status.offers))
    yield _Sample("memtopo_exported_bytes", layout, exported_bytes(status.offers))
    lends = {each.name: each for each in status.offers if each.lends}
    for offer in lends.values():
        assert offer.lends
        export = layout | {"export": offer.name}
        yield _Sample("memtopo_lent_most", export, offer.count)
        yield _Sample("memtopo_lent", export, offer.lends.lent)
        yield _Sample("memtopo_sealed", export, offer.lends.sealed)
    yield _Sample("memtopo_importers", layout, len(status.importers))
    for each in status.importers:
        pid = each.pid if status.pid_namespace == "same" else None
        labels = layout | {"importer": str(each.id), "pid": str(pid or ""), "uid": str(each.uid)}
        yield _Sample("memtopo_importer_handles", labels, each.handles)
        yield _Sample("memtopo_importer_bytes", labels, each.bytes)
        yield _Sample("memtopo_importer_bound", labels, each.bound)
        for taken in each.taken:
            if taken.export in lends:
                yield _Sample("memtopo_importer_lent", labels | {"export": taken.export}, taken.handles)
    if statistics:
        yield from _counted(layout, status.layout_state or "awake", statistics)


def _info(status: Status) -> dict[str, str]:
    return {
        "machine": status.machine.name,
        "simulated": str(status.machine.simulated).lower(),
        "driver": status.machine.driver,
        "spec": status.spec or "",
        "socket": status.socket,
        "pid": str(status.pid or ""),
    }


def _counted(layout: Mapping[str, str], state: str, statistics: Statistics) -> Iterator[_Sample]:
    for each in statistics.memory:
        labels = {**layout, "location": each.location, "gpu": each.gpu or "", "state": state}
        yield _Sample("memtopo_memory_bytes", labels, each.bytes)
        yield _Sample("memtopo_allocations", labels, each.allocations)
    for result, count in (("made", statistics.changes), ("rolled_back", statistics.rolled_back)):
        yield _Sample("memtopo_changes_total", {**layout, "result": result}, count)
    yield _Sample("memtopo_clients_total", layout, statistics.clients)
    yield _Sample("memtopo_handles_total", layout, statistics.handles)
    if statistics.last_check:
        yield _Sample("memtopo_last_check_time_seconds", layout, statistics.last_check.time)
        yield _Sample("memtopo_last_check_differences", layout, statistics.last_check.different)


def _escaped(text: str) -> str:
    """A label's value; characters that are not UTF-8 or not printable are escaped as in other output."""
    return printable(text).replace("\\", "\\\\").replace('"', '\\"')


_PRIORITIES = {"info": 6, "warning": 4, "error": 3}
_LONGEST = 300
"""Characters of a value."""
_LONGEST_LINE = 4000
"""Bytes of a line."""


def event_line(event: HolderEvent, *, priority: bool = False, at: float | None = None) -> str:
    """Return an event as one line, with a priority of sd-daemon(3), or the time of seconds of the epoch in UTC.

    It has less than 4096 bytes, which a pipe takes as a whole. Values with other characters than those of names and
    paths are quoted, and escaped as by `printable`.
    """
    before = f"<{_PRIORITIES[event.severity]}>" if priority else ""
    if at is not None:
        before += time.strftime("%Y-%m-%dT%H:%M:%SZ ", time.gmtime(at))
    words = [f"{key}={_value(value)}" for key, value in event.fields.items()]
    line = f"{before}memtopo: {' '.join([event.text, *words])}"
    return line.encode(errors="backslashreplace")[:_LONGEST_LINE].decode(errors="ignore")


def _value(value: str | float) -> str:
    text = str(value)[:_LONGEST]
    if text and all(char.isalnum() or char in "-_./:+@," for char in text) and text.isascii():
        return text
    quoted = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{printable(quoted)}"'
