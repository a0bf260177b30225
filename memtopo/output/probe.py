"""Pages of probes and machines: devices, granularity, trials with their causes of failure, and peers."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from msgspec.structs import replace

from memtopo.common.text import plural
from memtopo.common.units import by_key, rounded
from memtopo.driver.types import PROPERTY_FLAGS, HandleType, Location, flags_of, gpu
from memtopo.machine import Copies, Device, Granularity, Machine, Memory, Peer, Surroundings, Trial
from memtopo.output.blocks import Cell, Page, Section, Table, Tone, Toned, columns
from memtopo.output.humanize import devices as counted
from memtopo.output.humanize import duration
from memtopo.probe import Times
from memtopo.probe.diagnosis import causes
from memtopo.probe.report import Difference, ProbeReport

T = TypeVar("T")

_MOST_TRIALS = 24
"""Trials whose times are shown."""


def page(report: ProbeReport) -> Page:
    """The output of `memtopo probe`, with the times of the probe itself."""
    shown = machine_page(report.machine, report.name, "probe", simulated=report.simulated)
    facts = [*shown.facts, *(f"note: {note}" for note in (*report.notes, *report.left))]
    compared = [against(report.against.differences, report.against.name)] if report.against else []
    return replace(shown, facts=facts, sections=[*shown.sections, *compared], verdict=_verdict(report))


def full_page(report: ProbeReport) -> Page:
    """The page of a probe for a browser, with the times of the probe itself."""
    shown = page(report)
    return replace(shown, sections=[*shown.sections, _times(report.seconds)])


def _verdict(report: ProbeReport) -> Toned:
    if report.left:
        return Toned(f"processes are left: {len(report.left)}", "bad")
    if report.against and not report.against.fits:
        return Toned(f"the record {report.against.name!r} does not fit this machine", "bad")
    trials = [trial for memory in report.machine.locations.values() for trial in memory.trials.values()]
    works = sum(trial.works is True for trial in trials)
    return Toned(f"{works} of {plural(len(trials), 'trial')} work", "good")


def _times(times: Times) -> Section:
    """Times of the probe itself, the longest trials first."""
    longest = sorted(times.trials, key=lambda each: -each.seconds)
    rows = [(each.what, each.by, duration(each.seconds)) for each in longest]
    total, starting, contexts = map(duration, (times.total, times.starting, times.contexts))
    words = f"{total} in all; the slowest child took {starting} to start, and the contexts {contexts}."
    return Section("times", [words, Table(columns("trial", "by", ">time"), rows).cut(_MOST_TRIALS)])


def machine_page(machine: Machine, name: str, command: str = "machines", *, simulated: bool = False) -> Page:
    """A machine's properties and trials."""
    title = f"{name}{' (simulated)' if simulated else ''}: {counted(device.name for device in machine.devices)}"
    return Page(command, title, facts=[*_head(machine)], sections=[*_sections(machine)])


def _sections(machine: Machine) -> Iterator[Section]:
    gpus = {gpu(i): device for i, device in enumerate(machine.devices)}
    if gpus:
        yield Section("devices", [_devices(gpus), *_identities(gpus)])
    yield Section("granularity", [*_granularity(machine.locations)])
    yield Section("trials", [*_trials(machine.locations)])
    if reasons := [*_causes(machine)]:
        yield Section("why not", reasons)
    title = "peers: access of the GPU of a row to the memory of the others"
    if len(machine.devices) > 1:
        yield Section(title, [*_peer_properties(machine.peers)])
    if rates := [*_host(machine.devices), *_rates(machine.peers)]:
        yield Section("measured", rates)
    if gpus:
        yield Section("advertised and not tried", [_attributes(gpus)])


def against(found: Sequence[Difference], name: str) -> Section:
    """Section of the differences from a recorded machine."""
    if not found:
        return Section(f"against {name}", ["nothing differs"])
    rows = [(each.where, each.what, each.recorded, each.here, yes_or_no(not each.breaks)) for each in found]
    breaks = sum(each.breaks for each in found)
    fits = f"{plural(breaks, 'difference')} may make a valid spec fail here" if breaks else "the record still fits"
    return Section(f"against {name}", [Table(columns("", "what", "recorded", "here", "fits"), rows), fits])


