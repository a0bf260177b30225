"""Pinned host memory: its entries, what counts as memory of the host, and what states offload to it."""

from __future__ import annotations

import ctypes
import os

import pytest

from memtopo import planner
from memtopo.common.units import MiB
from memtopo.driver.handles import Handle
from memtopo.driver.ledger import Ledger
from memtopo.driver.types import Access, DriverError, HostFlags, Location, LocationKind, RegisterFlags, gpu
from memtopo.drivers.sim import SimDriver
from memtopo.geometry.groups import from_outside
from memtopo.kinds.layout import HandleSource, Layout
from memtopo.kinds.pinned import PinnedGroup
from memtopo.kinds.pinned.steps import (
    FILES,
    PINNED,
    AllocatePinned,
    MapFile,
    RegisterMemory,
    SharedFile,
    UnsuitableFile,
    unmap_file,
)
from memtopo.kinds.runs import remaining
from memtopo.kinds.states.groups import OffloadArea, kept_at
from memtopo.kinds.step import HandleReference, Phase
from memtopo.plans.transition import transition
from tests.helpers.failing_driver import Failing
from tests.helpers.machines import invented
from tests.helpers.specs import clean_geometry, codes, plan_of, steps_of

HOST = Location(LocationKind.HOST)


def test_an_entry_becomes_a_group_of_its_gpus() -> None:
    text = "devices: {d: 1}\npinned: {p: {size: 3B, count: 2, accessed_by: [d, gpu0, gpu1], write_combined: true}}"
    p = clean_geometry(text).of(PinnedGroup)["p"]
    assert (p.count, p.counted, p.size, p.gpus, p.write_combined, p.registered) == (2, True, 3, (1, 0), True, False)
    assert p.contexts == {0, 1}
    assert {each.location: each.access for each in p.own_access(0, None)} == dict.fromkeys(
        (gpu(0), gpu(1), HOST), Access.RW
    )


def test_memory_is_accessed_by_the_first_visible_gpu_by_default() -> None:
    assert clean_geometry("pinned: {p: {size: 2MiB}}").of(PinnedGroup)["p"].gpus == (0,)
    text = "processes: {q: {count: 2, devices: {d: [gpu3, gpu2]}, visible: d, pinned: {p: {size: 2MiB}}}}"
    found = clean_geometry(text, invented(4)).processes.values()
    assert [each.of(PinnedGroup)["p"].gpus for each in found] == [(3,), (2,)]


def test_memory_of_a_file_is_that_of_another_program() -> None:
    """It takes nothing of the host, and checks do not write it"""
    text = "pinned: {p: {file: /dev/shm/f, offset: 4096B, size: 5000B, count: 3, read_only: true}}"
    p = clean_geometry(text).of(PinnedGroup)["p"]
    assert (p.file, p.offset, p.size, p.count, p.whole) == ("/dev/shm/f", 4096, 5000, 3, 15000)
    assert p.produced
    assert p.shares() == p.demand() == {}
    assert {each.access for each in p.own_access(0, None)} == {Access.R}
    assert planner.plan(clean_geometry(text), invented(1)).memory == {}


@pytest.mark.parametrize(
    ("source", "holder", "export"), [("engine", "engine", "p"), ("engine/r", "engine", "r"), ("/s/x/r", "/s/x", "r")]
)
def test_memory_from_a_producer_is_an_export_via_memfd(source: str, holder: str, export: str) -> None:
    p = clean_geometry(f"pinned: {{p: {{from: {source}, size: 2MiB}}}}").of(PinnedGroup)["p"]
    assert p.origin
    assert (p.origin.holders, p.origin.export, p.origin.via, from_outside(p)) == ((holder,), export, "memfd", True)


