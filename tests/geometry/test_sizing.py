"""Granularities that differ between GPUs: addresses, offsets, and amounts in granules."""

from __future__ import annotations

import pytest

from memtopo import planner
from memtopo.common.units import MiB
from memtopo.driver.types import WHOLE_HOST, HandleType, Location, LocationKind, Properties, gpu
from memtopo.geometry.groups import ChunkGroup, RangeGroup
from memtopo.geometry.model import MemoryBudget, granularity_note, granule, memory_budgets
from memtopo.kinds.resources import ReserveRange
from memtopo.machine import CONTEXT_BYTES, Machine
from memtopo.machine.queries import changed
from tests.helpers.machines import invented
from tests.helpers.specs import codes, diagnose, geometry_of, run, run_request, validate_text

HEAD = """
chunks: {a: {location: gpu0, size: 2MiB}, b: {location: gpu1, size: 4MiB}}
access: {kv: {gpu0: rw}}
"""
EXCEEDING = "managed: {m: {size: 500GiB, prefer: gpu0, oversubscribe: true}}"


def mixed() -> Machine:
    """A machine of a GPU with granules of 2 MiB and one with granules of 4 MiB."""
    fine, coarse = invented(2), invented(2, granule=4 * MiB)
    return fine.model_copy(update={"devices": [fine.devices[0], coarse.devices[1]]})


@pytest.mark.parametrize(
    ("range_", "align"),
    [("size: 8MiB", 4 * MiB), ("size: 8MiB, align: 2MiB", 4 * MiB), ("size: 8MiB, align: 16MiB", 16 * MiB)],
)
def test_a_range_is_aligned_to_the_granule_of_its_chunks(range_: str, align: int) -> None:
    text = f"ranges: {{first: {{size: 2MiB}}, kv: {{{range_}}}}}\nmap: {{first: a, kv: [b, a]}}{HEAD}"
    made = run_request(text, mixed())
    (_, step) = (step for step in made.plan.steps if isinstance(step, ReserveRange))
    assert step.align == align
    assert run(made, mixed()).report.exit_code == 0


def test_a_range_of_the_smallest_granule_has_no_alignment() -> None:
    found = validate_text(
        f"ranges: {{kv: {{size: 2MiB}}, other: {{size: 4MiB}}}}\nmap: {{kv: a, other: b}}{HEAD}", mixed()
    )
    assert found.geometry is not None
    assert [run.align for run in found.geometry.of(RangeGroup).values()] == [0, 4 * MiB]
    assert planner.plan(found.geometry, mixed()).steps


def test_an_entry_after_a_smaller_granule_is_refused_with_the_next_offset() -> None:
    (diagnostic,) = (
        diagnostic
        for diagnostic in diagnose(f"ranges: {{kv: {{size: 8MiB}}}}\nmap: {{kv: [a, b]}}{HEAD}", mixed())
        if diagnostic.severity == "error"
    )
    assert (diagnostic.code, diagnostic.path) == ("MT303", ("map", "kv", 1))
    assert diagnostic.message == "range 'kv': 'b' would begin at 2MiB, which is not a multiple of 4MiB"
    assert diagnostic.help == "write '{chunk: b, offset: 4MiB}'"
    assert codes(f"ranges: {{kv: {{size: 8MiB}}}}\nmap: {{kv: [a, {{chunk: b, offset: 4MiB}}]}}{HEAD}", mixed()) == []


@pytest.mark.parametrize("size", ["2 granules", "8MiB"])
def test_a_range_in_granules_of_an_unknown_chunk_is_not_checked(size: str) -> None:
    text = f"ranges: {{kv: {{size: {size}}}}}\nmap: {{kv: [b, a, a]}}{HEAD}"
    assert codes(text, mixed()) == []
    assert codes(text.replace("4MiB", "4Mib"), mixed()) == ["MT105"]


def test_managed_memory_that_exceeds_its_gpu_takes_nothing_from_shares() -> None:
    text = "chunks: {a: {location: gpu0, size: 90%}}\n"
    alone, beside = (geometry_of(text + more).of(ChunkGroup)["a"].size for more in ("", EXCEEDING))
    assert beside == alone


@pytest.mark.parametrize(("locked", "whole"), [(4 * MiB, 4 * MiB), (None, 8 * MiB)])
def test_shares_of_the_host_are_of_what_may_be_page_locked(locked: int | None, whole: int) -> None:
    machine = changed(invented(1), host_bytes=8 * MiB, pinned_bytes=locked)
    assert memory_budgets(geometry_of("", machine), machine).by_location[WHOLE_HOST].whole == whole


def test_the_memory_of_a_location_has_the_uses_and_shares_of_all_processes() -> None:
    text = """
processes:
  p: {count: 2, chunks: {s: {location: [gpu0, gpu1, gpu0], size: 10%, count: 3}, h: {location: host:0, size: 2MiB}}}
  q:
    chunks: {t: {location: gpu0, size: 5%}, x: {location: host, size: 4MiB}}
    managed: {m: {size: 2MiB, prefer: host, oversubscribe: true}}
"""
    machine = changed(invented(2), host_bytes=16 * MiB)
    node = machine.host["host:0"].model_copy(update={"memory_bytes": 5 * MiB})
    machine = changed(machine, host=machine.host | {"host:0": node})
    found = memory_budgets(geometry_of(text, machine), machine)
    assert found.by_location == {
        gpu(0): MemoryBudget(80 << 30, 3 * CONTEXT_BYTES, 25_000),
        gpu(1): MemoryBudget(80 << 30, 2 * CONTEXT_BYTES, 20_000),
        Location(LocationKind.HOST_NUMA, 0): MemoryBudget(5 * MiB, 4 * MiB, 0),
        WHOLE_HOST: MemoryBudget(16 * MiB, 10 * MiB, 0),
    }
    assert found.spread["processes", "p", "chunks", "s"] == ((gpu(0), gpu(1), gpu(0)),)
    assert MemoryBudget(1, 2, 0).left == 0


def test_locations_of_budgets_have_their_nodes() -> None:
    text = "processes: {p: {count: 2, nodes: [a, b], chunks: {s: {location: gpu0, size: 10%}}}}"
    found = memory_budgets(geometry_of(text, invented(1)), invented(1))
    assert {*found.by_location} == {gpu(0).on("a"), gpu(0).on("b")}
    assert [*found.spread.values()] == [((gpu(0).on("a"),), (gpu(0).on("b"),))]


def test_properties_without_a_recorded_granularity_have_that_of_plain_chunks() -> None:
    assert granule(invented(1, granule=4 * MiB), Properties(gpu(0), HandleType.WIN32)) == 4 * MiB
    unknown = (gpu(7), gpu(7))
    assert granule(invented(1), Properties(unknown[0])) == 2 * MiB
    assert granularity_note(2 * MiB, unknown).count("gpu7") == 1