def _head(machine: Machine) -> Iterator[str]:
    release = f", kernel module {machine.driver.release}" if machine.driver.release else ""
    yield f"driver: CUDA {machine.driver.cuda}{release}"
    if machine.surroundings:
        yield f"system: {', '.join(_surroundings(machine.surroundings))}"
    if sizes := [*_host_sizes(machine)]:
        yield f"host memory: {', '.join(sizes)}"
    if machine.host_name:
        yield f"host: {machine.host_name}"
    if machine.recorded:
        yield f"recorded: {machine.recorded}"
    if machine.estimated is not None:
        yield f"estimated: {', '.join(['no probe has tried it', *machine.estimated])}"


def _surroundings(found: Surroundings) -> Iterator[str]:
    container = "in a container" if found.container else "no container"
    yield "WSL" if found.wsl else container
    yield plural(found.imex_channels, "IMEX channel")
    yield f"{found.open_files:,} open files"
    if found.ptrace_scope is not None:
        yield f"ptrace_scope {found.ptrace_scope}"
    if found.locked_bytes is not None:
        yield f"RLIMIT_MEMLOCK {rounded(found.locked_bytes)}"
    if found.group_bytes is not None:
        yield f"control group limited to {rounded(found.group_bytes)}"
    if found.bindings:
        yield f"cuda-bindings {found.bindings}"


def _host_sizes(machine: Machine) -> Iterator[str]:
    if machine.host_bytes:
        yield rounded(machine.host_bytes)
    yield from (f"{node} {rounded(size)}" for node, size in machine.node_bytes.items())
    if machine.pinned_bytes:
        yield f"{rounded(machine.pinned_bytes)} may be page-locked"


def _devices(gpus: Mapping[Location, Device]) -> Table:
    rows = []
    for where, device in grouped(gpus, lambda d: (d.name, d.compute_capability, d.memory_bytes)):
        rows.append((where, device.name, device.capability, rounded(device.memory_bytes)))
    return Table(columns("", "name", "compute capability", "memory"), rows)


def _identities(gpus: Mapping[Location, Device]) -> Iterator[Table]:
    known = ((where, device) for where, device in gpus.items() if device.uuid or device.bus_id)
    rows = [(str(where), device.uuid or "not known", device.bus_id or "not known") for where, device in known]
    if rows:
        yield Table(columns("", "uuid", "bus id"), rows)
    fabrics = {where: device.fabric for where, device in gpus.items() if device.fabric}
    groups = grouped(fabrics, lambda fabric: fabric)
    cliques = [(where, f"{fabric.clique}", fabric.cluster or "not recorded") for where, fabric in groups]
    if cliques:
        yield Table(columns("", "clique", "of cluster"), cliques)


def _granularity(memories: Mapping[Location, Memory]) -> Iterator[str | Table]:
    rows: list[tuple[str, ...]] = []
    for where, memory in grouped(memories, _granularity_key):
        if len(pairs := {(entry.minimum, entry.recommended) for entry in memory.granularity}) == 1:
            minimum, recommended = map(rounded, pairs.pop())
            both = " and recommended" if minimum == recommended else f", {recommended} recommended"
            yield f"{where}: {minimum} minimum{both} for every set of properties queried"
            continue
        for n, entry in enumerate(memory.granularity):
            sizes = rounded(entry.minimum), rounded(entry.recommended)
            rows.append(("" if n else where, *_properties(entry), *sizes))
    if rows:
        yield Table(columns("", "handles", *PROPERTY_FLAGS, "minimum", "recommended"), rows)


def _granularity_key(memory: Memory) -> Hashable:
    """Key of locations with the same lines: if all sets of properties have one value, the sets do not matter."""
    entries = {(entry.minimum, entry.recommended, *_properties(entry)) for entry in memory.granularity}
    pairs = {entry[:2] for entry in entries}
    return frozenset(pairs if len(pairs) == 1 else entries)


def _properties(entry: Granularity) -> tuple[str, ...]:
    flags = flags_of(entry)
    return "+".join(entry.handles) or "none", *(yes_or_no(word in flags) for word in PROPERTY_FLAGS)


def _trials(memories: Mapping[Location, Memory]) -> Iterator[str | Table]:
    rows: list[tuple[Cell, ...]] = []
    for where, memory in grouped(memories, lambda m: tuple(m.trials.items())):
        if not memory.trials:
            yield f"{where}: not tried"
        for n, (name, trial) in enumerate(memory.trials.items()):
            rows.append(("" if n else where, name, yes_or_no(trial.advertised), *_works(trial)))
    if rows:
        yield Table(columns("", "what", "advertised", "works", ""), rows)


