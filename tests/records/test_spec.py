"""Records as specs: what `apply` built is what the spec of its record builds."""

from __future__ import annotations

from pathlib import Path

import pytest

from memtopo.driver.types import PROPERTY_FLAGS
from memtopo.records import moment, read_record
from memtopo.records.spec import spec_of
from tests.cli.conftest import InlineRunner
from tests.helpers.records import Calls, shape
from tests.helpers.samples import sampled
from tests.helpers.specs import EVERY_SPEC, PLANNED_ONLY

EXTERNAL = {"vulkan-consumer", "vulkan-frame"}
"""Specs with memory of another API, of which a record does not tell the producer."""
APPLIED = [path for path in EVERY_SPEC if path not in PLANNED_ONLY and path.stem not in EXTERNAL]


@pytest.mark.parametrize("path", sampled(APPLIED, seconds=4.0))
def test_the_spec_of_a_record_builds_the_same_memory(run_inline: InlineRunner, tmp_path: Path, path: Path) -> None:
    shapes = []
    spec = path
    for name in ("first", "second"):
        trace = tmp_path / name
        done = run_inline("apply", spec, "--machine", "h200x4", "--check", "none", "--trace", trace)
        assert done.status == 0, done.err + done.out
        found = moment(read_record([trace]))
        shapes.append(shape(found))
        spec = tmp_path / f"{name}.yaml"
        spec.write_text(spec_of(found, name))
    assert shapes[0] == shapes[1], spec.read_text()


def test_equal_ranges_and_chunks_become_counts(tmp_path: Path) -> None:
    calls = Calls()
    for _ in range(3):
        base = calls.reserve(8)
        for offset in (0, 2, 4):
            calls.map(base, offset, calls.create(2, "gpu1"), 2)
        calls.grant(base, 6, gpu0="r", gpu1="rw")
    text = spec_of(calls.moment(), "three")
    assert "range: {size: 8MiB, count: 3}" in text
    assert "chunk: {location: gpu1, size: 2MiB, count: 9}" in text
    assert "range: [{chunk: chunk, each: 3}]" in text
    assert "range: {gpu0: r, gpu1: rw}" in text


def test_chunks_that_alternate_between_gpus_are_one_entry_and_others_one_for_each_gpu() -> None:
    calls = Calls()
    base = calls.reserve(16)
    for index, location in enumerate(["gpu0", "gpu1", "gpu0", "gpu1"]):
        calls.map(base, 2 * index, calls.create(2, location), 2)
    assert "chunk: {location: [gpu0, gpu1], size: 2MiB, count: 4}" in spec_of(calls.moment(), "a")
    calls.map(base, 8, calls.create(2, "gpu1"), 2)
    text = spec_of(calls.moment(), "b")
    assert "chunk: {location: gpu0, size: 2MiB, count: 2}" in text
    assert "chunk-2: {location: gpu1, size: 2MiB, count: 3}" in text
    assert "range: [chunk.0, chunk-2.0, chunk.1, chunk-2.1:3]" in text


@pytest.mark.parametrize("flag", PROPERTY_FLAGS)
def test_chunks_that_differ_in_a_property_alone_are_entries_of_their_own(flag: str) -> None:
    calls = Calls()
    base = calls.reserve(4)
    calls.map(base, 0, calls.create(2, "gpu0"), 2)
    calls.map(base, 2, calls.create(2, "gpu0", flags=[flag]), 2)
    text = spec_of(calls.moment(), "property")
    assert f"chunk: {{location: gpu0, size: 2MiB}}\n  chunk-2: {{location: gpu0, size: 2MiB, {flag}: true}}\n" in text
    assert "range: [chunk, chunk-2]" in text


def test_a_chunk_that_is_mapped_again_is_named_again() -> None:
    """Side by side, in a gap, and in another range."""
    calls = Calls()
    first, second, zero = calls.reserve(16), calls.reserve(4), calls.create(2, "gpu0")
    for offset in (0, 2, 4, 12):
        calls.map(first, offset, zero, 2)
    calls.map(second, 0, zero, 2)
    text = spec_of(calls.moment(), "again")
    assert "range: [{chunk: chunk, each: 3}, {chunk: chunk, offset: 12MiB}]" in text
    assert "range-2: [chunk]" in text


