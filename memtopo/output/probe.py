"""Pages of a machine: devices, granularity, trials with their causes of failure, and peers."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

from memtopo.common.units import rounded
from memtopo.driver.types import HandleType, Location, gpu
from memtopo.machine import Device, Granularity, Machine, Memory, Surroundings, Trial
from memtopo.machine.probe.diagnosis import Cause, causes
from memtopo.machine.probe.report import Difference
from memtopo.output.humanize import devices as counted
from memtopo.output.humanize import plural
from memtopo.output.pages import Grid, Section, grouped, names, yes_or_no
from memtopo.output.peers import peers

_NUMBERS = ("MULTIPROCESSOR_COUNT", "HOST_NUMA_ID")
_HANDLES = ("MEMPOOL_SUPPORTED_HANDLE_TYPES",)
_FLAGS = (
    "ECC_ENABLED",
    "UNIFIED_ADDRESSING",
    "PAGEABLE_MEMORY_ACCESS",
    "GPU_DIRECT_RDMA_SUPPORTED",
    "DMA_BUF_SUPPORTED",
)


def page(machine: Machine, name: str, *, simulated: bool, notes: Sequence[str] = ()) -> list[Section]:
    """Page of a machine's properties and trials, with the `notes` of one probe."""
    gpus = {gpu(i): device for i, device in enumerate(machine.devices)}
    title = f"{name}{' (simulated)' if simulated else ''}: {counted(device.name for device in machine.devices)}"
    sections = [Section(title, [*_head(machine), *(f"note: {note}" for note in notes)])]
    if gpus:
        sections.append(Section("devices", [_devices(gpus), *_identities(gpus)]))
    sections.append(Section("granularity", [*_granularity(machine.locations)]))
    sections.append(Section("trials", [*_trials(machine.locations)]))
    if reasons := [*_causes(machine)]:
        sections.append(Section("why not", reasons))
    sections.extend(peers(machine))
    if gpus:
        sections.append(Section("advertised and not tried", [_attributes(gpus)]))
    return sections


def against(found: Sequence[Difference], name: str) -> Section:
    """Section of the differences from a recorded machine."""
    if not found:
        return Section(f"against {name}", ["nothing differs"])
    rows = [(each.where, each.what, each.recorded, each.here, yes_or_no(not each.breaks)) for each in found]
    breaks = sum(each.breaks for each in found)
    fits = f"{plural(breaks, 'difference')} may make a valid spec fail here" if breaks else "the record still fits"
    return Section(f"against {name}", [Grid(("", "what", "recorded", "here", "fits"), rows), fits])


def _head(machine: Machine) -> Iterator[str]:
    release = f", kernel module {machine.driver.release}" if machine.driver.release else ""
    yield f"driver: CUDA {machine.driver.cuda}{release}"
    if machine.surroundings:
        yield f"system: {', '.join(_surroundings(machine.surroundings))}"
    if machine.host_name:
        yield f"host: {machine.host_name}"
    if machine.recorded:
        yield f"recorded: {machine.recorded}"


def _surroundings(found: Surroundings) -> Iterator[str]:
    yield "WSL" if found.wsl else "in a container" if found.container else "no container"
    yield plural(found.imex_channels, "IMEX channel")
    yield f"{found.open_files:,} open files"
    if found.ptrace_scope is not None:
        yield f"ptrace_scope {found.ptrace_scope}"
    if found.bindings:
        yield f"cuda-bindings {found.bindings}"


def _devices(gpus: Mapping[Location, Device]) -> Grid:
    rows = []
    for where, device in grouped(gpus, lambda d: (d.name, d.compute_capability, d.memory_bytes)):
        major, minor = device.compute_capability
        rows.append((where, device.name, f"{major}.{minor}", rounded(device.memory_bytes)))
    return Grid(("", "name", "compute capability", "memory"), rows)


def _identities(gpus: Mapping[Location, Device]) -> Iterator[Grid]:
    rows = [
        (str(where), device.uuid or "not known", device.bus_id or "not known")
        for where, device in gpus.items()
        if device.uuid or device.bus_id
    ]
    if rows:
        yield Grid(("", "uuid", "bus id"), rows)