def test_each_object_is_allocated_for_all_gpus() -> None:
    plan = plan_of(
        "pinned: {p: {size: 5B, count: 2, accessed_by: [gpu1, gpu0]}, w: {size: 2MiB, write_combined: true}}",
        invented(2),
    )
    *ps, w = steps_of(plan, AllocatePinned)
    assert [(each.label, each.size, each.gpus, each.flags) for each in ps] == [
        ("p.0", 5, (1, 0), PINNED),
        ("p.1", 5, (1, 0), PINNED),
    ]
    assert w.flags == PINNED | HostFlags.WRITECOMBINED


def test_a_file_is_mapped_and_registered_once_for_all_its_objects() -> None:
    text = (
        "pinned: {p: {file: /f, offset: 8192B, size: 100B, count: 3, read_only: true}, q: {from: camera, size: 2MiB}}"
    )
    plan = plan_of(text, invented(1))
    of_path, q = steps_of(plan, MapFile)
    assert (of_path.size, of_path.source, of_path.offset, of_path.writable) == (300, "/f", 8192, False)
    assert isinstance(q.source, HandleReference)
    assert (q.source.holder, q.source.export, q.size, q.writable) == ("camera", "q", 2 * MiB, True)
    registered, _ = steps_of(plan, RegisterMemory)
    assert (registered.size, registered.labels) == (300, ("p.0", "p.1", "p.2"))
    assert registered.flags == RegisterFlags.PORTABLE | RegisterFlags.DEVICEMAP | RegisterFlags.READ_ONLY
    assert set(registered.blocks()) == {of_path.leak_name()}
    order = [type(step) for step in plan.steps]
    assert order.index(MapFile) < order.index(RegisterMemory)


def test_a_path_that_the_system_cannot_have_is_refused() -> None:
    assert codes(f"pinned: {{p: {{file: '/{'x' * 4095}', size: 2MiB}}}}") == ["MT103"]
    assert codes('pinned: {p: {file: "/a\\nb", size: 2MiB}}') == ["MT103"]
    assert codes(f"pinned: {{p: {{file: '/{'x' * 4094}', size: 2MiB}}}}") == []
    assert codes(f"pinned: {{p: {{file: '/{'ä' * 2048}', size: 2MiB}}}}") == ["MT103"]


LAYOUT = """
ranges: {kv: {size: 64MiB}}
chunks: {w: {location: gpu0, size: 16MiB}, x: {location: gpu0, size: 16MiB, count: 2}}
map: {kv: [w, x]}
access: {kv: {gpu0: rw}}
"""


def test_offloaded_chunks_have_a_part_of_pinned_memory_each() -> None:
    """States that offload the same chunks share theirs"""
    states = "states: {a: {offload: {w: p, x.0: p}}, b: {offload: {x.0: p, x.1: p}}}"
    text = f"{LAYOUT}pinned: {{p: {{size: 48MiB}}}}\n{states}"
    geometry = clean_geometry(text)
    areas = geometry.of(OffloadArea)
    assert kept_at(areas.values()) == {"w@p": ("p", 0), "x.0@p": ("p", 16 * MiB), "x.1@p": ("p", 32 * MiB)}
    assert {area.keeper for area in areas.values()} == {("pinned memory", "p")}
    assert all(area.demand() == {} for area in areas.values())
    assert planner.plan(geometry, invented(1)).memory["host"] == 48 * MiB
    assert codes(text.replace("48MiB", "47MiB")) == ["MT717"]


def test_a_device_comes_before_pinned_memory_of_the_same_name() -> None:
    text = f"devices: {{p: gpu1}}\n{LAYOUT}pinned: {{p: {{size: 1B}}}}\nstates: {{a: {{offload: {{w: p}}}}}}"
    (area,) = clean_geometry(text).of(OffloadArea).values()
    assert (area.location, area.inside) == (gpu(1), None)