@pytest.mark.parametrize(
    ("numbers", "entries"),
    [
        ("001", "{chunk: chunk.0, each: 2}, chunk.1"),
        ("010", "chunk, chunk.0"),
        ("011", "chunk, chunk.1"),
        ("0101", "chunk, chunk"),
        ("0102", "chunk.0:2, chunk.0, chunk.2"),
    ],
)
def test_chunks_side_by_side_are_slices_and_repetitions_in_their_order(numbers: str, entries: str) -> None:
    calls = Calls()
    base, made = calls.reserve(8), [calls.create(2, "gpu0") for _ in {*numbers}]
    for index, number in enumerate(numbers):
        calls.map(base, 2 * index, made[int(number)], 2)
    assert f"range: [{entries}]\n" in spec_of(calls.moment(), "again")


def test_access_that_differs_within_a_range_is_of_parts() -> None:
    calls = Calls()
    base = calls.reserve(8)
    for offset in (0, 2, 4):
        calls.map(base, offset, calls.create(2, "gpu0"), 2)
    calls.grant(base, 4, gpu0="rw")
    calls.grant(base, 2, gpu0="none", gpu1="r")
    text = spec_of(calls.moment(), "parts")
    first, second = "{offset: 0, size: 2MiB, grant: {gpu1: r}}", "{offset: 2MiB, size: 2MiB, grant: {gpu0: rw}}"
    assert f"range: [{first}, {second}]" in text


def test_a_range_that_lost_its_memory_and_got_some_again_has_a_state() -> None:
    calls = Calls()
    kept, slept = calls.reserve(4), calls.reserve(2)
    calls.map(kept, 0, calls.create(2, "gpu0"), 2)
    calls.map(kept, 2, calls.create(2, "gpu0"), 2)
    calls.map(slept, 0, calls.create(2, "gpu0"), 2)
    calls.unmap(kept, 2, 2)
    calls.unmap(slept, 0, 2)
    calls.map(kept, 2, calls.create(2, "gpu0"), 2)
    calls.map(slept, 0, calls.create(2, "gpu0"), 2)
    assert "name: s\n" in spec_of(calls.moment(), "s")
    assert "states:\n  asleep: {drop: [range-2]}" in spec_of(calls.moment(), "s")
    calls.map(calls.reserve(2), 0, calls.create(2, "gpu0"), 2)  # a range like the one that slept
    assert "states" not in spec_of(calls.moment(), "s")
    assert "name: recorded\n" in spec_of(calls.moment(), "???")


def test_allocations_of_a_destroyed_pool_are_in_the_spec_with_it() -> None:
    """The driver keeps the pool until they are freed."""
    calls = Calls()
    calls.call("mem_pool_create", {"properties": {"location": "gpu1", "handles": [], "max_size": 0}}, result=5)
    calls.call("mem_alloc_from_pool_async", {"size": 2 << 20, "pool": 5, "stream": 0}, result=1 << 40)
    calls.call("mem_pool_destroy", {"pool": 5})
    text = spec_of(calls.moment(at="end"), "pool")
    assert "pool: {location: gpu1}" in text
    assert "allocation: {pool: pool, size: 2MiB}" in text
    calls.call("mem_free_async", {"address": 1 << 40, "stream": 0})
    assert "pool" not in spec_of(calls.moment(at="end"), "none")


def test_allocations_without_a_pool_are_of_the_one_that_the_program_has_set() -> None:
    calls = Calls()
    calls.call("device_get_default_mem_pool", {"device": 0}, result=4, device=0)
    properties = {"location": "gpu0", "handles": ["fd"], "max_size": 0}
    calls.call("mem_pool_create", {"properties": properties}, result=5, device=0)
    calls.call("device_set_mem_pool", {"device": 0, "pool": 5}, device=0)
    calls.call("mem_alloc_async", {"size": 2 << 20, "stream": 0}, result=1 << 40, device=0)
    text = spec_of(calls.moment(), "set")
    assert "pool-2: {location: gpu0, handles: fd}" in text
    assert "allocation: {pool: pool-2, size: 2MiB}" in text