def _granularity(memories: Mapping[Location, Memory]) -> Iterator[str | Grid]:
    rows: list[tuple[str, ...]] = []
    for where, memory in grouped(memories, _granularity_key):
        if len(pairs := {(entry.minimum, entry.recommended) for entry in memory.granularity}) == 1:
            yield f"{where}: {_granularity_pair(*pairs.pop())} for every set of properties queried"
            continue
        for n, entry in enumerate(memory.granularity):
            sizes = rounded(entry.minimum), rounded(entry.recommended)
            rows.append(("" if n else where, *_properties(entry), *sizes))
    if rows:
        yield Grid(("", "handles", "rdma", "compressible", "minimum", "recommended"), rows)


def _granularity_key(memory: Memory) -> Hashable:
    """Key of locations with the same lines: if all sets of properties have one value, the sets do not matter."""
    entries = {(entry.minimum, entry.recommended, *_properties(entry)) for entry in memory.granularity}
    pairs = {entry[:2] for entry in entries}
    return frozenset(pairs if len(pairs) == 1 else entries)


def _properties(entry: Granularity) -> tuple[str, str, str]:
    return "+".join(entry.handles) or "none", yes_or_no(entry.rdma), yes_or_no(entry.compressible)


def _granularity_pair(minimum: int, recommended: int) -> str:
    if minimum == recommended:
        return f"{rounded(minimum)} minimum and recommended"
    return f"{rounded(minimum)} minimum, {rounded(recommended)} recommended"


def _trials(memories: Mapping[Location, Memory]) -> Iterator[str | Grid]:
    rows: list[tuple[str, ...]] = []
    for where, memory in grouped(memories, lambda m: tuple(m.trials.items())):
        if not memory.trials:
            yield f"{where}: not tried"
        for n, (name, trial) in enumerate(memory.trials.items()):
            rows.append(("" if n else where, name, yes_or_no(trial.advertised), *_works(trial)))
    if rows:
        yield Grid(("", "what", "advertised", "works", ""), rows)


def _works(trial: Trial) -> tuple[str, str]:
    error = (trial.error or "").removeprefix("CUDA_ERROR_")
    return yes_or_no(trial.works, "not known" if error else "not tried"), error or trial.note or ""


def _causes(machine: Machine) -> Iterator[str]:
    """Each cause once, with everything that it affects."""
    groups: dict[Hashable, list[Cause]] = {}
    for cause in causes(machine):
        groups.setdefault((cause.told, cause.likely, cause.do), []).append(cause)
    known = {str(location): location for location in machine.locations}
    for members in groups.values():
        what = ", ".join(dict.fromkeys(cause.what for cause in members))
        yield f"{what} on {_locations([cause.where for cause in members], known)}: {members[0].told}"
        if members[0].likely:
            yield f"  likely: {members[0].likely}"
        if members[0].do:
            yield f"  to do: {members[0].do}"


def _locations(listed: Iterable[str], known: Mapping[str, Location]) -> str:
    wheres = list(dict.fromkeys(listed))
    pairs = [where for where in wheres if where not in known]
    return ", ".join(filter(None, [names(known[where] for where in wheres if where in known), *pairs[:4]])) + (
        f" and {len(pairs) - 4} more" if len(pairs) > 4 else ""  # noqa: PLR2004
    )


def _attributes(gpus: Mapping[Location, Device]) -> Grid:
    rows = []
    for name in (*_NUMBERS, *_HANDLES, *_FLAGS):
        values = {where: _attribute(name, device.attributes.get(name)) for where, device in gpus.items()}
        groups = grouped(values, lambda value: value)
        listed = "; ".join(f"{where}: {value}" for where, value in groups)
        rows.append((name, groups[0][1] if len(groups) == 1 else listed))
    return Grid(("attribute", "value"), rows)


def _attribute(name: str, value: int | None) -> str:
    if value is None:
        return "not known"
    if name in _HANDLES:
        return ", ".join(HandleType(value & 15).words) or "none"
    return str(value) if name in _NUMBERS else yes_or_no(bool(value))
