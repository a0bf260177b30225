"""The words of a map: what each piece is, where it begins, how large it is, whose memory it is, and who may use it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from memtopo.common.text import printable
from memtopo.common.units import rounded
from memtopo.output.diagram.model import (
    Export,
    DeviceAccess,
    MemoryDiagram,
    Diagram,
    MappingSpan,
    ProcessDiagram,
    RangeDiagram,
    Resource,
)
from memtopo.output.diagram.notation import few, granted, multiple, name_range, of_all, offset, processes
from memtopo.output.terminal.glyphs import Inks
from memtopo.output.terminal.lines import Item, Listing

LONGEST_NAME = 26
MOST_SHARES = 6


def piece(shown: MappingSpan, inks: Inks, *, times: int, again: bool, access: bool) -> list[Text]:
    """Name, offset, size, location, where it is asked for access, and the origin of a piece, in cells of a table."""
    if not shown.chunk:
        told = ("hole", offset(shown.offset), rounded(shown.size), "", "", "")
        return [Text(word, "dim") for word in told]
    cells = [
        Text(inks.told(clipped(of_all(shown, times)))),
        Text(offset(shown.offset)),
        Text(inks.told(multiple(shown.count, shown.bytes_each))),
        location(shown.locations, inks, f"{_handles(shown)}{_sight(shown, times, again=again)}"),
        Text(inks.told(granted(shown.access)) if access else ""),
        Text(inks.told(origin(shown.origin))),
    ]
    cells[0].stylize("bold")
    return cells


def range_(shown: RangeDiagram, access: Sequence[DeviceAccess] | None, address: str, inks: Inks) -> list[Text]:
    """The name, size and address of one range or many, with the access that holds for all of it, if one does."""
    name = name_range(shown.first, shown.last)
    holds = granted(access) if access is not None else "" if shown.mapped else "nothing mapped"
    told = [clipped(name), multiple(shown.count, shown.size), address, holds]
    parts = [Text(inks.told(part)) for part in told if part]
    parts[0].stylize("bold")
    return parts


def memories(shown: Sequence[MemoryDiagram], inks: Inks) -> list[list[Text]]:
    """Each device by all its names, what is used of its memory and what is left, below one another in columns."""
    told = [
        (printable(memory.device), ", ".join(map(clipped, memory.names)), f"{rounded(memory.used)} used", _free(memory))
        for memory in shown
    ]
    device, names, used, free = (max(map(cell_len, column), default=0) for column in zip(*told, strict=True))
    return [
        [
            Text(inks.told(set_cell_size(row[0], device)), f"bold {inks.colour(row[0])}"),
            *([Text(inks.told(set_cell_size(row[1], names)))] if names else []),
            Text(row[2].rjust(used)),
            *([Text(row[3].rjust(free))] if row[3] else []),
        ]
        for row in told
    ]


def shares(shown: MemoryDiagram, inks: Inks, *, named: bool) -> list[str]:
    """What of each kind of chunk a device holds; nothing where it is a single one, whose size is the whole.

    `named` are those of several processes, which are told by their marks as well.
    """
    if len(shown.shares) == 1 and shown.shares[0].count == 1 and not named:
        return []
    told = [
        f"{inks.letter(share.chunk)} {f'{clipped(share.chunk)} ' * named}{multiple(share.count, share.bytes_each)}"
        for share in shown.shares[:MOST_SHARES]
    ]
    more = len(shown.shares) - MOST_SHARES
    return [*map(inks.told, told), *([f"{more:,} more"] if more > 0 else [])]


def origin(text: str) -> str:
    """Where something comes from, in words."""
    return f"from {clipped(text)}" if text else ""


def location(names: Sequence[str], inks: Inks, more: str = "") -> Text:
    """Places in turn, each in its colour."""
    parts: list[str | tuple[str, str]] = []
    for name in few(names):
        parts += [", " if parts else "", (inks.told(printable(name)), inks.colour(name.partition("-")[0]))]
    return Text.assemble(*parts, inks.told(more))


def clipped(name: str) -> str:
    """A name as it may be shown, at most `LONGEST_NAME` columns of it: a name's end tells most."""
    shown = printable(name)
    if cell_len(shown) <= LONGEST_NAME:
        return shown
    kept = LONGEST_NAME // 2
    start, end = set_cell_size(shown, kept - 1), set_cell_size(shown[::-1], LONGEST_NAME - kept)[::-1]
    return f"{start.rstrip()}…{end.lstrip()}"