def test_a_default_pool_is_one_whichever_call_names_it_first() -> None:
    calls = Calls()
    calls.call("mem_alloc_async", {"size": 2 << 20, "stream": 0}, result=1 << 40, device=0)
    calls.call("device_get_default_mem_pool", {"device": 0}, result=4, device=0)
    calls.call("mem_alloc_from_pool_async", {"size": 2 << 20, "pool": 4, "stream": 0}, result=1 << 41, device=0)
    text = spec_of(calls.moment(), "default")
    assert "pools:\n  pool: {location: gpu0}\n\nallocations:\n  allocation: {pool: pool, size: 2MiB, count: 2}" in text


def test_what_a_spec_cannot_say_is_a_comment(tmp_path: Path) -> None:
    calls = Calls()
    for address, size in ((1 << 30, 8192), (1 << 31, 4096)):
        calls.call("mem_host_register", {"address": address, "size": size, "flags": 0})
    handle = calls.call("mem_import_from_shareable_handle", {"shared": 5, "kind": 1}, result=7)
    calls.map(calls.reserve(2), 0, handle, 2)
    text = spec_of(calls.moment(), "comments")
    assert "# not in this spec: 2 of 12 KiB in all: registered memory of the program itself" in text
    assert "chunk: {from: outside/chunk, location: gpu0, size: 2MiB}" in text
    assert "# the exporter of 'chunk' is not in the record: its size and location are assumed" in text


def test_imports_are_paired_by_the_digest_of_their_handle() -> None:
    """Whatever the order of exports and imports is."""
    exporter, importer = Calls("a"), Calls("b")
    chunks = [exporter.create(2, f"gpu{index}", handles=["fd"]) for index in range(2)]
    for index, chunk in enumerate(chunks):
        exporter.call("mem_export_to_shareable_handle", {"handle": chunk, "kind": 1}, result=f"handle:{index}")
    base = importer.reserve(4)
    for offset, index in ((0, 1), (2, 0)):
        given = {"shared": f"handle:{index}", "kind": 1}
        importer.map(base, offset, importer.call("mem_import_from_shareable_handle", given, result=70 + index), 2)
    text = spec_of(exporter.moment(importer), "pairs")
    assert "range: [chunk-2, chunk]" in text
    assert "chunk: {from: a.chunk}" in text or "chunk-2: {from: a.chunk-1}" in text


@pytest.mark.parametrize(("earlier", "source"), [(0, "a.chunk"), (2, "outside/chunk")])
def test_an_import_by_a_descriptor_is_paired_with_no_later_export(earlier: int, source: str) -> None:
    exporter, importer = Calls("a"), Calls("b")
    for _ in range(earlier):
        exporter.reserve(2)
    chunk = exporter.create(2, "gpu0", handles=["fd"])
    exporter.call("mem_export_to_shareable_handle", {"handle": chunk, "kind": 1}, result=5)
    base = importer.reserve(2)
    importer.map(base, 0, importer.call("mem_import_from_shareable_handle", {"shared": 5, "kind": 1}, result=7), 2)
    assert f"chunk: {{from: {source}" in spec_of(exporter.moment(importer, at="end"), "order")


def test_processes_with_process_ids_and_gpus_by_uuid_get_names_and_ordinals_of_the_record() -> None:
    first, second = Calls("4711", gpus=("GPU-a", "GPU-b")), Calls("4712", gpus=("GPU-b",))
    for each in (first, second):
        each.create(2, "gpu0")
    found = first.moment(second)
    assert "# p1 is process 4712.\n" in spec_of(found, "uuids")
    assert "4711" not in spec_of(first.moment(), "alone")
    assert "  p1:\n    chunks:\n      chunk: {location: gpu1, size: 2MiB}" in spec_of(found, "uuids")


