"""Records made call by call, and the memory of a record without names, so that two records can be compared."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from msgspec.structs import asdict

from memtopo.driver.functions import function
from memtopo.driver.types import PROPERTY_FLAGS
from memtopo.driver.wrappers import METHODS
from memtopo.plans.trace import TracedCall, TraceFile, TraceHead
from memtopo.records import PEAK, Moment, merged, moment
from memtopo.records.calls import Memory
from memtopo.records.entries import exporters
from memtopo.records.live import ProcessMemory


def shape(moment: Moment) -> list[Any]:
    """Ranges, memory, access and what is shared, of each process, sorted."""
    pairs = exporters(moment.processes)
    return sorted((_process(each, pairs) for each in moment.processes), key=repr)


_OF_IMPORTS = ("shared", "kind", "flags")


def _process(process: ProcessMemory, pairs: dict[int, Any]) -> Any:
    def kind_of(memory: Memory) -> Any:
        if memory.imported:
            exported = pairs.get(id(memory))
            return ("import", kind_of(exported.memory), exported.via) if exported else ("import", memory.size)
        handles, flags = (
            memory.details.get("handles", ()),
            [memory.details.get(flag) for flag in ("rdma", "compressible")],
        )
        return memory.kind, memory.location, memory.size, list(handles), flags

    ranges = [
        (
            held.size,
            held.alignment,
            [
                (each.address - held.address, each.size, kind_of(each.chunk), sorted(each.grants.items()))
                for each in mapped
            ],
            [[one.chunk for one in mapped].index(each.chunk) for each in mapped],
        )
        for held in process.ranges
        for mapped in [process.mapped.within(held.address, held.size)]
    ]
    chunks = [(kind_of(each), each.mappings) for each in process.chunks()]
    kinds = ("buffers", "pools", "allocations", "managed", "pinned")
    others = [
        (kind_of(each), repr(sorted((key, value) for key, value in each.details.items() if key not in _OF_IMPORTS)))
        for kind in kinds
        for each in process.objects(kind)
    ]
    shared = {id(each.memory): (kind_of(each.memory), each.via) for each in process.exports}
    return (
        sorted(ranges, key=repr),
        sorted(chunks, key=repr),
        sorted(others, key=repr),
        sorted(shared.values(), key=repr),
    )


MIB = 1 << 20


class Calls:
    """Calls of one process of a record, made one by one; offsets and sizes are in MiB."""

    def __init__(self, process: str = "", gpus: tuple[str, ...] = ()) -> None:
        self.head = TraceHead("", process, "h200x2", True, "580", 1, "2026-01-31T12:00:00+00:00", gpus)
        self.calls: list[TracedCall] = []
        self._next = count(1)

    def call(self, method: str, arguments: dict[str, Any], result: Any = None, **more: Any) -> Any:
        """Add a call, which is later than the one before, and return its result."""
        number, process = len(self.calls) + 1, self.head.process
        name = function(method).name if method in METHODS else method
        given = {"seconds": 1e-6, **more}
        call = TracedCall(
            process=process, number=number, time=number / 1000, phase="", call=name, method=method,
            arguments=arguments, result=result, **given,
        )  # fmt: skip
        self.calls.append(call)
        return result

    def reserve(self, size: int) -> int:
        """Reserve addresses."""
        given = {"size": size * MIB, "alignment": 0, "address": 0, "flags": 0}
        return int(self.call("mem_address_reserve", given, result=next(self._next) << 40))

    def create(self, size: int, location: str, handles: Sequence[str] = (), flags: Collection[str] = ()) -> int:
        """Create a chunk; `flags` are its properties that are true."""
        every = {each: each in flags for each in PROPERTY_FLAGS}
        properties = {"location": location, "handles": list(handles), **every}
        given = {"size": size * MIB, "properties": properties, "flags": 0}
        return int(self.call("mem_create", given, result=1000 + next(self._next)))

    def map(self, base: int, offset: int, handle: int, size: int) -> None:
        """Map a chunk."""
        given = {"address": base + offset * MIB, "size": size * MIB, "offset": 0, "handle": handle, "flags": 0}
        self.call("mem_map", given)

    def unmap(self, base: int, offset: int, size: int) -> None:
        """Unmap what is mapped in a part of a range."""
        self.call("mem_unmap", {"address": base + offset * MIB, "size": size * MIB})

    def grant(self, base: int, size: int, **access: str) -> None:
        """Set the access of locations from the start of a range."""
        grants = [{"location": at, "access": word} for at, word in access.items()]
        self.call("mem_set_access", {"address": base, "size": size * MIB, "grants": grants})

    def moment(self, *others: Calls, at: str = PEAK) -> Moment:
        """Memory at a moment, with the calls of other processes."""
        return moment(merged([TraceFile(each.head, tuple(each.calls)) for each in (self, *others)]), at)

    def write(self, path: Path) -> Path:
        """Write the record to a file."""
        lines = [{"memtopo_trace_file": 1, **asdict(self.head)}]
        lines += [{"n": each.number, **asdict(each)} for each in self.calls]
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        return path