def _works(trial: Trial) -> tuple[Cell, str]:
    error = (trial.error or "").removeprefix("CUDA_ERROR_")
    works = yes_or_no(trial.works, "not known" if error else "not tried")
    unexpected: Tone = "bad" if trial.works is False and trial.advertised else ""
    return Toned(works, "good" if trial.works else unexpected), error or trial.note or ""


def _causes(machine: Machine) -> Iterator[str]:
    """Each cause once, with everything that it affects."""
    groups = by_key(((cause.error, cause.likely, cause.do), cause) for cause in causes(machine))
    known = {str(location): location for location in machine.locations}
    for members in groups.values():
        what = ", ".join(dict.fromkeys(cause.what for cause in members))
        places = list(dict.fromkeys(cause.where for cause in members))
        pairs = [place for place in places if place not in known]
        listed = [names(known[place] for place in places if place in known), *pairs[:_MOST_PAIRS]]
        more = f" and {len(pairs) - _MOST_PAIRS} more" if len(pairs) > _MOST_PAIRS else ""
        yield f"{what} on {', '.join(filter(None, listed))}{more}: {members[0].error}"
        if members[0].likely:
            yield f"  likely: {members[0].likely}"
        if members[0].do:
            yield f"  to do: {members[0].do}"


_FLAGS = "ECC_ENABLED", "UNIFIED_ADDRESSING", "PAGEABLE_MEMORY_ACCESS", "GPU_DIRECT_RDMA_SUPPORTED", "DMA_BUF_SUPPORTED"
_ATTRIBUTES: Mapping[str, Callable[[int], str]] = {
    "MULTIPROCESSOR_COUNT": str,
    "HOST_NUMA_ID": str,
    "MEMPOOL_SUPPORTED_HANDLE_TYPES": lambda value: ", ".join(HandleType(value & 15).words) or "none",
    **dict.fromkeys(_FLAGS, lambda value: yes_or_no(bool(value))),
}
"""Attributes that are shown, and their values in words."""


def _attributes(gpus: Mapping[Location, Device]) -> Table:
    rows = []
    for name, words in _ATTRIBUTES.items():
        known = {where: device.attributes.get(name) for where, device in gpus.items()}
        values = {where: "not known" if value is None else words(value) for where, value in known.items()}
        groups = grouped(values, lambda value: value)
        listed = "; ".join(f"{where}: {value}" for where, value in groups)
        rows.append((name, groups[0][1] if len(groups) == 1 else listed))
    return Table(columns("attribute", "value"), rows)


_ROWS: tuple[tuple[str, Callable[[Peer], str | None]], ...] = (
    ("access", lambda peer: yes_or_no(peer.access)),
    ("a kernel's store", lambda peer: _store(peer.store)),
    ("link", lambda peer: peer.link and f"{peer.link}{peer.links or ''}"),
    ("performance rank", lambda peer: None if peer.performance_rank is None else str(peer.performance_rank)),
    ("native atomics", lambda peer: None if peer.native_atomics is None else yes_or_no(peer.native_atomics)),
)
_RATES = (
    ("engine_write", "copy engine, the row's GPU writes to the column's"),
    ("engine_read", "copy engine, the row's GPU reads from the column's"),
    ("sm_write", "kernel, the row's GPU writes to the column's"),
    ("sm_read", "kernel, the row's GPU reads from the column's"),
)
_DISTANCES = ("SYS", "NODE", "PHB", "PXB", "PIX")
"""Topology of GPUs without NVLink, the longest distance first."""

_MOST_NAMED = 8
"""Most GPUs for which a matrix has whole names as column headings."""
_PAIR = 2
"""GPUs of one pair."""
_MOST_PAIRS = 4
"""Pairs that are listed for one cause of a failure."""


def _peer_properties(matrix: Sequence[Sequence[Peer | None]]) -> Iterator[str | Table]:
    same: list[tuple[str, str]] = []
    matrices: list[str | Table] = []
    for title, cell in _ROWS:
        cells = [[None if peer is None else cell(peer) for peer in row] for row in matrix]
        values = {cells[a][b] for a, row in enumerate(matrix) for b, peer in enumerate(row) if peer is not None}
        if values == {None}:
            continue
        if len(values) == 1:
            same.append((title, str(values.pop())))
        else:
            matrices.append(_matrix(title, cells, _nearness if title == "link" else None))
    if same:
        yield Table(columns("", "every pair"), same)
    yield from matrices


