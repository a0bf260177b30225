"""A machine for the terminal: what is advertised beside what works, equal places in one line, plain without colour."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import TypeVar

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from memtopo.driver.types import HandleType, Location, gpu
from memtopo.machine import Device, Granularity, Machine, Memory, Peer, Trial
from memtopo.render.words import devices as counted
from memtopo.text import printable
from memtopo.units import rounded

T = TypeVar("T")

_WIDEST = 8  # GPUs whose links fit into 80 columns with rank and atomics
_NUMBERS = ("MULTIPROCESSOR_COUNT", "HOST_NUMA_ID")
_HANDLES = ("MEMPOOL_SUPPORTED_HANDLE_TYPES",)
_FLAGS = (
    "ECC_ENABLED",
    "UNIFIED_ADDRESSING",
    "MANAGED_MEMORY",
    "CONCURRENT_MANAGED_ACCESS",
    "PAGEABLE_MEMORY_ACCESS",
    "MEMORY_POOLS_SUPPORTED",
    "GPU_DIRECT_RDMA_SUPPORTED",
    "DMA_BUF_SUPPORTED",
    "IPC_EVENT_SUPPORTED",
    "TIMELINE_SEMAPHORE_INTEROP_SUPPORTED",
    "MULTICAST_SUPPORTED",
)


def probe_text(machine: Machine, name: str, simulated: bool) -> RenderableType:  # noqa: FBT001
    """A machine's facts and trials, for 80 columns and more."""
    gpus = {gpu(i): device for i, device in enumerate(machine.devices)}
    parts = [_head(machine, name, simulated=simulated)]
    if gpus:
        parts += [_titled("devices", _devices(gpus), *_identities(gpus))]
    parts += [_titled("granularity", *_granularity(machine.locations))]
    parts += [_titled("trials", *_trials(machine.locations))]
    if len(gpus) > 1:
        parts += [_titled("peers: what the GPU of a row may do with the memory of the others", *_peers(machine.peers))]
    if gpus:
        parts += [_titled("advertised and not tried", _attributes(gpus))]
    return Group(*parts)


def _head(machine: Machine, name: str, *, simulated: bool) -> RenderableType:
    names = counted(device.name for device in machine.devices)
    lines = [f"{name}{' (simulated)' if simulated else ''}: {names}", f"driver: CUDA {machine.driver.cuda}"]
    if machine.driver.release:
        lines[-1] += f", kernel module {machine.driver.release}"
    if machine.host_name:
        lines.append(f"host: {machine.host_name}")
    if machine.recorded:
        lines.append(f"recorded: {machine.recorded}")
    return Group(*map(_line, lines))


def _devices(gpus: Mapping[Location, Device]) -> Table:
    table = _table("", "name", "compute capability", "memory")
    for where, device in _folded(gpus, lambda d: (d.name, d.compute_capability, d.memory_bytes)):
        major, minor = device.compute_capability
        _row(table, where, device.name, f"{major}.{minor}", rounded(device.memory_bytes))
    return table


def _identities(gpus: Mapping[Location, Device]) -> Iterator[RenderableType]:
    table = _table("", "uuid", "bus id")
    for where, device in gpus.items():
        if device.uuid or device.bus_id:
            _row(table, str(where), device.uuid or "not known", device.bus_id or "not known")
    if table.row_count:
        yield table


def _granularity(places: Mapping[Location, Memory]) -> Iterator[RenderableType]:
    table = _table("", "handles", "rdma", "compressible", "minimum", "recommended")
    for where, memory in _folded(places, _granules):
        if len(pairs := {(entry.minimum, entry.recommended) for entry in memory.granularity}) == 1:
            yield _line(f"{where}: {_granule(*pairs.pop())} for every set of properties asked")
            continue
        for entry in memory.granularity:
            _row(table, where, *_properties(entry), rounded(entry.minimum), rounded(entry.recommended))
            where = ""  # noqa: PLW2901  # once for all its rows
    if table.row_count:
        yield table


