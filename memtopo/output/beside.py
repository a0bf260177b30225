"""What a process has beside its ranges, as lines: buffers, events, and where its exports go."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.text import Text

from memtopo.common.text import printable
from memtopo.output import labels
from memtopo.output.diagram.model import Diagram, Export, ProcessDiagram, Resource
from memtopo.output.diagram.notation import multiple, name_range, offset, processes
from memtopo.output.inks import Inks
from memtopo.output.listing import Item, Listing

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
    more = [labels.origin(shown.origin), *map(printable, shown.notes)]
    cells = [*_cells(shown.name, size, inks), labels.location(shown.locations, inks)]
    device = shown.locations[0] if shown.locations else ""
    return Item(
        inks.told(printable(shown.kind)), shown.mark, device, cells, [Text(inks.told(each)) for each in more if each]
    )


def _export(shown: Export, takers: Sequence[str], inks: Inks) -> Item:
    size = multiple(shown.count, shown.bytes_each) if shown.bytes_each else _count(shown.count)
    what = "" if shown.name == shown.first == shown.last else labels.clipped(name_range(shown.first, shown.last))
    more = [what, f"→ {printable(', '.join(takers))}" if takers else ""]
    cells = [*_cells(shown.name, size, inks), Text(inks.told(f"by {printable(shown.via)}"))]
    return Item("export", shown.mark, "", cells, [Text(inks.told(each)) for each in more if each])


def _count(count: int) -> str:
    return f"{count:,}" if count > 1 else ""


def _cells(name: str, size: str, inks: Inks) -> list[Text]:
    return [Text(inks.told(labels.clipped(name)), "bold"), Text(inks.told(size))]
