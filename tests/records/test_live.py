"""Memory of a process after calls: what is freed, and by which calls."""

from __future__ import annotations

from memtopo.records.record import END
from tests.helpers.records import MIB, Calls


def held(calls: Calls) -> dict[str, int]:
    """MiB by location at the end of a record."""
    (process,) = calls.moment(at=END).processes
    return {at: size // MIB for at, size in process.memory.items() if size}


def allocated(calls: Calls) -> None:
    """Memory of each kind on a GPU, 1 MiB each, and as much in the context of another GPU."""
    for device in (0, 1):
        base = (device + 1) << 40
        calls.call("mem_alloc", {"size": MIB}, result=base, device=device)
        calls.call("mem_alloc_managed", {"size": MIB, "flags": 1}, result=base + MIB, device=device)
        calls.call("mem_host_alloc", {"size": MIB, "flags": 0}, result=base + 2 * MIB, device=device)
        calls.call("mem_host_register", {"address": base + 3 * MIB, "size": MIB, "flags": 0}, device=device)
        calls.call("event_create", {"flags": 0}, result=base + 1, device=device)


def test_a_primary_context_that_is_reset_loses_its_memory_and_chunks_stay() -> None:
    calls = Calls()
    calls.call("device_primary_ctx_retain", {"device": 0}, result=1)
    allocated(calls)
    calls.create(1, "gpu0")
    assert held(calls) == {"gpu0": 3, "gpu1": 2, "host": 2}
    calls.call("device_primary_ctx_reset", {"device": 0})
    assert held(calls) == {"gpu0": 1, "gpu1": 2, "host": 1}
    (process,) = calls.moment(at=END).processes
    assert [len(process.objects(kind)) for kind in ("registered", "events")] == [1, 1]


def test_a_release_of_a_primary_context_frees_nothing() -> None:
    """The runtime has retained it by no call of a record."""
    calls = Calls()
    calls.call("device_primary_ctx_retain", {"device": 0}, result=1, device=0)
    calls.call("mem_alloc", {"size": MIB}, result=1 << 40, device=0)
    calls.call("device_primary_ctx_release", {"device": 0})
    assert held(calls) == {"gpu0": 1}


def test_a_context_of_a_program_ends_with_its_memory_unless_the_gpu_has_another_one() -> None:
    calls = Calls()
    for context in (1, 2):
        calls.call("ctx_create", {"flags": 0, "device": 0}, result=context)
    calls.call("mem_alloc", {"size": MIB}, result=1 << 40, device=0)
    calls.call("ctx_destroy", {"context": 1})
    assert held(calls) == {"gpu0": 1}
    retained = Calls()
    retained.calls = [*calls.calls]
    retained.call("device_primary_ctx_retain", {"device": 0}, result=3)
    for each in (calls, retained):
        each.call("ctx_destroy", {"context": 2})
    assert (held(calls), held(retained)) == ({}, {"gpu0": 1})


def test_an_address_behind_memory_is_none_of_it() -> None:
    """A record that begins late has not made all that its calls name."""
    calls = Calls()
    calls.call("mem_alloc", {"size": MIB}, result=1 << 40, device=0)
    base = calls.reserve(4)
    calls.map(base, 0, calls.create(2, "gpu0"), 2)
    for address in (1 << 40, (1 << 40) + MIB):
        calls.call("ipc_get_mem_handle", {"address": address}, result=f"handle:{address}")
    for address in (base, base + 2 * MIB):
        calls.call("mem_retain_allocation_handle", {"address": address}, result=address)
    (process,) = calls.moment(at=END).processes
    assert [each.token for each in process.exports] == [f"handle:{1 << 40}"]
    assert [each.references for each in process.chunks()] == [2]


def test_memory_is_no_longer_counted_where_other_memory_begins() -> None:
    """It was freed by a call that the record does not have."""
    calls = Calls()
    for address in (1 << 40, 1 << 41, 1 << 42):
        calls.call("mem_host_alloc", {"size": MIB, "flags": 0}, result=address, device=0)
    assert held(calls) == {"host": 3}
    calls.call("mem_alloc", {"size": MIB}, result=1 << 40, device=0)
    calls.call("mem_host_register", {"address": 1 << 41, "size": MIB, "flags": 0}, device=0)
    calls.call("ipc_open_mem_handle", {"handle": "handle:1", "flags": 1}, result=1 << 42, device=0)
    assert held(calls) == {"gpu0": 1}


def test_access_of_memory_that_was_unmapped_is_no_weight_of_the_peak() -> None:
    """The memory is mapped again without access."""
    calls = Calls()
    base, chunk = calls.reserve(2), calls.create(2, "gpu0")
    calls.map(base, 0, chunk, 2)
    calls.grant(base, 2, gpu0="rw")
    granted = len(calls.calls)
    calls.unmap(base, 0, 2)
    calls.map(base, 0, chunk, 2)
    assert calls.moment().calls == granted