def test_processes_without_memory_are_not_in_the_spec_and_take_no_names() -> None:
    every = [Calls(str(number)) for number in (4711, 4712, 4713)]
    for each in every[1:]:
        each.create(2, "gpu0")
    lines = spec_of(every[0].moment(*every[1:]), "some").splitlines()
    assert [line for line in lines if line.startswith(("  p", "# p"))] == [
        "# p0 is process 4712.", "# p1 is process 4713.", "  p0:", "  p1:",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("ranges", "lines"),
    [
        (["0", "0", "0"], ["range: [{chunk: chunk, each: 1}]"]),
        (["0", "1", "2"], ["range: [{chunk: chunk, each: 1}]"]),
        (["0", "0", "1"], ["range.0: [chunk.0]", "range.1: [chunk.0]", "range.2: [chunk.1]"]),
        (["0", "1", "0"], ["range.0: [chunk.0]", "range.1: [chunk.1]", "range.2: [chunk.0]"]),
        (["0 0", "0 0"], [f"range.{n}: [chunk, {{chunk: chunk, offset: 4MiB}}]" for n in range(2)]),
        (["0 0", "1 1"], [f"range.{n}: [chunk.{n}, {{chunk: chunk.{n}, offset: 4MiB}}]" for n in range(2)]),
    ],
)
def test_equal_ranges_share_a_chunk_or_have_one_each_or_are_listed(ranges: list[str], lines: list[str]) -> None:
    """Each range is of the numbers of its chunks, with gaps between them."""
    calls = Calls()
    made = [calls.create(2, "gpu0") for _ in {*"".join(ranges)} - {" "}]
    for each in ranges:
        base = calls.reserve(8)
        for index, number in enumerate(each.split()):
            calls.map(base, 4 * index, made[int(number)], 2)
    section = spec_of(calls.moment(), "shared").partition("map:\n")[2].partition("\n\n")[0]
    assert [line.strip() for line in section.splitlines()] == lines


def test_processes_whose_names_are_one_in_a_spec_get_numbers() -> None:
    """With the states of each."""
    first, second, third = Calls("a b"), Calls("a-b"), Calls("a-b")
    for each in (first, second, third):
        base = each.reserve(2)
        each.map(base, 0, each.create(2, "gpu0"), 2)
        if each is second:
            each.unmap(base, 0, 2)
            each.map(base, 0, each.create(2, "gpu0"), 2)
    text = spec_of(first.moment(second, third), "names")
    assert [line for line in text.splitlines() if line.startswith("  a")] == ["  a-b:", "  a-b-2:", "  a-b-3:"]
    assert text.count("states:") == 1
    assert "asleep" in text.partition("  a-b-2:")[2].partition("  a-b-3:")[0]


def test_names_of_a_record_that_are_too_long_for_a_spec_are_cut(run_inline: InlineRunner, tmp_path: Path) -> None:
    """Those of a library, and of a process."""
    processes = [Calls("x" * 300), Calls("x" * 300)]
    for each in processes:
        for address, size in ((1 << 40, 2), (1 << 41, 4)):
            stack = (f"lib{'a' * 300}.so:make",)
            each.call("mem_alloc", {"size": size << 20}, result=address, device=0, stack=stack)
    spec = tmp_path / "spec.yaml"
    spec.write_text(spec_of(processes[0].moment(processes[1]), "n" * 300))
    checked = run_inline("validate", spec, "--machine", "h200x2")
    assert checked.status == 0, checked.out


