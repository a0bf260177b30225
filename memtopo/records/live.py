"""Memory of one process after some of its calls: made, mapped, shared, and not freed yet.

A call that failed changes nothing. A call for an object that no call has made is ignored: a record may begin late.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from memtopo.driver.types import Advice, HandleType, HostFlags, MemAttach, PoolAttribute
from memtopo.plans.trace import TracedCall, TraceHead
from memtopo.records.calls import (
    AddressTable,
    Exported,
    Mapped,
    Memory,
    Reservation,
    argument,
    arguments_of,
    has_flag,
    is_member,
    location,
    places,
    require_numbers,
    token_of,
)


class _ProcessObjects:
    """Objects of one process, by the handles and addresses that the driver gave.

    `gpus` are the ordinals among all GPUs of the record, by those of the process. Its `weight` grows with memory,
    mappings and access, in this order of importance.
    """

    def __init__(self, head: TraceHead, gpus: Sequence[int] = ()) -> None:
        self.head, self.name, self._ordinal = head, head.process, places(gpus)
        self.ranges: AddressTable[Reservation] = AddressTable()
        self.mapped: AddressTable[Mapped] = AddressTable()
        self.addressed: AddressTable[Memory] = AddressTable()
        """Memory that has an address without a mapping."""
        self.handles: dict[tuple[str, int], Memory] = {}
        """Chunks, pools, events and external objects."""
        self.exports: list[Exported] = []
        self.slept: set[int] = set()
        """Numbers of the calls that reserved ranges which were without memory and got some again."""
        self._emptied: set[int] = set()
        self._contexts: dict[int, int] = {}
        self._set_pools: dict[str, int] = {}
        """Pools that the program has set in place of the default ones, by GPU."""
        self._created: dict[int, int] = {}
        """GPUs of contexts that are no primary ones."""
        self._current: list[int] = []
        self.memory: dict[str, int] = {}
        """Bytes of memory by location."""
        self._bytes_mapped = self._grants = 0
        self._time = 0.0

    @property
    def weight(self) -> tuple[int, int, int, int]:
        """Bytes of memory, bytes mapped, mappings with access, and objects."""
        objects = len(self.ranges) + len(self.addressed) + len(self.handles)
        return sum(self.memory.values()), self._bytes_mapped, self._grants, objects

    def chunks(self) -> Iterator[Memory]:
        """Yield the chunks that exist, by handle or by a mapping alone, in the order of their calls."""
        found = {id(each): each for each in self.handles.values() if each.kind == "chunks"}
        found |= {id(each.chunk): each.chunk for each in self.mapped}
        yield from sorted(found.values(), key=lambda each: each.call.number)

    def objects(self, kind: str) -> list[Memory]:
        """Return the other objects of a kind, in the order of their calls: a destroyed pool, until it is empty."""
        pools = (each.pool for each in self.addressed if each.pool)
        every = {id(each): each for each in (*self.addressed, *self.handles.values(), *pools) if each.kind == kind}
        return sorted(every.values(), key=lambda each: each.call.number)

    def apply(self, call: TracedCall, time: float) -> None:
        """Follow one call, made at a time in seconds since the record began. Raises `UsageError` for a damaged one."""
        effect = _EFFECTS.get(call.method)
        if not effect or call.error is not None or call.seconds is None:
            return
        self._time = time
        with arguments_of(call, self.name):
            require_numbers(call)
            effect(self, call)

    def gpu(self, ordinal: int) -> str:
        """Name of a GPU of the record by the ordinal of the process."""
        return f"gpu{self._ordinal(ordinal)}"

    def place(self, text: str) -> str:
        """Return a location with the ordinal of the record. Raises `ValueError` for a text that is none."""
        return str(location(text, self._ordinal))

    def _grants_of(self, call: TracedCall) -> dict[str, str]:
        """Access by location; a capture has a text in place of grants that are too many for a line."""
        grants = [each for each in call.arguments["grants"] if isinstance(each, dict)]
        if not all(isinstance(each["access"], str) for each in grants):
            raise ValueError(grants)
        return {self.place(each["location"]): each["access"] for each in grants}

    def current(self, call: TracedCall) -> str:
        """Location of the context that is current at a call."""
        if call.device is not None:
            return self.gpu(call.device)
        return self.gpu(self._current[-1] if self._current else 0)

    def _new(self, call: TracedCall, kind: str, location: str, size: int = 0, **more: Any) -> Memory:
        """An object that a call made; its memory is counted."""
        memory = Memory(kind, self.name, location, size, call, self._time, context=self.current(call), **more)
        if memory.physical:
            self.memory[location] = self.memory.get(location, 0) + memory.physical
        return memory

    def _remove(self, memory: Memory | None) -> None:
        if memory and memory.physical:
            self.memory[memory.location] -= memory.physical


class ProcessMemory(_ProcessObjects):
    """Memory of one process. Each method is the effect of the driver call with its name.

    What begins with `_` is a part of several effects.
    """

    # Contexts

    def device_primary_ctx_retain(self, call: TracedCall) -> None:
        if isinstance(call.result, int):
            self._contexts[call.result] = call.arguments["device"]

    def device_primary_ctx_reset(self, call: TracedCall) -> None:
        self._end_context(call.arguments["device"])

    def ctx_create(self, call: TracedCall) -> None:
        self._created[call.result] = call.arguments["device"]

    def ctx_destroy(self, call: TracedCall) -> None:
        device = self._created.pop(call.arguments["context"], None)
        if device is not None and device not in self._contexts.values():
            self._end_context(device)

    def _end_context(self, device: int) -> None:
        """Free what ends with the context of a GPU, unless it may be of another context there.

        Chunks and pools are of the process. A release of a primary context tells nothing: the CUDA runtime retains it
        by no call of the record.
        """
        if device in self._created.values():
            return
        for address, each in self.addressed.items():
            if each.context == self.gpu(device) and each.kind != "allocations":
                self._remove(self.addressed.pop(address))
        for key, each in [*self.handles.items()]:
            if each.context == self.gpu(device) and each.kind in ("events", "external"):
                del self.handles[key]

    def ctx_push_current(self, call: TracedCall) -> None:
        self._current.append(self._contexts.get(call.arguments["context"], 0))

    def ctx_pop_current(self, _: TracedCall) -> None:
        if self._current:
            self._current.pop()

    # Virtual memory management

    def mem_address_reserve(self, call: TracedCall) -> None:
        size, alignment = call.arguments["size"], call.arguments.get("alignment", 0)
        self.ranges.add(call.result, Reservation(call.result, size, alignment, call))

    def mem_address_free(self, call: TracedCall) -> None:
        self.ranges.pop(call.arguments["address"])

    def mem_create(self, call: TracedCall) -> None:
        self.handles["chunks", call.result] = self._declared(call, "chunks", call.arguments["size"])

    def _declared(self, call: TracedCall, kind: str, size: int) -> Memory:
        """An object with the properties of a call. Raises `ValueError` for properties that the driver does not have."""
        details = dict(call.arguments["properties"])
        properties = argument(call.method, "properties", details, self._ordinal)
        return self._new(call, kind, str(properties.location), size, details=details)

    def multicast_create(self, call: TracedCall) -> None:
        self.handles["chunks", call.result] = self._new(call, "multicast", "", call.arguments["size"])

    def mem_import_from_shareable_handle(self, call: TracedCall) -> None:
        found = self.handles.get(("chunks", call.result))
        if found:  # the driver gives a chunk that the process has its handle once more
            found.references += 1
            return
        chunk = self._new(call, "chunks", "", imported=True, token=token_of(call.arguments["shared"]))
        if "location" in call.arguments:
            chunk.location = self.place(call.arguments["location"])
        self.handles["chunks", call.result] = chunk

    def mem_retain_allocation_handle(self, call: TracedCall) -> None:
        if mapped := self.mapped.at(call.arguments["address"]):
            mapped.chunk.references += 1
            self.handles.setdefault(("chunks", call.result), mapped.chunk)

    def mem_release(self, call: TracedCall) -> None:
        if chunk := self.handles.get(("chunks", call.arguments["handle"])):
            chunk.references -= 1
            if not chunk.references:
                del self.handles["chunks", call.arguments["handle"]]
                self._remove_unused(chunk)

    def _remove_unused(self, chunk: Memory) -> None:
        if not chunk.references and not chunk.mappings:
            self._remove(chunk)

    def mem_map(self, call: TracedCall) -> None:
        chunk = self.handles.get(("chunks", call.arguments["handle"]))
        if not chunk:
            return
        chunk.size, chunk.mappings = chunk.size or call.arguments["size"], chunk.mappings + 1
        self.mapped.add(call.arguments["address"], Mapped(call.arguments["address"], call.arguments["size"], chunk, {}))
        self._bytes_mapped += call.arguments["size"]
        held = self.ranges.at(call.arguments["address"])
        if held and held.call.number in self._emptied:
            self.slept.add(held.call.number)

    def mem_unmap(self, call: TracedCall) -> None:
        for each in self.mapped.within(call.arguments["address"], call.arguments["size"]):
            self.mapped.pop(each.address)
            self._bytes_mapped -= each.size
            self._grants -= len(each.grants)
            each.chunk.mappings -= 1
            self._remove_unused(each.chunk)
        held = self.ranges.at(call.arguments["address"])
        if held and not self.mapped.within(held.address, held.size):
            self._emptied.add(held.call.number)

    def mem_set_access(self, call: TracedCall) -> None:
        grants = self._grants_of(call)
        for each in self.mapped.within(call.arguments["address"], call.arguments["size"]):
            before = len(each.grants)
            each.grants = {at: word for at, word in {**each.grants, **grants}.items() if word != "none"}
            self._grants += len(each.grants) - before

    def mem_get_allocation_properties_from_handle(self, call: TracedCall) -> None:
        chunk = self.handles.get(("chunks", call.arguments["handle"]))
        if chunk and chunk.imported and isinstance(call.result, dict):
            chunk.location = self.place(call.result["location"])

    def mem_export_to_shareable_handle(self, call: TracedCall) -> None:
        via = "fabric" if has_flag(call.arguments.get("kind"), HandleType.FABRIC) else "fd"
        self._export(self.handles.get(("chunks", call.arguments["handle"])), via, call.result)

    def mem_get_handle_for_address_range(self, call: TracedCall) -> None:
        if mapped := self.mapped.at(call.arguments["address"]):
            self._export(mapped.chunk, "dmabuf", None)

    def _export(self, memory: Memory | None, via: str, handle: Any) -> None:
        if memory:
            self.exports.append(Exported(memory, via, token_of(handle), self._time))

    # Memory with an address

    def _allocate(self, call: TracedCall, kind: str, location: str, size: int, **details: Any) -> Memory:
        return self._placed(self._new(call, kind, location, size, details=details, address=call.result))

    def _placed(self, memory: Memory) -> Memory:
        """Put memory at its address, in place of what was freed there by a call that the record does not have."""
        address: Any = memory.address
        self._remove(self.addressed.pop(address))
        self.addressed.add(address, memory)
        return memory

    def mem_alloc(self, call: TracedCall) -> None:
        pitched = call.arguments.get("pitch", 0) * call.arguments.get("height", 0)
        self._allocate(call, "buffers", self.current(call), call.arguments.get("size", pitched))

    mem_alloc_pitch = mem_alloc

    def mem_alloc_managed(self, call: TracedCall) -> None:
        attach = next((each for each in MemAttach if has_flag(call.arguments.get("flags"), each)), MemAttach.GLOBAL)
        self._allocate(call, "managed", self.current(call), call.arguments["size"], attach=str(attach.name).lower())

    def mem_alloc_host(self, call: TracedCall) -> None:
        combined = has_flag(call.arguments.get("flags", 0), HostFlags.WRITECOMBINED)
        details = {"write_combined": combined, "gpu": self.current(call)}
        self._allocate(call, "pinned", "host", call.arguments["size"], **details)

    mem_host_alloc = mem_alloc_host

    def mem_host_register(self, call: TracedCall) -> None:
        address = call.arguments["address"]
        self._placed(self._new(call, "registered", "host", call.arguments["size"], address=address))

    def mem_alloc_async(self, call: TracedCall) -> None:
        location = self.current(call)
        set_pool = self._set_pools.get(location, -1 - int(location[3:]))
        pool = self._pool_numbered(call.arguments.get("pool", set_pool), location, call)
        self._allocate(call, "allocations", pool.location, call.arguments["size"]).pool = pool

    mem_alloc_from_pool_async = mem_alloc_async

    def _pool_numbered(self, number: int, location: str, call: TracedCall) -> Memory:
        """Return a pool, which is the default one of a GPU if no call has made it."""
        if ("pools", number) not in self.handles:
            default = next((each for each in self.objects("pools") if each.details.get("default") == location), None)
            default = default or self._new(call, "pools", location, details={"default": location})
            self.handles["pools", number] = default
        return self.handles["pools", number]

    def mem_free(self, call: TracedCall) -> None:
        self._remove(self.addressed.pop(call.arguments["address"]))

    mem_free_async = mem_free_host = mem_host_unregister = ipc_close_mem_handle = mem_free

    def mem_advise(self, call: TracedCall) -> None:
        memory = self.addressed.at(call.arguments["address"])
        if not memory or memory.kind != "managed":
            return
        advice, details = call.arguments["advice"], memory.details
        if is_member(advice, Advice.SET_READ_MOSTLY):
            details["read_mostly"] = True
        elif advice == _UNSET_READ_MOSTLY:
            details.pop("read_mostly", None)
        elif is_member(advice, Advice.SET_PREFERRED_LOCATION):
            details["prefer"] = self.place(call.arguments["location"])
            self._move(memory, details["prefer"])
        elif advice == _UNSET_PREFERRED_LOCATION:
            details.pop("prefer", None)
            self._move(memory, memory.context)
        elif is_member(advice, Advice.SET_ACCESSED_BY):
            memory.set_user(self.place(call.arguments["location"]))
        elif advice == _UNSET_ACCESSED_BY:
            memory.set_user(self.place(call.arguments["location"]), granted=False)

    def _move(self, memory: Memory, location: str) -> None:
        """Count memory at another location."""
        self._remove(memory)
        memory.location = location
        self.memory[location] = self.memory.get(location, 0) + memory.physical

    def mem_prefetch_async(self, call: TracedCall) -> None:
        memory = self.addressed.at(call.arguments["address"])
        if memory and memory.kind == "managed":
            memory.details["prefetch"] = self.place(call.arguments["location"])

    # Pools

    def mem_pool_create(self, call: TracedCall) -> None:
        self.handles["pools", call.result] = self._declared(call, "pools", 0)

    def device_get_default_mem_pool(self, call: TracedCall) -> None:
        self._pool_numbered(call.result, self.gpu(call.arguments["device"]), call)

    device_get_mem_pool = device_get_default_mem_pool

    def device_set_mem_pool(self, call: TracedCall) -> None:
        self._set_pools[self.gpu(call.arguments["device"])] = call.arguments["pool"]

    def mem_pool_set_attribute(self, call: TracedCall) -> None:
        pool = self.handles.get(("pools", call.arguments["pool"]))
        for each in PoolAttribute:
            if pool and is_member(call.arguments["attribute"], each):
                pool.details[str(each.name).lower()] = call.arguments["value"]

    def mem_pool_set_access(self, call: TracedCall) -> None:
        if pool := self.handles.get(("pools", call.arguments["pool"])):
            for at, access in self._grants_of(call).items():
                if at != pool.location:
                    pool.set_user(at, granted=access != "none")

    def mem_pool_import_from_shareable_handle(self, call: TracedCall) -> None:
        token = token_of(call.arguments["shared"])
        self.handles["pools", call.result] = self._new(call, "pools", "", imported=True, token=token)

    def mem_pool_import_pointer(self, call: TracedCall) -> None:
        pool = self.handles.get(("pools", call.arguments["pool"]))
        self._open(call, "allocations", call.arguments["data"]).pool = pool

    def mem_pool_export_pointer(self, call: TracedCall) -> None:
        self._export(self.addressed.at(call.arguments["address"]), "fd", call.result)

    # Legacy IPC, events and external memory

    def _open(self, call: TracedCall, kind: str, handle: Any) -> Memory:
        return self._placed(self._new(call, kind, "", address=call.result, imported=True, token=token_of(handle)))

    def ipc_get_mem_handle(self, call: TracedCall) -> None:
        self._export(self.addressed.at(call.arguments["address"]), "ipc", call.result)

    def ipc_open_mem_handle(self, call: TracedCall) -> None:
        self._open(call, "buffers", call.arguments["handle"])

    def event_create(self, call: TracedCall) -> None:
        self.handles["events", call.result] = self._new(call, "events", self.current(call))

    def ipc_open_event_handle(self, call: TracedCall) -> None:
        token = token_of(call.arguments["handle"])
        event = self._new(call, "events", self.current(call), imported=True, token=token)
        self.handles["events", call.result] = event

    def ipc_get_event_handle(self, call: TracedCall) -> None:
        self._export(self.handles.get(("events", call.arguments["event"])), "ipc", call.result)

    def import_external_memory(self, call: TracedCall) -> None:
        memory = self._new(call, "external", self.current(call), call.arguments["size"])
        self.handles["external", call.result] = memory

    def mem_pool_destroy(self, call: TracedCall) -> None:
        ((parameter, handle),) = call.arguments.items()
        self.handles.pop((_DESTROYED[parameter], handle), None)

    event_destroy = destroy_external_memory = mem_pool_destroy


_EFFECTS: Mapping[str, Callable[[Any, TracedCall], None]] = {
    method: effect for method, effect in vars(ProcessMemory).items() if not method.startswith("_")
}

_UNSET_READ_MOSTLY, _UNSET_PREFERRED_LOCATION, _UNSET_ACCESSED_BY = 2, 4, 6
"""Advice of `cuda.h` that takes other advice back; no layout gives it."""

_DESTROYED = {"pool": "pools", "event": "events", "memory": "external"}
