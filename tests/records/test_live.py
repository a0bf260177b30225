"""Memory of a process after calls: what is freed, and by which calls."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from memtopo.common.errors import UsageError
from memtopo.records import END, summary
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


@pytest.mark.parametrize(
    ("makes", "arguments", "ends"),
    [
        ("mem_alloc", {"size": MIB}, "mem_free"),
        ("mem_alloc_async", {"size": MIB, "stream": 0}, "mem_free_async"),
        ("mem_host_alloc", {"size": MIB, "flags": 0}, "mem_free_host"),
        ("mem_host_register", {"address": 1 << 40, "size": MIB, "flags": 0}, "mem_host_unregister"),
        ("ipc_open_mem_handle", {"handle": "handle:1", "flags": 1}, "ipc_close_mem_handle"),
    ],
)
def test_memory_with_an_address_is_of_a_process_until_the_call_that_ends_it(
    makes: str, arguments: dict[str, Any], ends: str
) -> None:
    calls = Calls()
    calls.call(makes, arguments, result=None if "address" in arguments else 1 << 40, device=0)
    (process,) = calls.moment(at=END).processes
    assert [each.address for each in process.addressed] == [1 << 40]
    calls.call(ends, {"address": 1 << 40, "stream": 0} if ends == "mem_free_async" else {"address": 1 << 40})
    (process,) = calls.moment(at=END).processes
    assert ([*process.addressed], held(calls)) == ([], {})


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
    """The memory is mapped again with less access."""
    calls = Calls()
    base, chunk = calls.reserve(2), calls.create(2, "gpu0")
    calls.map(base, 0, chunk, 2)
    calls.grant(base, 2, gpu0="rw", gpu1="rw")
    granted = len(calls.calls)
    calls.unmap(base, 0, 2)
    calls.map(base, 0, chunk, 2)
    calls.grant(base, 2, gpu0="rw")
    assert calls.moment().calls == granted


def test_a_chunk_is_memory_until_its_last_handle_and_its_last_mapping_end() -> None:
    calls = Calls()
    base, chunk = calls.reserve(4), calls.create(2, "gpu0")
    calls.map(base, 0, chunk, 2)
    calls.call("mem_retain_allocation_handle", {"address": base}, result=chunk)
    calls.call("mem_release", {"handle": chunk})
    calls.map(base, 2, chunk, 2)
    calls.call("mem_release", {"handle": chunk})
    calls.unmap(base, 0, 2)
    calls.call("mem_retain_allocation_handle", {"address": base + 2 * MIB}, result=chunk)
    calls.unmap(base, 2, 2)
    assert held(calls) == {"gpu0": 2}
    calls.call("mem_release", {"handle": chunk})
    assert held(calls) == {}
    again = calls.create(2, "gpu1")
    calls.call("mem_release", {"handle": again})
    assert held(calls) == {}


def test_a_handle_of_an_import_that_was_made_twice_is_released_twice() -> None:
    calls = Calls()
    for _ in range(2):
        calls.call("mem_import_from_shareable_handle", {"shared": "handle:1", "kind": 8}, result=7)
    found = []
    for _ in range(2):
        calls.call("mem_release", {"handle": 7})
        (process,) = calls.moment(at=END).processes
        found.append(len([*process.chunks()]))
    assert found == [1, 0]


def test_a_call_that_failed_or_has_not_returned_frees_nothing() -> None:
    """The last call of a process that was killed has no end."""
    calls = Calls()
    calls.call("mem_alloc", {"size": MIB}, result=1 << 40, device=0)
    calls.call("mem_free", {"address": 1 << 40}, error="CUDA_ERROR_UNKNOWN")
    calls.call("mem_free", {"address": 1 << 40}, seconds=None)
    assert held(calls) == {"gpu0": 1}
    calls.call("mem_free", {"address": 1 << 40})
    assert held(calls) == {}


def test_memory_is_of_the_context_that_is_current_again_after_another_one() -> None:
    """In a run of memtopo, whose calls have no GPU of their own."""
    calls = Calls()
    for device in (1, 0):
        calls.call("device_primary_ctx_retain", {"device": device}, result=100 + device)
        calls.call("ctx_push_current", {"context": 100 + device})
    calls.call("mem_alloc", {"size": MIB}, result=1 << 40)
    calls.call("ctx_pop_current", {}, result=100)
    calls.call("mem_alloc", {"size": 2 * MIB}, result=1 << 41)
    assert held(calls) == {"gpu0": 1, "gpu1": 2}


def test_allocations_of_a_pool_outlive_the_context_in_which_they_were_made() -> None:
    calls = Calls()
    calls.call("mem_alloc_async", {"size": MIB, "stream": 0}, result=1 << 40, device=0)
    calls.call("mem_alloc_async", {"size": 3 * MIB, "stream": 0}, result=1 << 42, device=1)
    calls.call("mem_alloc", {"size": 2 * MIB}, result=1 << 41, device=0)
    calls.call("device_primary_ctx_reset", {"device": 0})
    assert held(calls) == {"gpu0": 1, "gpu1": 3}


def test_managed_memory_is_counted_where_it_was_advised_to_be_last() -> None:
    calls = Calls()
    calls.call("mem_alloc_managed", {"size": MIB, "flags": 1}, result=1 << 40, device=0)
    for location, expected in (("gpu1", {"gpu1": 1}), ("host", {"host": 1})):
        given = {"address": 1 << 40, "size": MIB, "advice": 3, "location": location}
        calls.call("mem_advise", given)
        assert held(calls) == expected
    calls.call("mem_free", {"address": 1 << 40})
    assert held(calls) == {}


def test_calls_of_processes_are_in_the_order_of_time_whenever_a_process_began() -> None:
    """The second one begins 1.5 ms after the first; a call is made every millisecond."""
    first, second = Calls("a"), Calls("b")
    second.head = replace(second.head, started="2026-01-31T12:00:00.001500+00:00")
    for each in (first, second):
        for _ in range(3):
            each.reserve(2)
    record = first.moment(second).record
    assert [each.process for each in record.calls] == [0, 0, 1, 0, 1, 1]
    assert [round(1000 * each.time, 1) for each in record.calls] == [1, 2, 2.5, 3, 3.5, 4.5]


def test_a_label_that_was_marked_twice_is_its_first_moment() -> None:
    calls = Calls()
    for _ in range(2):
        calls.create(2, "gpu0")
        calls.call("mark", {"label": "step"})
    assert [calls.moment(at=at).processes[0].memory["gpu0"] for at in ("step", END)] == [2 * MIB, 4 * MIB]
    assert (calls.moment().record.labels, summary("r", calls.moment()).marks) == (("step", "step"), ("step",))
    with pytest.raises(UsageError) as refused:
        calls.moment(at="other")
    assert refused.value.hint == "there are peak, end, step, and seconds since its start"


def test_a_timeline_has_the_most_and_the_last_memory_of_each_interval() -> None:
    """Memory that is freed at once is in it, and what is left; at any moment, leaks are what is left at the end."""
    calls = Calls()
    for size in (1, 5):
        calls.call("mem_alloc", {"size": size * MIB}, result=size << 40, device=0)
    calls.call("mem_free", {"address": 5 << 40})
    calls.call("mark", {"label": "end"})
    calls.calls[-1] = replace(calls.calls[-1], time=10.0)
    found = summary("r", calls.moment())
    assert [size // MIB for _, size in found.timeline["gpu0"]] == [6, 1]
    assert 0 == found.timeline["gpu0"][0][0] < found.timeline["gpu0"][1][0] < 10 / 600
    assert found.peaks == {"gpu0": 6 * MIB}
    assert [(row.objects, row.size // MIB) for row in found.leaks] == [(1, 1)]


def test_a_chunk_has_the_size_of_its_creation_and_an_import_that_of_its_first_map() -> None:
    calls = Calls()
    base, chunk = calls.reserve(16), calls.create(8, "gpu0")
    handle = calls.call("mem_import_from_shareable_handle", {"shared": "handle:1", "kind": 8}, result=7)
    for offset, each, size in ((0, chunk, 2), (2, handle, 4), (6, handle, 2)):
        calls.map(base, offset, each, size)
    (process,) = calls.moment(at=END).processes
    assert [each.size // MIB for each in process.chunks()] == [8, 4]
    calls.unmap(base, 0, 2)
    calls.call("mem_release", {"handle": chunk})
    assert held(calls) == {}


def test_only_an_import_is_where_a_query_says_that_it_is() -> None:
    calls = Calls()
    own = calls.create(2, "gpu0")
    taken = calls.call("mem_import_from_shareable_handle", {"shared": "handle:1", "kind": 8}, result=7)
    for handle in (own, taken):
        found = {"location": "gpu1", "handles": []}
        calls.call("mem_get_allocation_properties_from_handle", {"handle": handle}, result=found)
    (process,) = calls.moment(at=END).processes
    assert [each.location for each in process.chunks()] == ["gpu0", "gpu1"]


def test_managed_memory_without_advice_is_where_its_context_is() -> None:
    calls = Calls()
    calls.call("mem_alloc_managed", {"size": MIB, "flags": 1}, result=1 << 40, device=1)
    for advice in (3, 4):
        calls.call("mem_advise", {"address": 1 << 40, "size": MIB, "advice": advice, "location": "host"}, device=0)
    assert held(calls) == {"gpu1": 1}


def test_managed_memory_without_a_flag_is_of_all_streams() -> None:
    calls = Calls()
    calls.call("mem_alloc_managed", {"size": MIB}, result=1 << 40, device=0)
    calls.call("mem_alloc_managed", {"size": MIB, "flags": 2}, result=2 << 40, device=0)
    (process,) = calls.moment(at=END).processes
    assert [each.details["attach"] for each in process.objects("managed")] == ["global", "host"]


def test_advice_and_prefetches_are_of_managed_memory_alone() -> None:
    calls = Calls()
    calls.call("mem_alloc", {"size": MIB}, result=1 << 40, device=0)
    calls.call("mem_advise", {"address": 1 << 40, "size": MIB, "advice": 3, "location": "host"})
    calls.call("mem_prefetch_async", {"address": 1 << 40, "size": MIB, "location": "gpu1", "stream": 0})
    (process,) = calls.moment(at=END).processes
    assert (held(calls), [each.details for each in process.addressed]) == ({"gpu0": 1}, [{}])


@pytest.mark.parametrize("size", [-1, 1 << 64, True, "1", 1.0, None])
def test_a_number_that_the_function_cannot_take_is_an_error_that_names_the_call(size: Any) -> None:
    calls = Calls()
    calls.call("mem_alloc", {"size": size}, result=1 << 40, device=0)
    with pytest.raises(UsageError, match="call 1 of the record does not have the arguments of cuMemAlloc"):
        calls.moment()


def test_memory_with_a_pitch_has_all_of_its_rows() -> None:
    calls = Calls()
    given = {"width": 1000, "height": 2048, "element": 4, "pitch": 1024}
    calls.call("mem_alloc_pitch", given, result=1 << 40, device=0)
    assert held(calls) == {"gpu0": 2}


def test_external_memory_is_of_a_process_until_it_is_destroyed_or_its_context_ends() -> None:
    calls = Calls()
    for device, handle in ((0, 5), (0, 6), (1, 7)):
        calls.call("import_external_memory", {"size": MIB, "fd": 3}, result=handle, device=device)
    calls.call("destroy_external_memory", {"memory": 5})
    (process,) = calls.moment(at=END).processes
    assert [each.location for each in process.objects("external")] == ["gpu0", "gpu1"]
    calls.call("device_primary_ctx_reset", {"device": 0})
    (process,) = calls.moment(at=END).processes
    assert [each.location for each in process.objects("external")] == ["gpu1"]


def test_the_peak_is_the_last_of_equal_moments_and_seconds_include_their_end() -> None:
    calls = Calls()
    calls.create(2, "gpu0")
    calls.call("mark", {"label": "a"})
    base = calls.create(2, "gpu0")
    calls.call("mark", {"label": "b"})
    calls.call("mem_release", {"handle": base})
    assert calls.moment().calls == 4
    assert [calls.moment(at=at).calls for at in ("0.002", "0.002s", "0.0019", "0", "a", "b")] == [2, 2, 1, 0, 2, 4]
    assert calls.moment().record.made == 3
    assert summary("r", calls.moment()).timeline["gpu0"][0] == (0.0, 0)


def test_the_peak_of_equal_memory_has_the_most_of_it_mapped_in_all_processes() -> None:
    processes = Calls("a"), Calls("b")
    for each, size in zip(processes, (4, 2), strict=True):
        base = each.reserve(4)
        each.map(base, 0, each.create(4, "gpu0"), size)
        each.unmap(base, 0, size)
    assert processes[0].moment(processes[1]).calls == 6


def test_a_summary_has_the_memory_of_each_process_the_largest_first_and_the_machine_of_the_first() -> None:
    first, second = Calls("a"), Calls("b")
    second.head = replace(second.head, machine="other")
    first.call("mem_host_alloc", {"size": 2 * MIB, "flags": 0}, result=1 << 40, device=0)
    for each, size in ((first, 1), (second, 4)):
        each.call("mem_alloc", {"size": size * MIB}, result=1 << 41, device=0)
    found = summary("r", first.moment(second, at=END))
    rows = [(row.location, row.process, row.size // MIB) for row in found.memory]
    assert rows == [("gpu0", "b", 4), ("gpu0", "a", 1), ("host", "a", 2)]
    assert (found.machine, found.processes, found.calls) == ("h200x2", ("a", "b"), 3)