def test_exports_of_any_parts_of_an_entry_get_names() -> None:
    exporter, importer = Calls("a"), Calls("b")
    chunks = [exporter.create(2, "gpu0", handles=["fd", "fabric"]) for _ in range(4)]
    for kind in (1, 8):
        for index, chunk in enumerate(chunks):
            exporter.call(
                "mem_export_to_shareable_handle", {"handle": chunk, "kind": kind}, result=f"handle:{kind}{index}"
            )
    runs = [(1, range(3)), (8, range(2)), (8, range(1)), (1, range(2)), (1, range(1)), (8, range(3))]
    for kind, indices in runs:
        base = importer.reserve(2 * len(indices))
        for index in indices:
            given = {"shared": f"handle:{kind}{index}", "kind": kind}
            importer.map(
                base, 2 * index, importer.call("mem_import_from_shareable_handle", given, result=len(importer.calls)), 2
            )
    text = spec_of(exporter.moment(importer), "parts")
    assert "handles: [fd, fabric]" in text
    names = [line.split(":")[0].strip() for line in text.splitlines() if "via:" in line]
    assert len(names) == len({*names}) == len(runs)


@pytest.mark.parametrize("at", ["peak", "end"])
def test_a_record_without_memory_is_a_spec_without_entries(run_inline: InlineRunner, tmp_path: Path, at: str) -> None:
    file = Calls().write(tmp_path / "empty.jsonl")
    spec = tmp_path / "spec.yaml"
    assert run_inline("spec", file, "--at", at, "-o", spec).status == 0
    assert spec.read_text().endswith("memtopo: 1\nname: empty\n")
    assert run_inline("validate", spec, "--machine", "none").status == 0


def test_equal_pools_are_entries_of_their_own_and_allocations_are_of_their_pool() -> None:
    calls = Calls()
    for pool in (5, 6):
        calls.call("mem_pool_create", {"properties": {"location": "gpu0", "handles": [], "max_size": 0}}, result=pool)
    for pool, size in ((6, 4), (5, 2), (6, 4)):
        address = len(calls.calls) << 40
        calls.call("mem_alloc_from_pool_async", {"size": size << 20, "pool": pool, "stream": 0}, result=address)
    text = spec_of(calls.moment(), "pools")
    assert "pools:\n  pool: {location: gpu0}\n  pool-2: {location: gpu0}\n" in text
    assert "allocation: {pool: pool-2, size: 4MiB, count: 2}" in text
    assert "allocation-2: {pool: pool, size: 2MiB}" in text


def test_ranges_that_differ_in_access_alone_are_entries_of_their_own() -> None:
    calls = Calls()
    for access in ("rw", "r"):
        base = calls.reserve(2)
        calls.map(base, 0, calls.create(2, "gpu0"), 2)
        calls.grant(base, 2, gpu0="rw", gpu1=access)
    text = spec_of(calls.moment(), "access")
    assert "access:\n  range: {gpu0: rw, gpu1: rw}\n  range-2: {gpu0: rw, gpu1: r}" in text


def test_of_equal_buffers_only_those_that_the_program_has_exported_are_exported() -> None:
    calls = Calls()
    for address in (1 << 40, 1 << 41, 1 << 42):
        calls.call("mem_alloc", {"size": 2 << 20}, result=address, device=0)
    calls.call("ipc_get_mem_handle", {"address": 1 << 41}, result="handle:1")
    text = spec_of(calls.moment(), "exports")
    assert "buffer: {location: gpu0, size: 2MiB, count: 2}\n  buffer-2: {location: gpu0, size: 2MiB}" in text
    assert text.endswith("exports:\n  buffer-2: {buffer: buffer-2, via: ipc}\n")


def test_an_import_by_a_descriptor_is_of_the_exporter_that_has_exported_last() -> None:
    """And each import of a process is of another object."""
    exporters, importer = (Calls("a"), Calls("b")), Calls("c")
    for each in exporters:
        if each is exporters[1]:
            each.reserve(2)
        for _ in range(2):
            chunk = each.create(2, "gpu0", handles=["fd"])
            each.call("mem_export_to_shareable_handle", {"handle": chunk, "kind": 1}, result=5)
    for _ in range(6):
        base = importer.reserve(2)
    for index in range(2):
        handle = importer.call("mem_import_from_shareable_handle", {"shared": 5, "kind": 1}, result=70 + index)
        importer.map(importer.reserve(2) if index else base, 0, handle, 2)
    text = spec_of(exporters[0].moment(exporters[1], importer, at="end"), "order")
    assert "chunk: {from: b.chunk}" in text
    assert "from: a" not in text