def _granules(memory: Memory) -> Hashable:
    """Equal for places that read the same: where one value is for all sets of properties, whichever were asked."""
    entries = {(entry.minimum, entry.recommended, *_properties(entry)) for entry in memory.granularity}
    pairs = {entry[:2] for entry in entries}
    return frozenset(pairs if len(pairs) == 1 else entries)


def _properties(entry: Granularity) -> tuple[str, str, str]:
    return "+".join(entry.handles) or "none", _word(entry.rdma), _word(entry.compressible)


def _granule(minimum: int, recommended: int) -> str:
    if minimum == recommended:
        return f"{rounded(minimum)} minimum and recommended"
    return f"{rounded(minimum)} minimum, {rounded(recommended)} recommended"


def _trials(places: Mapping[Location, Memory]) -> Iterator[RenderableType]:
    table = _table("", "created with", "advertised", "works", "error")
    for where, memory in _folded(places, lambda m: tuple(m.trials.items())):
        if not memory.trials:
            yield _line(f"{where}: not tried")
        for name, trial in memory.trials.items():
            _row(table, where, name, _word(trial.advertised, "not told"), _works(trial), trial.error or "")
            where = ""  # noqa: PLW2901  # once for all its rows
    if table.row_count:
        yield table


def _works(trial: Trial) -> str:
    return _word(trial.works, "not known" if trial.error else "not tried")


def _peers(peers: list[list[Peer | None]]) -> Iterator[RenderableType]:
    wide = len(peers) > _WIDEST
    table = _table("", *(str(i) if wide else f"gpu{i}" for i in range(len(peers))), gap=1)
    for i, row in enumerate(peers):
        _row(table, f"gpu{i}", *("-" if link is None else _link(link, short=wide) for link in row))
    yield table
    if not wide:
        yield _line("after yes or no: the link's performance rank, and +a for native atomics")


def _link(link: Peer, *, short: bool) -> str:
    words = [_word(link.access)]
    if not short and link.performance_rank is not None:
        words.append(str(link.performance_rank))
    if not short and link.native_atomics:
        words.append("+a")
    return " ".join(words)


def _attributes(gpus: Mapping[Location, Device]) -> Table:
    table = _table("attribute", "value")
    for name in (*_NUMBERS, *_HANDLES, *_FLAGS):
        values = {where: _attribute(name, device.attributes.get(name)) for where, device in gpus.items()}
        told = _folded(values, lambda value: value)
        text = told[0][1] if len(told) == 1 else "; ".join(f"{where}: {value}" for where, value in told)
        _row(table, name, text)
    return table


def _attribute(name: str, value: int | None) -> str:
    if value is None:
        return "not told"
    if name in _HANDLES:
        return ", ".join(HandleType(value & 15).words) or "none"
    return str(value) if name in _NUMBERS else _word(bool(value))


def _word(answer: bool | None, unknown: str = "not known") -> str:  # noqa: FBT001
    return unknown if answer is None else "yes" if answer else "no"


def _folded(places: Mapping[Location, T], key: Callable[[T], Hashable]) -> list[tuple[str, T]]:
    """Places of equal key as one name, with what the first of them holds."""
    groups: dict[Hashable, list[Location]] = {}
    for place, thing in places.items():
        groups.setdefault(key(thing), []).append(place)
    return [(_names(members), places[members[0]]) for members in groups.values()]


def _names(places: Iterable[Location]) -> str:
    """`gpu0 to gpu3, host, host:0`."""
    runs: list[list[Location]] = []
    for place in places:
        if runs and place == runs[-1][-1]._replace(id=runs[-1][-1].id + 1):
            runs[-1].append(place)
        else:
            runs.append([place])
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)  # noqa: PLR2004


def _titled(title: str, *body: RenderableType) -> RenderableType:
    return Group(Text(), Text(title, style="bold"), *body)


def _table(*columns: str, gap: int = 2) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="dim")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _row(table: Table, *cells: str) -> None:
    table.add_row(*map(_line, cells))


def _line(text: str) -> Text:
    # A recorded machine may come from anywhere: never markup, never control characters.
    return Text(printable(text))