def _matrix(
    caption: str, cells: Sequence[Sequence[str | None]], heat_of: Callable[[str], float | None] | None = None
) -> Table:
    """A row and a column for each GPU; `heat_of` a cell, relative to the largest one, is its colour.

    Two GPUs have no colours: there is one pair, with nothing to compare it with.
    """
    short = len(cells) > _MOST_NAMED
    heads = [f">{n}" if short else f">gpu{n}" for n in range(len(cells))]
    rows = [(f"gpu{n}", *("-" if cell is None else cell for cell in row)) for n, row in enumerate(cells)]
    heat = [[None if heat_of is None or cell is None else heat_of(cell) for cell in row] for row in cells]
    most = max((each for row in heat for each in row if each), default=0.0)
    compared = most and len(cells) > _PAIR
    shares = [[None if each is None else each / most for each in row] for row in heat] if compared else []
    return Table(columns("", *heads), rows, caption, close=True, heat=shares)


def _nearness(link: str) -> float | None:
    """Nearness of two GPUs by their link; more NVLinks are nearer."""
    name = link.rstrip("0123456789")
    number = link[len(name) :]
    if name == "NV":
        return len(_DISTANCES) + int(number or 1)
    return _DISTANCES.index(name) + 1 if name in _DISTANCES else None


def _store(trial: Trial | None) -> str | None:
    if trial is None:
        return None
    return {True: "arrives", False: "refused" if trial.error else "LOST", None: "not known"}[trial.works]


def _rates(matrix: Sequence[Sequence[Peer | None]]) -> Iterator[str | Table]:
    for name, title in _RATES:
        for show, heading, heat_of in (
            (_rate, f"GB/s by {title}", lambda rate: None if rate == "?" else float(rate)),
            (_latency, f"µs by {title}, a few bytes", None),
        ):
            cells = [[None if peer is None else show(peer.copies, name) for peer in row] for row in matrix]
            if any(map(any, cells)):
                yield _matrix(heading, [["?" if cell == "" else cell for cell in row] for row in cells], heat_of)


def _host(devices: Sequence[Device]) -> Iterator[Table]:
    rows = []
    for by, way in (("copy engine", "engine"), ("kernel", "sm")):
        for n, device in enumerate(devices):
            names = f"{way}_write", f"{way}_read"
            cells = [show(device.copies, name) for name in names for show in (_rate, _latency)]
            if any(cells):
                rows.append((f"gpu{n} and the host, by {by}", *(cell or "?" for cell in cells)))
    if rows:
        yield Table(columns("", "to GB/s", "to µs", "from GB/s", "from µs"), rows)


def _rate(copies: Copies | None, name: str) -> str:
    rate = getattr(copies, name, None)
    return f"{rate.bytes_per_second / 1e9:.1f}" if rate else ""


def _latency(copies: Copies | None, name: str) -> str:
    rate = getattr(copies, name, None)
    return f"{rate.latency_ns / 1e3:.2f}" if rate and rate.latency_ns else ""


def grouped(values: Mapping[Location, T], key: Callable[[T], Hashable]) -> list[tuple[str, T]]:
    """Names of the locations with equal keys, with the value of the first one."""
    groups = by_key((key(value), location) for location, value in values.items())
    return [(names(members), values[members[0]]) for members in groups.values()]


def names(locations: Iterable[Location]) -> str:
    """`gpu0 to gpu3, host, host:0`."""
    groups: list[list[Location]] = []
    for location in locations:
        if groups and location == groups[-1][-1]._replace(id=groups[-1][-1].id + 1):
            groups[-1].append(location)
        else:
            groups.append([location])
    return ", ".join(f"{each[0]} to {each[-1]}" if len(each) > 2 else ", ".join(map(str, each)) for each in groups)  # noqa: PLR2004


def yes_or_no(answer: bool | None, unknown: str = "not known") -> str:  # noqa: FBT001
    """`yes`, `no`, or `unknown` for None."""
    return {True: "yes", False: "no", None: unknown}[answer]
