"""Pairs of GPUs: properties equal for every pair in one table, others and bandwidths as a matrix."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from memtopo.machine import Copies, Device, Machine, Peer, Trial
from memtopo.output.pages import Grid, Section, yes_or_no

_ROWS: tuple[tuple[str, Callable[[Peer], str | None]], ...] = (
    ("access", lambda peer: yes_or_no(peer.access)),
    ("a kernel's store", lambda peer: _store(peer.store)),
    ("link", lambda peer: _link(peer)),
    ("performance rank", lambda peer: _number(peer.performance_rank)),
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


def peers(machine: Machine) -> Iterator[Section]:
    """Sections of the peers' properties, and of what was measured between them and with the host."""
    if len(machine.devices) > 1:
        yield Section("peers: access of the GPU of a row to the memory of the others", [*_properties(machine.peers)])
    if rates := [*_host(machine.devices), *_rates(machine.peers)]:
        yield Section("measured", rates)


def _properties(matrix: Sequence[Sequence[Peer | None]]) -> Iterator[str | Grid]:
    same: list[tuple[str, str]] = []
    matrices: list[str | Grid] = []
    for title, cell in _ROWS:
        cells = [[None if peer is None else cell(peer) for peer in row] for row in matrix]
        values = {cells[a][b] for a, row in enumerate(matrix) for b, peer in enumerate(row) if peer is not None}
        if values == {None}:
            continue
        if len(values) == 1:
            same.append((title, str(values.pop())))
        else:
            matrices += [f"{title}:", _matrix(cells, _nearness if title == "link" else None)]
    if same:
        yield Grid(("", "every pair"), same)
    yield from matrices


def _matrix(cells: Sequence[Sequence[str | None]], heat_of: Callable[[str], float | None] | None = None) -> Grid:
    """A row and a column for each GPU; `heat_of` a cell, relative to the largest one, is its colour."""
    short = len(cells) > _MOST_NAMED
    heads = [str(n) if short else f"gpu{n}" for n in range(len(cells))]
    rows = [(f"gpu{n}", *("-" if cell is None else cell for cell in row)) for n, row in enumerate(cells)]
    heat = [[None if heat_of is None or cell is None else heat_of(cell) for cell in row] for row in cells]
    most = max((each for row in heat for each in row if each), default=0.0)
    shares = [[None if each is None else each / most for each in row] for row in heat] if most else []
    return Grid(("", *heads), rows, close=True, heat=shares)


def _nearness(link: str) -> float | None:
    """Nearness of two GPUs by their link; more NVLinks are nearer."""
    name = link.rstrip("0123456789")
    number = link[len(name) :]
    if name == "NV":
        return len(_DISTANCES) + int(number or 1)
    return _DISTANCES.index(name) + 1 if name in _DISTANCES else None


def _rate_value(rate: str) -> float | None:
    return None if rate == "?" else float(rate)


def _store(trial: Trial | None) -> str | None:
    if trial is None:
        return None
    if trial.works is None:
        return "not known"
    return "arrives" if trial.works else "refused" if trial.error else "LOST"


def _link(peer: Peer) -> str | None:
    return None if peer.link is None else f"{peer.link}{peer.links or ''}"


def _number(value: int | None) -> str | None:
    return None if value is None else str(value)


def _rates(matrix: Sequence[Sequence[Peer | None]]) -> Iterator[str | Grid]:
    for name, title in _RATES:
        for show, heading, heat_of in (
            (_rate, f"GB/s by {title}:", _rate_value),
            (_latency, f"µs by {title}, a few bytes:", None),
        ):
            cells = [[show(peer.copies, name) if peer else None for peer in row] for row in matrix]
            if any(cell for row in cells for cell in row):
                yield heading
                yield _matrix(
                    [
                        [cell or ("?" if peer else None) for cell, peer in zip(*both, strict=True)]
                        for both in zip(cells, matrix, strict=True)
                    ],
                    heat_of,
                )


def _host(devices: Sequence[Device]) -> Iterator[Grid]:
    ways = (("copy engine", "engine"), ("kernel", "sm"))
    rows = [
        (f"gpu{n} and the host, by {by}", *_both_ways(device.copies, way))
        for by, way in ways
        for n, device in enumerate(devices)
        if device.copies and any(_both_ways(device.copies, way, ""))
    ]
    if rows:
        yield Grid(("", "to GB/s", "to µs", "from GB/s", "from µs"), rows)


def _both_ways(copies: Copies, way: str, missing: str = "?") -> tuple[str, ...]:
    names = f"{way}_write", f"{way}_read"
    return tuple(show(copies, name) or missing for name in names for show in (_rate, _latency))


def _rate(copies: Copies | None, name: str) -> str | None:
    rate = getattr(copies, name, None)
    return f"{rate.bytes_per_second / 1e9:.1f}" if rate else None


def _latency(copies: Copies | None, name: str) -> str | None:
    rate = getattr(copies, name, None)
    return f"{rate.latency_ns / 1e3:.2f}" if rate and rate.latency_ns else None
