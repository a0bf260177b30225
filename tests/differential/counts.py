"""Recorded calls of each C function that the simulator answers as the GPU did, by file of traces.

`python -m tests.differential count` writes them to `traces/counts.json`, which docs/simulated-calls.md is made from.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from memtopo import machine
from memtopo.driver.protocol import call_name
from tests.differential import traces
from tests.differential.calls import UNDEFINED, Call
from tests.differential.replayer import replay
from tests.differential.traces import Step

COUNTS = traces.FOLDER / "counts.json"
_NOT_TRIED = "not tried"

METHODS: Mapping[str, str] = {
    "reserve": "mem_address_reserve", "free": "mem_address_free", "create": "mem_create", "release": "mem_release",
    "map": "mem_map", "unmap": "mem_unmap", "set": "mem_set_access", "get": "mem_get_access",
    "retain": "mem_retain_allocation_handle", "props": "mem_get_allocation_properties_from_handle",
    "range": "mem_get_address_range", "sizeat": "mem_get_address_range", "gran": "mem_get_allocation_granularity",
    "export": "mem_export_to_shareable_handle", "import": "mem_import_from_shareable_handle",
    "alloc": "mem_alloc", "freemem": "mem_free", "poolfreenow": "mem_free",
    "push": "ctx_push_current", "pop": "ctx_pop_current", "sync": "ctx_synchronize",
    "state": "device_primary_ctx_get_state",
    "fill": "memset_d8", "write": "memcpy_htod", "read": "memcpy_dtoh", "touch": "memcpy_dtoh", "copy": "memcpy_async",
    "event": "event_create", "endevent": "event_destroy", "record": "event_record", "eventdone": "event_query",
    "eventsync": "event_synchronize", "shareevent": "ipc_get_event_handle", "openevent": "ipc_open_event_handle",
    "stream": "stream_create", "endstream": "stream_destroy", "streamwait": "stream_wait_event",
    "streamdone": "stream_query", "streambusy": "stream_query",
    "managed": "mem_alloc_managed", "advise": "mem_advise", "attribute": "mem_range_get_attribute",
    "attach": "stream_attach_mem_async", "prefetch": "mem_prefetch_async", "ismanaged": "pointer_is_managed",
    "share": "ipc_get_mem_handle", "open": "ipc_open_mem_handle", "closeopened": "ipc_close_mem_handle",
    "importmemory": "import_external_memory", "mapbuffer": "external_memory_get_mapped_buffer",
    "endmemory": "destroy_external_memory", "importsemaphore": "import_external_semaphore",
    "endsemaphore": "destroy_external_semaphore", "signal": "signal_external_semaphore",
    "wait": "wait_external_semaphore",
    "pool": "mem_pool_create", "endpool": "mem_pool_destroy", "poolalloc": "mem_alloc_from_pool_async",
    "poolfree": "mem_free_async", "poolset": "mem_pool_set_attribute", "poolget": "mem_pool_get_attribute",
    "poolgrant": "mem_pool_set_access", "poolaccess": "mem_pool_get_access", "pooltrim": "mem_pool_trim_to",
    "poolexport": "mem_pool_export_to_shareable_handle", "poolimport": "mem_pool_import_from_shareable_handle",
    "poolpointer": "mem_pool_export_pointer", "poolopen": "mem_pool_import_pointer",
    "hostalloc": "mem_host_alloc", "hostfree": "mem_free_host", "hostflags": "mem_host_get_flags",
    "hostpointer": "mem_host_get_device_pointer", "register": "mem_host_register",
    "unregister": "mem_host_unregister", "dmabuf": "mem_get_handle_for_address_range",
}  # fmt: skip
"""Methods of the protocol whose answers calls in text have. Calls that are not here call no function of the driver."""


class Count(NamedTuple):
    """Counts of one file: its machine, the sequences, and the calls by C function."""

    machine: str
    sequences: int
    calls: Mapping[str, int]


def count(path: Path) -> Count:
    """Replay a file, and count the calls before the first difference of each sequence."""
    origin, recorded = traces.read(path)
    found = list(recorded)
    differences = replay(machine.load(origin.machine), found).differences
    compared = {each.trace: each.position for each in differences}
    calls = Counter(name for trace in found for name in functions(trace.steps[: compared.get(trace)]))
    return Count(origin.machine, len(found), dict(sorted(calls.items())))


def functions(steps: Iterable[Step]) -> Iterator[str]:
    """Yield the C functions that steps of a sequence have answers of."""
    for text, answer in steps:
        name = _called(Call.parse(text))
        if name in METHODS and answer != UNDEFINED and not answer.startswith(_NOT_TRIED):
            yield call_name(METHODS[name])


def _called(call: Call) -> str:
    """Name of a call, also of one in the second process, or under a condition."""
    if call.name == "there":
        return call.arguments[0]
    return call.arguments[2] if call.name == "safely" else call.name


def read() -> Mapping[str, Count]:
    """Counts by name of the file, as they were written."""
    return {name: Count(**each) for name, each in json.loads(COUNTS.read_text(encoding="utf-8")).items()}


def write() -> None:
    """Count every file."""
    counts = {path.name: count(path)._asdict() for path in sorted(traces.FOLDER.glob("*.xz"))}
    COUNTS.write_text(json.dumps(counts, indent=1) + "\n", encoding="utf-8")