def test_advice_and_access_that_were_taken_back_are_in_no_spec() -> None:
    """And those that were given twice are there once."""
    calls = Calls()
    properties = {"location": "gpu0", "handles": [], "max_size": 0}
    calls.call("mem_pool_create", {"properties": properties}, result=5, device=0)
    for at, access in (("gpu1", "rw"), ("gpu2", "rw"), ("gpu2", "rw"), ("gpu1", "none")):
        calls.call("mem_pool_set_access", {"pool": 5, "grants": [{"location": at, "access": access}]})
    for address in (1 << 40, 1 << 41):
        calls.call("mem_alloc_managed", {"size": 2 << 20, "flags": 1}, result=address, device=0)
        for advice, at in ((1, "gpu0"), (3, "host"), (5, "gpu1"), (5, "gpu2"), (5, "gpu2"), (6, "gpu1")):
            calls.call("mem_advise", {"address": address, "size": 2 << 20, "advice": advice, "location": at})
    for advice in (2, 4, 6):
        calls.call("mem_advise", {"address": 1 << 40, "size": 2 << 20, "advice": advice, "location": "gpu2"})
    found = calls.moment(at="end")
    text = spec_of(found, "back")
    assert "pool: {location: gpu0, accessed_by: [gpu2]}" in text
    assert "managed: {size: 2MiB}\n" in text
    assert "managed-2: {size: 2MiB, prefer: host, accessed_by: [gpu2], read_mostly: true}" in text
    assert found.processes[0].memory == {"gpu0": 2 << 20, "host": 2 << 20}


def test_exports_are_by_the_transport_that_their_call_names() -> None:
    """A dma-buf is of what is mapped at an address; a capture has the names of `cuda.h`."""
    calls = Calls()
    base = calls.reserve(16)
    for index, kind in enumerate((1, 8, "CU_MEM_HANDLE_TYPE_FABRIC", "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR")):
        chunk = calls.create(2 * index + 2, "gpu0", handles=["fd", "fabric"])
        calls.call("mem_export_to_shareable_handle", {"handle": chunk, "kind": kind}, result=5)
    calls.map(base, 0, calls.create(16, "gpu0"), 16)
    calls.call("mem_get_handle_for_address_range", {"address": base, "size": 16 << 20, "flags": 0}, result=6)
    calls.call("mem_alloc_async", {"size": 20 << 20, "stream": 0}, result=1 << 45, device=0)
    calls.call("mem_pool_export_pointer", {"address": 1 << 45}, result="handle:1")
    (process,) = calls.moment(at="end").processes
    found = [(each.memory.size >> 20, each.via) for each in process.exports]
    assert found == [(2, "fd"), (4, "fabric"), (6, "fabric"), (8, "fd"), (16, "dmabuf"), (20, "fd")]


def test_what_a_spec_says_of_pools_and_of_memory_of_the_host_is_what_was_set() -> None:
    """A GPU has access to its own pool anyway."""
    calls = Calls()
    properties = {"location": "gpu0", "handles": ["fd"], "max_size": 64 << 20}
    calls.call("mem_pool_create", {"properties": properties}, result=5, device=0)
    grants = [{"location": at, "access": "rw"} for at in ("gpu0", "gpu1")]
    calls.call("mem_pool_set_access", {"pool": 5, "grants": grants})
    for attribute, value in ((2, 0), (3, 1), (4, 32 << 20)):
        calls.call("mem_pool_set_attribute", {"pool": 5, "attribute": attribute, "value": value})
    calls.call("mem_pool_create", {"properties": {**properties, "max_size": 0}}, result=6, device=0)
    calls.call("mem_pool_set_attribute", {"pool": 6, "attribute": 4, "value": (1 << 64) - 1})
    calls.call("mem_host_alloc", {"size": 2 << 20, "flags": 4}, result=1 << 40, device=1)
    calls.call("mem_alloc_managed", {"size": 2 << 20, "flags": 2}, result=1 << 41, device=0)
    calls.call("mem_prefetch_async", {"address": 1 << 41, "size": 2 << 20, "location": "gpu1", "stream": 0})
    calls.call("event_create", {"flags": 0}, result=9, device=0)
    text = spec_of(calls.moment(at="end"), "set")
    first = "max_size: 64MiB, release_threshold: 32MiB, reuse_allow_opportunistic: false, accessed_by: [gpu1]"
    assert f"  pool: {{location: gpu0, handles: fd, {first}}}\n  pool-2: {{location: gpu0, handles: fd}}\n" in text
    assert "{size: 2MiB, write_combined: true, accessed_by: gpu1}" in text
    assert "managed: {size: 2MiB, prefetch: gpu1, attach: host}" in text
    assert "events" not in text


