"""From a spec and a machine to its geometry. An entry whose own numbers or names are wrong is told and left out."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from memtopo.diagnostics import messages
from memtopo.diagnostics.model import Diagnostic, Label
from memtopo.geometry.exporting import declare
from memtopo.geometry.foreign import take
from memtopo.geometry.granting import parts
from memtopo.geometry.groups import ChunkGroup, Imported, RangeGroup
from memtopo.geometry.importing import Sibling, receive
from memtopo.geometry.managing import manage
from memtopo.geometry.model import Geometry, Instance, Part, Placement
from memtopo.geometry.naming import Devices
from memtopo.geometry.placing import Slice, place, slices
from memtopo.geometry.sizing import Units, address_granule, chunk_run, in_granules, plain_granule, range_run
from memtopo.geometry.unmapped import Use, explained
from memtopo.machine import Machine
from memtopo.spec import LARGEST_COUNT, Spec, parse_reference

_Span = tuple[int, int, str]


class Verdict(NamedTuple):
    """A geometry of everything that could be resolved, and what could not."""

    geometry: Geometry
    faults: list[Diagnostic]


def lay_out(spec: Spec, machine: Machine) -> Verdict:
    """Resolve names, granules, offsets and access of a spec for one machine. Nothing is expanded."""
    if not spec.processes:
        return _Builder(spec, machine).build({})
    builders = dict(_builders(spec, machine))
    siblings = {
        name: Sibling(
            process, tuple((label, builder.shared) for label, builder in builders.items() if builder.spec is process)
        )
        for name, process in spec.processes.items()
    }
    unread = {entry for section, entry in spec.left_out if section == "processes"}
    verdicts = {builder: builder.build(siblings, unread) for builder in dict.fromkeys(builders.values())}
    geometries = {label: verdicts[builder].geometry for label, builder in builders.items()}
    # The processes of a counted one have their faults in common.
    faults = list(dict.fromkeys(fault for verdict in verdicts.values() for fault in verdict.faults))
    faults += _together(list(builders.values()))
    whole = Geometry(spec.name, {}, {}, {}, {}, {}, spec.left_out, processes=geometries)
    return Verdict(whole, messages.first(faults))


def _builders(spec: Spec, machine: Machine) -> Iterator[tuple[str, _Builder]]:
    """One for each process, by label; the processes of a counted one that are dealt the same devices have one."""
    for name, process in spec.processes.items():
        alike: dict[tuple[str, ...], _Builder] = {}
        for turn in range(process.instances or 1):
            dealt = tuple(values[turn % len(values)] for values in process.devices.values())
            if dealt not in alike:
                alike[dealt] = _Builder(process, machine, turn)
            yield (f"{name}.{turn}" if process.instances else name), alike[dealt]


def _together(builders: Sequence[_Builder]) -> Iterator[Diagnostic]:
    """What no process asks too much of, and all of them do."""
    totals: Counter[str] = Counter()
    for builder in builders:
        totals.update(builder.totals)
    for section, total in totals.items():
        if total > LARGEST_COUNT and all(builder.totals[section] <= LARGEST_COUNT for builder in builders):
            told = f"{total:,} {_things(section)} in all processes are more than the {LARGEST_COUNT:,}"
            yield Diagnostic("MT109", f"{told} that one spec may ask for", ("processes",), "key")


class _Builder:
    """One process's geometry. What it exports is known before any process's imports are looked at."""

    def __init__(self, spec: Spec, machine: Machine, turn: int = 0) -> None:
        self.spec, self.machine = spec, machine
        self.faults: list[Diagnostic] = messages.Bounded()
        self.unsure = set(spec.left_out)
        self.totals: Counter[str] = Counter()
        self.devices = Devices(spec, machine, self.faults, turn)
        self.devices.see(spec.visible)
        self.shared = declare(spec, self._chunks(), self.devices, self.faults)

    def build(self, siblings: Mapping[str, Sibling], unread: Collection[str] = ()) -> Verdict:
        receive(self.spec, self.shared, siblings, unread, self.devices, self.machine, self.faults)
        manage(self.spec, self.shared, self.devices, self.machine, self.faults)
        take(self.spec, self.shared, siblings, self.devices, self.faults)
        self.unsure |= self.shared.unsure
        chunks = self.shared.chunks
        named = slices(self.spec, chunks, self.shared.others, self.faults)
        ranges = self._ranges(named)
        if self._too_many(chunks, ranges, named):
            ranges, named = {}, {}
            self.unsure.update(("ranges", name) for name in self.spec.ranges)
        placements = self._placements(named, ranges)
        access = self._parts(ranges)
        self._unused_devices()
        geometry = Geometry(
            self.spec.name,
            self.devices.declared,
            chunks,
            ranges,
            placements,
            access,
            frozenset(self.unsure),
            self.shared.buffers,
            self.shared.events,
            self.shared.exports,
            self.spec.path,
            self.devices.visible,
            managed=self.shared.managed,
            external=self.shared.external,
            semaphores=self.shared.semaphores,
        )
        return Verdict(geometry, messages.first(self.faults))

    def _chunks(self) -> dict[str, ChunkGroup]:
        runs = {}
        for name, chunk in self.spec.chunks.items():
            run = chunk_run(self.spec.at("chunks", name), chunk, self.devices, self.machine, self.faults)
            if run:
                runs[name] = run
            else:
                self.unsure.add(("chunks", name))
        return runs

    def _ranges(self, named: dict[str, list[Slice]]) -> dict[str, RangeGroup]:
        units = self._units(named)
        address = address_granule(self.machine)
        plain = Units(plain_granule(self.machine), address, filled=False)
        unmeasured = self._unmeasured(named)
        runs = {}
        for name, range_ in self.spec.ranges.items():
            unit = Units(units[name], address, filled=True) if units.get(name) else plain
            run = None if name in unmeasured else range_run(self.spec.at("ranges", name), range_, unit, self.faults)
            if run:
                runs[name] = run
            else:
                self.unsure.add(("ranges", name))
        return runs

    def _units(self, named: dict[str, list[Slice]]) -> dict[str, int]:
        """The largest granularity among the chunks of each range."""
        units: dict[str, int] = {}
        for key, entries in named.items():
            largest = max((entry.run.granule for entry in entries if entry.run), default=0)
            name = parse_reference(key).name
            units[name] = max(units.get(name, 0), largest)
        return units

    def _unmeasured(self, named: dict[str, list[Slice]]) -> set[str]:
        """The ranges that are written in granules of chunks some of which are not known."""
        partly = {key for key, entries in named.items() if any(entry.run is None for entry in entries)}
        partly |= {key for section, key in self.spec.left_out if section == "map"}
        names = {key.partition(".")[0] for key in partly}
        return names & set(in_granules(self.spec)) if names else set()

    def _placements(
        self, named: dict[str, list[Slice]], ranges: dict[str, RangeGroup]
    ) -> dict[Instance, tuple[Placement, ...]]:
        found: dict[Instance, list[Placement]] = {}
        for key, entries in named.items():
            run = self._range_of(key, "map", ranges)
            if run is None:
                continue
            placed, sure = place(self.spec.at("map", key), run, entries, self.faults)
            if not sure:
                self.unsure.add(("map", run.name))
            for placement in placed:
                found.setdefault(placement.where, []).append(placement)
        return {where: tuple(sorted(placed, key=_offset)) for where, placed in found.items()}

    def _parts(self, ranges: dict[str, RangeGroup]) -> dict[str, tuple[Part, ...]]:
        found: dict[str, list[Part]] = {}
        spans: dict[str, list[_Span]] = {}
        for key, entry in self.spec.access.items():
            run = self._range_of(key, "access", ranges)
            if run is None:
                for name in _names(entry):
                    self.devices.used.add(name)
                continue
            asked, sure = parts(self.spec.at("access", key), run, entry, self.devices, self.faults)
            if not sure:
                self.unsure.add(("access", run.name))
            if self._twice(key, asked, spans.setdefault(run.name, [])):
                self.unsure.add(("access", run.name))
            else:
                found.setdefault(run.name, []).extend(asked)
        if self._too_much({"access": sum(part.times for asked in found.values() for part in asked)}):
            self.unsure.update(("access", name) for name in found)
            return {}
        return {name: tuple(asked) for name, asked in found.items()}

    def _range_of(self, key: str, section: Use, ranges: dict[str, RangeGroup]) -> RangeGroup | None:
        name, path = parse_reference(key).name, self.spec.at(section, key)
        if not (self.spec.may_have("ranges", name) or explained(self.spec, name, section, path, self.faults, "key")):
            messages.undeclared(self.faults, "range", name, path, self.spec.ranges, "key")
        return ranges.get(name)

    def _twice(self, key: str, asked: list[Part], spans: list[_Span]) -> bool:
        """Whether another key gave access to the same ranges; `spans` are sorted, and none meets another."""
        if not asked:
            return False
        start, stop = asked[0].instances
        index = bisect_left(spans, (start,))
        for first, end, other in spans[max(0, index - 1) : index + 1]:
            if start < end and first < stop:
                told = f"access to {asked[0].range.label(max(start, first))!r} is given twice"
                label = Label("first given here", self.spec.at("access", other), "key")
                help = "name each range once, or write parts: later parts win"
                self.faults.append(
                    Diagnostic("MT204", told, self.spec.at("access", key), "key", labels=(label,), help=help)
                )
                return True
        spans.insert(index, (start, stop, key))
        return False

    def _too_many(
        self, chunks: dict[str, ChunkGroup], ranges: dict[str, RangeGroup], named: dict[str, list[Slice]]
    ) -> bool:
        shared = self.shared
        imported: list[Imported] = [*chunks.values(), *shared.buffers.values(), *shared.events.values()]
        return self._too_much(
            {
                "chunks": sum(run.count for run in chunks.values() if not run.origin),
                "ranges": sum(run.count for run in ranges.values()),
                "map": sum(entry.stop - entry.first for entries in named.values() for entry in entries),
                "buffers": sum(run.count for run in shared.buffers.values() if not run.origin),
                "exports": sum(run.count for run in shared.exports.values()),
                "imports": sum(run.count for run in imported if run.origin),
            }
        )

    def _too_much(self, totals: dict[str, int]) -> bool:
        self.totals.update(totals)
        over = {section: total for section, total in totals.items() if total > LARGEST_COUNT}
        for section, total in over.items():
            told = f"{total:,} {_things(section)} are more than the {LARGEST_COUNT:,} that one spec may ask for"
            self.faults.append(Diagnostic("MT109", told, self.spec.at(section), "key"))
        return bool(over)

    def _unused_devices(self) -> None:
        for name in self.spec.devices:
            if name in self.devices.declared and name not in self.devices.used and not self.unsure:
                told = f"device name {name!r} is not used"
                self.faults.append(Diagnostic("MT504", told, self.spec.at("devices", name), "key"))


def _things(section: str) -> str:
    """What a section has many of, in words."""
    handles = {"exports": "handles of exports", "imports": "handles of imports"}
    return {"map": "mappings", "access": "parts of access", **handles}.get(section, section)


def _names(entry: object) -> Iterable[str]:
    return entry if isinstance(entry, dict) else ()


def _offset(placement: Placement) -> int:
    return placement.offset
