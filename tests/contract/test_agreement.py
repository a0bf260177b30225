"""Agreement of validation with the driver: each refuses what the other refuses."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from memtopo import machine, probe
from memtopo.common.units import GiB, KiB, MiB, TiB
from memtopo.driver.protocol import Driver
from memtopo.driver.types import Access, DriverError, Grant, HandleType, Location, LocationKind, Properties, gpu
from memtopo.executor import Execution, StepFailed
from memtopo.kinds.chunks.steps import CreateChunk
from memtopo.kinds.mappings.steps import MapChunk, SetAccess
from memtopo.kinds.resources import ReserveRange
from memtopo.kinds.step import Step
from memtopo.machine import queries
from memtopo.planner import Plan
from memtopo.rules import validate
from tests.helpers.specs import document

M = 2 * MiB
HOST, NODE = Location(LocationKind.HOST), Location(LocationKind.HOST_NUMA, 0)
FABRIC, FD, WIN32 = HandleType.FABRIC, HandleType.FD, HandleType.WIN32
FIRST = "ranges: {a: {size: 8MiB}}\nchunks: {c: {location: gpu0, size: 4MiB}}\n"
INVALID, UNSUPPORTED = "CUDA_ERROR_INVALID_VALUE", "CUDA_ERROR_NOT_SUPPORTED"


def reserve(size: int = 8 * MiB, align: int = 0, address: int = 0) -> Step:
    return ReserveRange((), "a", size, align, address, fixed=False)


def create(size: int = 4 * MiB, properties: Properties = Properties(gpu(0)), label: str = "c") -> Step:  # noqa: B008
    return CreateChunk((), label, size, properties)


def mapped(offset: int, size: int = 4 * MiB, label: str = "c") -> Step:
    return MapChunk((), "a", offset, label, size, ())


def granted(offset: int, size: int, place: Location = gpu(0)) -> Step:  # noqa: B008
    return SetAccess((), "a", offset, size, (Grant(place, Access.RW),))


class Case(NamedTuple):
    """A bad spec with its code, and the same layout as calls with the driver's answer to the last one."""

    code: str
    spec: str
    steps: list[Step]
    error: str


def chunk(code: str, written: str, size: int, properties: Properties, error: str = INVALID) -> Case:
    return Case(code, f"chunks: {{c: {{{written}}}}}", [create(size, properties)], error)


def range_(code: str, written: str, step: Step, error: str = INVALID) -> Case:
    return Case(code, f"ranges: {{a: {{{written}}}}}", [step], error)


def placed(offset: str, steps: list[Step], code: str, error: str = INVALID) -> Case:
    return Case(code, f"{FIRST}map: {{a: [c, {{chunk: c, offset: {offset}}}]}}", [reserve(), create(), *steps], error)


def access(code: str, written: str, step: Step, error: str = INVALID) -> Case:
    return Case(
        code, f"{FIRST}map: {{a: [c]}}\naccess: {{a: {written}}}", [reserve(), create(), mapped(0), step], error
    )


