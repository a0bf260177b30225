"""The memory of a record without names, so that two records can be compared."""

from __future__ import annotations

from typing import Any

from memtopo.records.live import ProcessMemory
from memtopo.records.objects import Memory
from memtopo.records.record import Moment
from memtopo.records.spec import exporters


def shape(moment: Moment) -> list[Any]:
    """Ranges, memory, access and what is shared, of each process, sorted."""
    pairs = exporters(moment.processes)
    return sorted((_process(each, pairs) for each in moment.processes), key=repr)


def _process(process: ProcessMemory, pairs: dict[int, Any]) -> Any:
    def kind_of(memory: Memory) -> Any:
        if memory.imported:
            exported = pairs.get(id(memory))
            return ("import", kind_of(exported.memory), exported.via) if exported else ("import", memory.size)
        handles, flags = memory.details.get("handles", ()), [memory.details.get(flag) for flag in ("rdma", "compressible")]
        return memory.kind, memory.location, memory.size, list(handles), flags

    ranges = [
        (
            held.size,
            held.alignment,
            [(each.address - held.address, each.size, kind_of(each.chunk), sorted(each.grants.items())) for each in mapped],
            [[one.chunk for one in mapped].index(each.chunk) for each in mapped],
        )
        for held in process.ranges
        for mapped in [process.mapped.within(held.address, held.size)]
    ]
    chunks = [(kind_of(each), each.mappings) for each in process.chunks()]
    kinds = ("buffers", "pools", "allocations", "managed", "pinned")
    others = [(kind_of(each), repr(sorted(each.details.items()))) for kind in kinds for each in process.objects(kind)]
    shared = {id(each.memory): (kind_of(each.memory), each.via) for each in process.exports}
    return sorted(ranges, key=repr), sorted(chunks, key=repr), sorted(others, key=repr), sorted(shared.values(), key=repr)
