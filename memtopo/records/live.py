"""Memory of one process after some of its calls: made, mapped, shared, and not freed yet.

A call that failed changes nothing. A call for an object that no call has made is ignored: a record may begin late.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from memtopo.common.errors import UsageError
from memtopo.driver.functions import CONSTANTS
from memtopo.driver.types import Advice, HandleType, HostFlags, MemAttach, PoolAttribute
from memtopo.plans.trace import TracedCall, TraceHead
from memtopo.records.objects import AddressTable, Exported, Mapped, Memory, Reservation


class ProcessMemory:
    """Objects of one process, by the handles and addresses that the driver gave.

    `gpus` are the ordinals among all GPUs of the record, by those of the process. Its `weight` grows with memory,
    mappings and access, in this order of importance.
    """

    def __init__(self, head: TraceHead, gpus: Sequence[int] = ()) -> None:
        self.head, self.name, self._gpus = head, head.process, gpus
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
        self.contexts: dict[int, int] = {}
        self._current: list[int] = []
        self.memory: dict[str, int] = {}
        """Bytes of memory by location."""
        self._bytes_mapped = self._grants = 0

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
        """Return the other objects of a kind, in the order of their calls."""
        every = {id(each): each for each in (*self.addressed, *self.handles.values()) if each.kind == kind}
        return sorted(every.values(), key=lambda each: each.call.number)

    def apply(self, call: TracedCall, time: float) -> None:
        """Follow one call, made at a time in seconds since the record began. Raises `UsageError` for a damaged one."""
        effect = _EFFECTS.get(call.method)
        if not effect or call.error is not None or call.seconds is None:
            return
        try:
            effect(self, call, call.arguments, time)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            where = f"call {call.number} of the record{f', of process {self.name}' if self.name else ''},"
            raise UsageError(f"{where} does not have the arguments of {call.call}: {call.arguments}") from error

    def gpu(self, ordinal: int) -> str:
        """Name of a GPU of the record by the ordinal of the process."""
        return f"gpu{self._gpus[ordinal] if 0 <= ordinal < len(self._gpus) else ordinal}"

    def place(self, location: str) -> str:
        """Return a location with the ordinal of the record."""
        return self.gpu(int(location[3:])) if location[:3] == "gpu" and location[3:].isdecimal() else location

    def current(self, call: TracedCall) -> str:
        """Location of the context that is current at a call."""
        if call.device is not None:
            return self.gpu(call.device)
        return self.gpu(self._current[-1] if self._current else 0)

    def _add(self, memory: Memory) -> Memory:
        self.memory[memory.location] = self.memory.get(memory.location, 0) + memory.physical
        return memory

    def _remove(self, memory: Memory) -> None:
        if memory.physical:
            self.memory[memory.location] -= memory.physical

    # Contexts

    def _retain_context(self, call: TracedCall, given: Mapping[str, Any], _: float) -> None:
        if isinstance(call.result, int):
            self.contexts[call.result] = given["device"]

    def _push(self, call: TracedCall, given: Mapping[str, Any], _: float) -> None:
        self._current.append(self.contexts.get(given["context"], 0))

    def _pop(self, call: TracedCall, given: Mapping[str, Any], _: float) -> None:
        if self._current:
            self._current.pop()

    # Virtual memory management

    def _reserve(self, call: TracedCall, given: Mapping[str, Any], _: float) -> None:
        self.ranges.add(call.result, Reservation(call.result, given["size"], given.get("alignment", 0), call))

    def _free_addresses(self, call: TracedCall, given: Mapping[str, Any], _: float) -> None:
        self.ranges.pop(given["address"])

    def _create(self, call: TracedCall, given: Mapping[str, Any], time: float) -> None:
        properties = given["properties"]
        location = self.place(properties["location"])
        chunk = Memory("chunks", self.name, location, given["size"], call, time, dict(properties))
        self.handles["chunks", call.result] = self._add(chunk)

    def _multicast(self, call: TracedCall, given: Mapping[str, Any], time: float) -> None:
        chunk = Memory("multicast", self.name, "", given["size"], call, time, dict(given))
        self.handles["chunks", call.result] = chunk

    def _import_chunk(self, call: TracedCall, given: Mapping[str, Any], time: float) -> None:
        found = self.handles.get(("chunks", call.result))
        if found:  # the driver gives a chunk that the process has its handle once more
            found.references += 1
            return
        chunk = Memory("chunks", self.name, "", 0, call, time, dict(given), imported=True, token=_token(given["shared"]))
        self.handles["chunks", call.result] = chunk

    def _retain(self, call: TracedCall, given: Mapping[str, Any], _: float) -> None:
        if mapped := self.mapped.around(given["address"]):
            mapped.chunk.references += 1
            self.handles.setdefault(("chunks", call.result), mapped.chunk)

    def _release(self, call: TracedCall, given: Mapping[str, Any], _: float) -> None:
        if chunk := self.handles.get(("chunks", given["handle"])):
            chunk.references -= 1
            if not chunk.references:
                del self.handles["chunks", given["handle"]]
                self._remove_unused(chunk)

    def _remove_unused(self, chunk: Memory) -> None:
        if not chunk.references and not chunk.mappings:
            self._remove(chunk)

    def _map(self, call: TracedCall, given: Mapping[str, Any], _: float) -> None:
        chunk = self.handles.get(("chunks", given["handle"]))
        if not chunk:
            return
        chunk.size, chunk.mappings = chunk.size or given["size"], chunk.mappings + 1
        self.mapped.add(given["address"], Mapped(given["address"], given["size"], chunk, {}))
        self._bytes_mapped += given["size"]
        held = self.ranges.around(given["address"])
        if held and held.call.number in self._emptied:
            self.slept.add(held.call.number)

    def _unmap(self, call: TracedCall, given: Mapping[str, Any], _: float) -> None:
        for each in self.mapped.within(given["address"], given["size"]):
            self.mapped.pop(each.address)
            self._bytes_mapped -= each.size
            self._grants -= len(each.grants)
            each.chunk.mappings -= 1
            self._remove_unused(each.chunk)
        held = self.ranges.around(given["address"])
        if held and not self.mapped.within(held.address, held.size):
            self._emptied.add(held.call.number)

    def _grant(self, call: TracedCall, given: Mapping[str, Any], _: float) -> None:
        grants = {self.place(each["location"]): each["access"] for each in given["grants"] if isinstance(each, dict)}
        for each in self.mapped.within(given["address"], given["size"]):
            before = len(each.grants)
            each.grants = {at: word for at, word in {**each.grants, **grants}.items() if word != "none"}
            self._grants += len(each.grants) - before

    def _describe(self, call: TracedCall, given: Mapping[str, Any], _: float) -> None:
        chunk = self.handles.get(("chunks", given["handle"]))
        if chunk and chunk.imported and isinstance(call.result, dict):
            chunk.location = self.place(call.result["location"])

    def _export_chunk(self, call: TracedCall, given: Mapping[str, Any], time: float) -> None:
        if chunk := self.handles.get(("chunks", given["handle"])):
            via = "fabric" if _has(given.get("kind"), HandleType.FABRIC) else "fd"
            self.exports.append(Exported(chunk, via, _token(call.result), time))

    def _export_addresses(self, call: TracedCall, given: Mapping[str, Any], time: float) -> None:
        if mapped := self.mapped.around(given["address"]):
            self.exports.append(Exported(mapped.chunk, "dmabuf", None, time))

    # Memory with an address

    def _allocate(
        self, kind: str, location: str, call: TracedCall, size: int, time: float, **details: Any
    ) -> Memory:
        self._free(call, {"address": call.result}, time)  # by a call that the record does not have
        memory = Memory(kind, self.name, location, size, call, time, details, address=call.result)
        self.addressed.add(call.result, self._add(memory))
        return memory

    def _alloc(self, call: TracedCall, given: Mapping[str, Any], time: float) -> None:
        size = given["size"] if "size" in given else given.get("pitch", 0) * given.get("height", 0)
        self._allocate("buffers", self.current(call), call, size, time)

    def _alloc_managed(self, call: TracedCall, given: Mapping[str, Any], time: float) -> None:
        attach = next((each for each in MemAttach if _has(given.get("flags"), each)), MemAttach.GLOBAL)
        self._allocate("managed", self.current(call), call, given["size"], time, attach=str(attach.name).lower())

    def _alloc_host(self, call: TracedCall, given: Mapping[str, Any], time: float) -> None:
        combined = _has(given.get("flags", 0), HostFlags.WRITECOMBINED)
        self._allocate("pinned", "host", call, given["size"], time, write_combined=combined, gpu=self.current(call))

    def _register(self, call: TracedCall, given: Mapping[str, Any], time: float) -> None:
        memory = Memory("registered", self.name, "host", given["size"], call, time, address=given["address"])
        self.addressed.add(given["address"], memory)

    def _alloc_async(self, call: TracedCall, given: Mapping[str, Any], time: float) -> None:
        pool = self.handles.get(("pools", given.get("pool", 0)))
        if not pool:
            location = self.current(call)
            default = next((each for each in self.objects("pools") if each.details.get("default") == location), None)
            pool = default or Memory("pools", self.name, location, 0, call, time, {"default": location})
            self.handles["pools", given.get("pool", -1 - int(location[3:]))] = pool
        self._allocate("allocations", pool.location, call, given["size"], time).pool = pool

    def _free(self, call: TracedCall, given: Mapping[str, Any], _: float) -> None:
        if memory := self.addressed.pop(given["address"]):
            self._remove(memory)

    def _advise(self, call: TracedCall, given: Mapping[str, Any], _: float) -> None:
        memory = self.addressed.around(given["address"])
        if not memory or memory.kind != "managed":
            return
        location = self.place(str(given.get("location", "")))
        if _is(given["advice"], Advice.SET_READ_MOSTLY):
            memory.details["read_mostly"] = True
        elif _is(given["advice"], Advice.SET_PREFERRED_LOCATION):
            memory.details["prefer"] = location
        elif _is(given["advice"], Advice.SET_ACCESSED_BY):
            memory.details.setdefault("accessed_by", []).append(location)

    def _prefetch(self, call: TracedCall, given: Mapping[str, Any], _: float) -> None:
        memory = self.addressed.around(given["address"])
        if memory and memory.kind == "managed":
            memory.details["prefetch"] = self.place(str(given.get("location", "")))

    # Pools

    def _create_pool(self, call: TracedCall, given: Mapping[str, Any], time: float) -> None:
        details = dict(given["properties"])
        pool = Memory("pools", self.name, self.place(details["location"]), 0, call, time, details)
        self.handles["pools", call.result] = pool

    def _default_pool(self, call: TracedCall, given: Mapping[str, Any], time: float) -> None:
        location = self.gpu(given["device"])
        pool = Memory("pools", self.name, location, 0, call, time, {"default": location})
        self.handles.setdefault(("pools", call.result), pool)

    def _pool_attribute(self, call: TracedCall, given: Mapping[str, Any], _: float) -> None:
        pool = self.handles.get(("pools", given["pool"]))
        for each in PoolAttribute:
            if pool and _is(given["attribute"], each):
                pool.details[str(each.name).lower()] = given["value"]

    def _pool_access(self, call: TracedCall, given: Mapping[str, Any], _: float) -> None:
        if pool := self.handles.get(("pools", given["pool"])):
            grants = [self.place(each["location"]) for each in given["grants"] if isinstance(each, dict)]
            pool.details.setdefault("accessed_by", []).extend(at for at in grants if at != pool.location)

    def _import_pool(self, call: TracedCall, given: Mapping[str, Any], time: float) -> None:
        token = _token(given["shared"])
        pool = Memory("pools", self.name, "", 0, call, time, dict(given), imported=True, token=token)
        self.handles["pools", call.result] = pool

    def _import_pointer(self, call: TracedCall, given: Mapping[str, Any], time: float) -> None:
        pool = self.handles.get(("pools", given["pool"]))
        self._imported("allocations", call, _token(given["data"]), time).pool = pool

    def _export_pointer(self, call: TracedCall, given: Mapping[str, Any], time: float) -> None:
        if memory := self.addressed.around(given["address"]):
            self.exports.append(Exported(memory, "fd", _token(call.result), time))

    # Legacy IPC, events and external memory

    def _imported(self, kind: str, call: TracedCall, token: str | None, time: float) -> Memory:
        memory = Memory(kind, self.name, "", 0, call, time, address=call.result, imported=True, token=token)
        self.addressed.add(call.result, memory)
        return memory

    def _export_buffer(self, call: TracedCall, given: Mapping[str, Any], time: float) -> None:
        if memory := self.addressed.around(given["address"]):
            self.exports.append(Exported(memory, "ipc", _token(call.result), time))

    def _open_buffer(self, call: TracedCall, given: Mapping[str, Any], time: float) -> None:
        self._imported("buffers", call, _token(given["handle"]), time)

    def _create_event(self, call: TracedCall, given: Mapping[str, Any], time: float) -> None:
        self.handles["events", call.result] = Memory("events", self.name, self.current(call), 0, call, time)

    def _open_event(self, call: TracedCall, given: Mapping[str, Any], time: float) -> None:
        token = _token(given["handle"])
        event = Memory("events", self.name, self.current(call), 0, call, time, imported=True, token=token)
        self.handles["events", call.result] = event

    def _export_event(self, call: TracedCall, given: Mapping[str, Any], time: float) -> None:
        if event := self.handles.get(("events", given["event"])):
            self.exports.append(Exported(event, "ipc", _token(call.result), time))

    def _external(self, call: TracedCall, given: Mapping[str, Any], time: float) -> None:
        memory = Memory("external", self.name, self.current(call), given["size"], call, time, dict(given))
        self.handles["external", call.result] = memory


def _destroy(kind: str, parameter: str) -> Callable[[ProcessMemory, TracedCall, Mapping[str, Any], float], None]:
    """Return the effect of a call that destroys an object by its handle."""

    def destroyed(process: ProcessMemory, call: TracedCall, given: Mapping[str, Any], _: float) -> None:
        process.handles.pop((kind, given[parameter]), None)

    return destroyed


_P = ProcessMemory
_EFFECTS: Mapping[str, Callable[[ProcessMemory, TracedCall, Mapping[str, Any], float], None]] = {
    "device_primary_ctx_retain": _P._retain_context,
    "ctx_push_current": _P._push,
    "ctx_pop_current": _P._pop,
    "mem_address_reserve": _P._reserve,
    "mem_address_free": _P._free_addresses,
    "mem_create": _P._create,
    "multicast_create": _P._multicast,
    "mem_import_from_shareable_handle": _P._import_chunk,
    "mem_retain_allocation_handle": _P._retain,
    "mem_release": _P._release,
    "mem_map": _P._map,
    "mem_unmap": _P._unmap,
    "mem_set_access": _P._grant,
    "mem_get_allocation_properties_from_handle": _P._describe,
    "mem_export_to_shareable_handle": _P._export_chunk,
    "mem_get_handle_for_address_range": _P._export_addresses,
    "mem_alloc": _P._alloc,
    "mem_alloc_pitch": _P._alloc,
    "mem_free": _P._free,
    "mem_free_async": _P._free,
    "mem_alloc_managed": _P._alloc_managed,
    "mem_alloc_host": _P._alloc_host,
    "mem_host_alloc": _P._alloc_host,
    "mem_free_host": _P._free,
    "mem_host_register": _P._register,
    "mem_host_unregister": _P._free,
    "mem_alloc_async": _P._alloc_async,
    "mem_alloc_from_pool_async": _P._alloc_async,
    "mem_advise": _P._advise,
    "mem_prefetch_async": _P._prefetch,
    "mem_pool_create": _P._create_pool,
    "device_get_default_mem_pool": _P._default_pool,
    "device_get_mem_pool": _P._default_pool,
    "mem_pool_destroy": _destroy("pools", "pool"),
    "mem_pool_set_attribute": _P._pool_attribute,
    "mem_pool_set_access": _P._pool_access,
    "mem_pool_import_from_shareable_handle": _P._import_pool,
    "mem_pool_import_pointer": _P._import_pointer,
    "mem_pool_export_pointer": _P._export_pointer,
    "ipc_get_mem_handle": _P._export_buffer,
    "ipc_open_mem_handle": _P._open_buffer,
    "ipc_close_mem_handle": _P._free,
    "event_create": _P._create_event,
    "event_destroy": _destroy("events", "event"),
    "ipc_get_event_handle": _P._export_event,
    "ipc_open_event_handle": _P._open_event,
    "import_external_memory": _P._external,
    "destroy_external_memory": _destroy("external", "memory"),
}


def _token(value: Any) -> str | None:
    """Digest of a handle; None for a descriptor, which has another number in each process."""
    return value if isinstance(value, str) and value.startswith("handle:") else None


def _has(value: Any, flag: Any) -> bool:
    """Return whether a flag is set in a value: a number, or the names of `cuda.h` joined by `|`."""
    if isinstance(value, int):
        return bool(value & int(flag))
    return CONSTANTS[type(flag)].text(int(flag)) in str(value).split(" | ")


def _is(value: Any, member: Any) -> bool:
    """Return whether a value is a member of an enumeration: its number, or its name in `cuda.h`."""
    return bool(value == int(member)) or value == CONSTANTS[type(member)].names.get(int(member))