G = gpu(0)
CASES = [
    chunk("MT301", "location: gpu0, size: 3MiB", 3 * MiB, Properties(G)),
    chunk("MT301", "location: gpu0, size: 1B", 1, Properties(G)),
    chunk("MT301", "location: gpu0, size: 2097153B", M + 1, Properties(G)),
    chunk("MT301", "location: gpu0, size: 64KiB, handles: fd", 64 * KiB, Properties(G, FD)),
    chunk("MT301", "location: gpu0, size: 3MiB, rdma: true", 3 * MiB, Properties(G, rdma=True)),
    chunk("MT301", "location: gpu0, size: 3MiB, compressible: true", 3 * MiB, Properties(G, compressible=True)),
    chunk("MT301", "location: host:0, size: 4KiB", 4 * KiB, Properties(NODE)),
    chunk("MT301", "location: host, size: 5MiB", 5 * MiB, Properties(HOST)),
    chunk("MT401", "location: gpu99, size: 2MiB", M, Properties(gpu(99)), "CUDA_ERROR_INVALID_DEVICE"),
    chunk("MT401", "location: host:99, size: 2MiB", M, Properties(Location(LocationKind.HOST_NUMA, 99))),
    chunk("MT402", "location: gpu0, size: 32TiB", 32 * TiB, Properties(G), "CUDA_ERROR_OUT_OF_MEMORY"),
    chunk("MT402", "location: gpu0, size: 1024GiB", 1024 * GiB, Properties(G), "CUDA_ERROR_OUT_OF_MEMORY"),
    chunk("MT404", "location: gpu0, size: 2MiB, handles: fabric", M, Properties(G, FABRIC), "CUDA_ERROR_NOT_PERMITTED"),
    chunk(
        "MT404", "location: gpu0, size: 2MiB, handles: [fd, fabric]", M, Properties(G, FD | FABRIC),
        "CUDA_ERROR_NOT_PERMITTED",
    ),
    chunk("MT404", "location: gpu0, size: 2MiB, handles: win32", M, Properties(G, WIN32)),
    chunk("MT404", "location: host, size: 2MiB, handles: fd", M, Properties(HOST, FD)),
    chunk("MT405", "location: host, size: 2MiB, rdma: true", M, Properties(HOST, rdma=True)),
    chunk("MT405", "location: host:0, size: 2MiB, rdma: true", M, Properties(NODE, rdma=True)),
    chunk("MT405", "location: host:0, size: 2MiB, compressible: true", M, Properties(NODE, compressible=True)),
    range_("MT302", "size: 1B", reserve(1)),
    range_("MT302", "size: 64KiB", reserve(64 * KiB)),
    range_("MT302", "size: 2112KiB", reserve(M + 64 * KiB)),
    range_("MT306", "size: 2MiB, align: 6MiB", reserve(M, 6 * MiB)),
    range_("MT307", "size: 2MiB, address: 0x10000001000", reserve(M, address=0x10000001000)),
    range_("MT307", "size: 2MiB, align: 4MiB, address: 0x20000200000", reserve(M, 4 * MiB, 0x20000200000)),
    range_("MT310", "size: 128TiB", reserve(128 * TiB), "CUDA_ERROR_OUT_OF_MEMORY"),
    placed("64KiB", [mapped(64 * KiB)], "MT303"),
    placed("1MiB", [mapped(MiB)], "MT303"),
    placed("0", [mapped(0), mapped(0)], "MT304"),
    placed("2MiB", [mapped(0), mapped(2 * MiB)], "MT304"),
    access("MT308", "[{size: 2MiB, grant: {gpu0: rw}}]", granted(0, 2 * MiB)),
    access("MT308", "[{offset: 2MiB, size: 2MiB, grant: {gpu0: r}}]", granted(2 * MiB, 2 * MiB)),
    access("MT309", "[{size: 10MiB, grant: {gpu0: rw}}]", granted(0, 10 * MiB)),
    access("MT401", "{gpu99: rw}", granted(0, 4 * MiB, gpu(99))),
    access("MT406", "{host: rw}", granted(0, 4 * MiB, HOST), UNSUPPORTED),
    access("MT406", "{host:0: rw}", granted(0, 4 * MiB, NODE), UNSUPPORTED),
]  # fmt: skip


@pytest.fixture(scope="module")
def tried() -> dict[str, machine.Machine]:
    return {}


def _simulated() -> machine.Machine:
    # Not above: a machine with a GPU may lack what the simulator's machines are read with.
    from tests.helpers.machines import invented

    return invented(2)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.code}-{case.error.removeprefix('CUDA_ERROR_')}")
def test_a_spec_refused_by_a_driver_rule_is_refused_by_the_driver(
    case: Case, driver: Driver, on_hardware: bool, tried: dict[str, machine.Machine]
) -> None:
    """Facts 1 to 20: the calls of the spec fail without validation."""
    if "facts" not in tried:
        known = queries.read(driver) if on_hardware else _simulated()
        tried["facts"] = probe.probe(known, simulated=not on_hardware).machine
    found = validate(document(case.spec), tried["facts"]).diagnostics
    assert case.code in [fault.code for fault in found], found
    execution = Execution(Plan("wrong", tuple(case.steps), {}, ()), driver)
    with pytest.raises(StepFailed) as failed:
        execution.build()
    assert failed.value.step is case.steps[-1]
    assert isinstance(failed.value.error, DriverError)
    assert failed.value.error.name == case.error
    assert not execution.take_down().leaks