def _free(shown: MemoryDiagram) -> str:
    taken = f"{rounded(shown.taken)} taken  " if shown.taken else ""
    return "" if shown.free is None else f"{taken}{rounded(shown.free)} free"


def _sight(shown: MappingSpan, times: int, *, again: bool) -> str:
    """Where else the chunks are seen, and which ones the next of many equal ranges has."""
    if times > 1 and not shown.step:
        return ", same in each"
    ahead = f", {shown.step:+,} in each" if times > 1 and shown.step != shown.count else ""
    return f"{', again' if again else ''}{ahead}"


def _handles(shown: MappingSpan) -> str:
    return f" ({', '.join(map(printable, shown.handles))})" if shown.handles else ""


MOST_ITEMS = 24
MOST_TARGETS = 4

Targets = Mapping[tuple[str, str], Sequence[str]]
"""Who takes what a process exports, in words, by the first label of its picture and the export's name."""


def beside(process: str, shown: Diagram, targets: Targets, inks: Inks) -> Iterator[Listing]:
    """The things and exports of a process, as far as it has any."""
    items = [item for thing in shown.things for item in _things(thing, inks)]
    items += [_export(export, targets.get((process, export.name), ()), inks) for export in shown.exports]
    if items:
        yield Listing(items[:MOST_ITEMS], max(0, len(items) - MOST_ITEMS))


def targets(whole: Diagram) -> Targets:
    """Who takes what in a layout of several processes."""
    kinds = {each.first: each for each in whole.processes}
    found: dict[tuple[str, str], list[str]] = {}
    for flow in whole.flows:
        if not flow.outside:
            found.setdefault((flow.source, flow.export), []).append(flow.target)
    return {export: list(_told(takers, kinds)) for export, takers in found.items()}


def _told(takers: Sequence[str], kinds: Mapping[str, ProcessDiagram]) -> Iterator[str]:
    """The processes that take something: `reader.0`, or `every reader` where all of several kinds do."""
    words: list[str] = []
    for entry in dict.fromkeys(map(_entry, takers)):
        own = [label for label in kinds if _entry(label) == entry]
        taking = [label for label in own if label in takers]
        words += [f"every {entry}"] if 1 < len(own) == len(taking) else [processes(kinds[label]) for label in taking]
    yield from words[:MOST_TARGETS]
    if more := len(words[MOST_TARGETS:]):
        yield f"{more:,} more"


def _entry(label: str) -> str:
    return label.partition(".")[0]


def _things(shown: Resource, inks: Inks) -> Iterator[Item]:
    """A thing, and below it its parts, in the same columns."""
    yield _thing(shown, inks)
    for part in shown.parts:
        at = Text(inks.told(f"at {offset(part.offset)}"))
        cells = [*_cells(part.name, multiple(part.count, part.bytes_each), inks), Text()]
        yield Item(inks.told(f"  {printable(part.kind)}"), part.mark, "".join(shown.locations[:1]), cells, [at])


def _thing(shown: Resource, inks: Inks) -> Item:
    size = multiple(shown.count, shown.bytes_each) if shown.bytes_each else _count(shown.count)
    more = [origin(shown.origin), *map(printable, shown.notes)]
    cells = [*_cells(shown.name, size, inks), location(shown.locations, inks)]
    device = shown.locations[0] if shown.locations else ""
    return Item(
        inks.told(printable(shown.kind)), shown.mark, device, cells, [Text(inks.told(each)) for each in more if each]
    )


def _export(shown: Export, takers: Sequence[str], inks: Inks) -> Item:
    size = multiple(shown.count, shown.bytes_each) if shown.bytes_each else _count(shown.count)
    what = "" if shown.name == shown.first == shown.last else clipped(name_range(shown.first, shown.last))
    more = [what, f"→ {printable(', '.join(takers))}" if takers else ""]
    cells = [*_cells(shown.name, size, inks), Text(inks.told(f"by {printable(shown.via)}"))]
    return Item("export", shown.mark, "", cells, [Text(inks.told(each)) for each in more if each])


def _count(count: int) -> str:
    return f"{count:,}" if count > 1 else ""


def _cells(name: str, size: str, inks: Inks) -> list[Text]:
    return [Text(inks.told(clipped(name)), "bold"), Text(inks.told(size))]