def test_ranges_that_differ_in_alignment_alone_are_entries_of_their_own() -> None:
    calls = Calls()
    for number, alignment in enumerate((0, 1, 1 << 30), 1):
        given = {"size": 2 << 20, "alignment": alignment, "address": 0, "flags": 0}
        calls.call("mem_address_reserve", given, result=number << 40)
    text = spec_of(calls.moment(), "aligned")
    assert "range: {size: 2MiB}\n  range-2: {size: 2MiB}\n  range-3: {size: 2MiB, align: 1GiB}\n" in text


def test_imports_from_outside_have_what_their_kind_needs() -> None:
    calls = Calls()
    for number in (1, 2):
        given = {"shared": f"handle:{number}", "kind": 8, "location": "gpu1"}
        calls.map(calls.reserve(2), 0, calls.call("mem_import_from_shareable_handle", given, result=70 + number), 2)
    calls.call("ipc_open_mem_handle", {"handle": "handle:3", "flags": 1}, result=1 << 45, device=0)
    calls.call("mem_pool_import_from_shareable_handle", {"shared": "handle:4", "kind": 1}, result=5)
    calls.call("mem_pool_set_access", {"pool": 5, "grants": [{"location": "gpu1", "access": "rw"}]})
    calls.call("mem_pool_import_pointer", {"pool": 5, "data": "handle:5"}, result=1 << 46)
    text = spec_of(calls.moment(), "outside")
    assert "allocation: {from: outside/allocation, pool: gpu0, size: 2MiB, accessed_by: [gpu1]}" in text
    assert "chunk: {from: outside/chunk, location: gpu1, size: 2MiB, count: 2}" in text
    assert "buffer: {from: outside/buffer, via: ipc, location: gpu0, size: 2MiB}" in text


def test_an_import_by_a_descriptor_is_rather_of_another_process_and_at_the_location_that_is_known() -> None:
    exporter, importer = Calls("a"), Calls("b")
    for _ in range(6):
        base = importer.reserve(2)
    for each, location in ((exporter, "gpu0"), (exporter, "gpu1"), (importer, "gpu1")):
        chunk = each.create(2, location, handles=["fd"])
        each.call("mem_export_to_shareable_handle", {"handle": chunk, "kind": 1}, result=5)
    given = {"shared": 5, "kind": 1, "location": "gpu1"}
    importer.map(base, 0, importer.call("mem_import_from_shareable_handle", given, result=7), 2)
    text = spec_of(exporter.moment(importer, at="end"), "other")
    assert "chunk-2: {from: a.chunk-2}" in text


def test_equal_memory_of_several_libraries_is_an_entry_for_each_with_its_name() -> None:
    calls = Calls()
    for number, library in enumerate(("libnccl.so.2", "3d.so", "libnccl.so.2"), 40):
        calls.call("mem_alloc", {"size": 2 << 20}, result=1 << number, device=0, stack=(f"{library}:make",))
    size = "location: gpu0, size: 2MiB"
    assert f"  nccl: {{{size}, count: 2}}\n  m3d: {{{size}}}\n" in spec_of(calls.moment(), "libraries")
