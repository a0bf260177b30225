"""A spec that describes the memory at a moment of a record.

Equal objects become one entry with a count: ranges by what is mapped in them, chunks by the ranges that they are mapped
in. What a spec cannot say is a comment with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from memtopo.language import Document, read_text
from memtopo.records.entries import ProcessSpec, declare_memory, range_groups, unused, word
from memtopo.records.live import ProcessMemory
from memtopo.records.mappings import declare_mappings, declare_states
from memtopo.records.pairing import declare_exports, declare_imports, exporters
from memtopo.records.record import Moment, moment_of

OWN = re.compile(rb"# Memory of a program, ")
"""How such specs begin."""


def document(path: str, at: str | None = None) -> Document:
    """Return the spec of the memory in a record, by default at its peak. Raises `UsageError`."""
    text = spec_of(moment_of(path, at), Path(path).name.partition(".")[0])
    return read_text(text.encode(), f"{path} (as a spec)")


def spec_of(found: Moment, name: str) -> str:
    """Return the text of a spec of the memory at a moment."""
    every = [each for each in found.processes if each.weight[0] or each.weight[3]]
    exported = {id(each.memory) for process in every for each in process.exports}
    labels = _labels(every)
    specs = [ProcessSpec(each, label, exported) for each, label in zip(every, labels, strict=True)]
    for each in specs:
        each.groups = tuple(range_groups(each))
        declare_memory(each)
    owners = {id(memory): each for each in specs for memory in each.members()}
    pairs = exporters(every)
    for each in specs:
        declare_imports(each, owners, pairs)
    for each in specs:
        declare_exports(each)
    slept = {id(process.head): process.slept for process in found.end}
    for each in specs:
        declare_mappings(each)
        declare_states(each, slept[id(each.memory.head)])
    return "\n".join(_text(found, name, specs)) + "\n"


def _labels(processes: Sequence[ProcessMemory]) -> list[str]:
    """Names of processes: those of the record; `p0`, `p1` and so on for process ids."""
    found: list[str] = []
    for index, each in enumerate(processes):
        label = word(each.name)
        found.append(unused(found, label if label[:1].isalpha() else f"p{index}"))
    return found


def _text(found: Moment, name: str, specs: Sequence[ProcessSpec]) -> Iterator[str]:
    yield f"# Memory of a program, {found.name}: after {found.calls:,} of {len(found.record.calls):,} recorded calls."
    for each in specs:
        if each.memory.name.isdecimal() and len(specs) > 1:
            yield f"# {each.name} is process {each.memory.name}."
        for note in each.notes:
            yield f"# {f'{each.name}: ' if len(specs) > 1 else ''}{note}"
    yield "memtopo: 1"
    yield f"name: {word(name) or 'recorded'}"
    if len(specs) == 1:
        yield from _sections(specs[0], "")
    elif specs:
        yield from ["", "processes:"]
        for each in specs:
            yield f"  {each.name}:"
            yield from _sections(each, "    ")


_ORDER = (
    "ranges", "chunks", "buffers", "pools", "allocations", "managed", "pinned", "events", "imports", "map", "access",
    "exports", "states",
)  # fmt: skip


def _sections(spec: ProcessSpec, indent: str) -> Iterator[str]:
    for section in _ORDER:
        if entries := spec.sections.get(section):
            if not indent:
                yield ""
            yield f"{indent}{section}:"
            yield from (f"{indent}  {name}: {_flow(fields)}" for name, fields in entries.items())


def _flow(value: Any) -> str:
    """A value of a spec in flow style."""
    match value:
        case dict():
            return f"{{{', '.join(f'{key}: {_flow(each)}' for key, each in value.items())}}}"
        case list():
            return f"[{', '.join(map(_flow, value))}]"
        case bool():
            return str(value).lower()
        case _:
            return str(value)