class Sent(HandleSource):
    """Handle source with one descriptor, which stays open."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def take(self, holder: str, export: str, index: int) -> Handle:
        del holder, export, index
        return Handle(self.fd)


@pytest.mark.parametrize("sent", [False, True])
def test_objects_of_a_file_are_its_bytes_and_its_descriptor_stays_with_the_other_program(sent: bool) -> None:
    fd = os.memfd_create("ring")
    os.truncate(fd, 16384)
    os.pwrite(fd, b"first", 4096)
    os.pwrite(fd, b"second", 8192)
    source = "from: camera, size: 12288B" if sent else f"file: /proc/self/fd/{fd}, size: 4096B, count: 2, offset: 4096B"
    plan = plan_of(f"pinned: {{p: {{{source}}}}}", invented(1))
    (mapped,), (registered,) = steps_of(plan, MapFile), steps_of(plan, RegisterMemory)
    with SimDriver(invented(1)) as simulator:
        simulator.init()
        driver, layout = Failing(simulator, only={"mem_host_register", "mem_host_unregister"}), Layout()
        ledger, layout.handle_source = Ledger(driver), Sent(fd)
        layout.contexts[0] = simulator.device_primary_ctx_retain(0)
        before = len(os.listdir("/proc/self/fd"))
        mapped.do(ledger, layout)
        driver.at = 1
        with pytest.raises(DriverError):
            registered.do(ledger, layout)
        assert layout.memory == {}
        registered.undo(ledger, layout)
        registered.do(ledger, layout)
        address = layout.of(FILES)["p"].address
        labels = {"p": 0} if sent else {"p.0": 0, "p.1": 4096}
        assert {label: found.address - address for label, found in layout.memory.items()} == labels
        assert ctypes.string_at(layout.address("p") + 4096 if sent else layout.address("p.0"), 5) == b"first"
        ctypes.memmove(layout.address("p") + 8192 if sent else layout.address("p.1"), b"SECOND", 6)
        assert os.pread(fd, 6, 8192) == b"SECOND"
        assert {each.expected == each.observed for each in mapped.check(ledger, layout)} == {True}
        os.truncate(fd, 8192)
        assert {each.expected == each.observed for each in mapped.check(ledger, layout)} == {False}
        driver.at = driver.calls + 1
        with pytest.raises(DriverError):
            registered.undo(ledger, layout)
        assert {*layout.memory} == {*labels}
        registered.undo(ledger, layout)
        mapped.undo(ledger, layout)
        mapped.undo(ledger, layout)
        assert (layout.memory, layout.of(FILES), ledger.empty) == ({}, {}, True)
        assert len(os.listdir("/proc/self/fd")) == before
        with pytest.raises(UnsuitableFile, match="are declared"):
            mapped.do(ledger, layout)
        assert (len(os.listdir("/proc/self/fd")), os.pread(fd, 5, 4096)) == (before, b"first")
    os.close(fd)


def test_a_file_that_is_mapped_elsewhere_is_unregistered_before_and_registered_again() -> None:
    text = "pinned: {p: {file: /dev/shm/f, size: 4096B, offset: 4096B}}"
    plans = (plan_of(each, invented(1)) for each in (text, text.replace("offset: 4096B", "offset: 8192B")))
    change = transition(*(plan.steps for plan in plans))
    undone, done = ([type(step) for step in steps if step.phase is Phase.IMPORT] for steps in (change.undo, change.do))
    assert (undone, done) == ([RegisterMemory, MapFile], [MapFile, RegisterMemory])


def test_memory_of_a_producer_ends_with_the_connection_to_it() -> None:
    plan = plan_of("pinned: {p: {from: camera, size: 4096B}}", invented(1))
    steps = steps_of(plan, MapFile, RegisterMemory)
    assert [*remaining(steps, [("holder", "camera")])] == []


def test_a_file_that_cannot_be_unmapped_stays_open() -> None:
    reading, writing = os.pipe()
    with pytest.raises(OSError, match="Invalid argument"):
        unmap_file(SharedFile(reading, 1, 4096))
    os.close(reading)
    os.close(writing)
