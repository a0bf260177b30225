"""External memory: resolution, rules about handle types and parts, and rules about all external objects."""

from __future__ import annotations

import os
import time

import pytest

from memtopo.common.errors import MemtopoError
from memtopo.common.units import MiB
from memtopo.driver.ledger import Ledger
from memtopo.driver.types import DriverError, gpu
from memtopo.driver.wrappers import Forwarder
from memtopo.drivers.sim import SimDriver, external_api
from memtopo.kinds.external import ExternalObject, ProducedGroup
from memtopo.kinds.external.semaphores import ImportedSemaphore
from memtopo.kinds.external.steps import (
    DESCRIPTORS,
    GRACE,
    SEMAPHORE_HANDLES,
    AwaitStream,
    Descriptor,
    DuplicateDescriptor,
    ImportObject,
    MapExternal,
)
from memtopo.kinds.layout import Layout
from memtopo.kinds.resources import STREAMS, WAITING, Wait
from memtopo.kinds.step import HandleReference
from tests.helpers.external_specs import FRAME, semaphores
from tests.helpers.failing_driver import Failing
from tests.helpers.in_process_producer import InProcessProducer, camera
from tests.helpers.machines import invented
from tests.helpers.specs import codes, geometry_of, plan_of, steps_of


def test_entries_become_groups_with_place_size_and_origin() -> None:
    text = """
devices: {prefill: 1}
external:
  frame: {from: camera, via: opaque_fd, device: prefill, size: 8388609B, buffers: {y: {size: 4MiB},
    uv: {offset: 1B, size: 8MiB}}}
  other: {from: /run/x.sock/frame, via: opaque_fd, device: gpu0, size: 1B, dedicated: true}
semaphores:
  ready: {from: camera, via: timeline_fd, device: prefill, wait: 1, signal: 2}
  taken: {from: camera/done, via: opaque_fd, device: gpu0, signal: true}
"""
    found = geometry_of(text)
    frame, other = found.of(ExternalObject).values()
    assert (frame.size, frame.location, frame.dedicated) == (8 * MiB + 1, gpu(1), False)
    assert [(each.label, each.offset, each.size) for each in frame.mapped] == [
        ("frame", 0, 8 * MiB + 1), ("frame.y", 0, 4 * MiB), ("frame.uv", 1, 8 * MiB)
    ]  # fmt: skip
    assert frame.buffers[1].path == ("external", "frame", "buffers", "uv")
    assert (frame.origin.holders, frame.origin.export, frame.origin.via) == (("camera",), "frame", "opaque_fd")
    assert (other.origin.holders, other.origin.export, other.dedicated) == (("/run/x.sock",), "frame", True)
    ready, taken = found.of(ImportedSemaphore).values()
    assert (ready.location, ready.timeline, ready.wait, ready.signal) == (gpu(1), True, 1, 2)
    assert (ready.origin.export, ready.origin.via) == ("ready", "timeline_fd")
    assert (taken.timeline, taken.wait, taken.signal) == (False, None, 0)
    assert (taken.origin.export, taken.origin.via, taken.origin.each, taken.origin.siblings) == (
        "done", "opaque_fd", 1, False
    )  # fmt: skip
    assert found.gpus == [0, 1]
    assert list(found.instances_of(ProducedGroup)) == [frame, other, ready, taken]


def test_instances_of_a_counted_process_use_their_own_device() -> None:
    text = "processes:\n  p: {count: 2, devices: {d: [gpu0, gpu1]}, semaphores: {f: {from: camera, via: timeline_fd, "
    text += "device: d}}}"
    assert [each.of(ImportedSemaphore)["f"].location for each in geometry_of(text).processes.values()] == [
        gpu(0),
        gpu(1),
    ]
    assert codes(text.replace("semaphores", "external").replace("timeline_fd", "opaque_fd, size: 1MiB")) == ["MT707"]
    hidden = text.replace("semaphores:", "visible: gpu1, semaphores:").replace("device: d", "device: gpu0")
    assert set(codes(hidden)) == {"MT606"}


def test_a_descriptor_whose_number_another_file_has_is_not_closed() -> None:
    """The driver may have closed the duplicate in an import that failed (fact 54)."""
    step = DuplicateDescriptor((), "frame", HandleReference("camera", "frame", 0, "camera/frame"))
    layout, fd = Layout("frames"), os.memfd_create("another")
    layout.of(DESCRIPTORS)["frame"] = Descriptor(fd, (0, 0, 0))
    with SimDriver(invented(1)) as driver:
        step.undo(driver, layout)
    os.close(fd)
    assert layout.of(DESCRIPTORS) == {}


def test_an_object_that_could_not_be_destroyed_is_not_destroyed_again() -> None:
    """A second call would end the process (fact 57); the duplicate of a descriptor is closed unless it is imported."""
    machine = invented(1)
    plan = plan_of(FRAME + semaphores(""), machine)
    copies, objects = steps_of(plan, DuplicateDescriptor), steps_of(plan, ImportObject)
    with camera(machine) as owner, SimDriver(machine) as simulator:
        simulator.init()
        driver, layout = Failing(simulator), Layout("frames")
        ledger, layout.handle_source = Ledger(driver), owner
        layout.contexts[0] = simulator.device_primary_ctx_retain(0)
        for copy, step in zip(copies, objects, strict=True):
            before = len(os.listdir("/proc/self/fd"))
            copy.do(ledger, layout)
            fd = layout.of(DESCRIPTORS)[copy.label].fd
            assert fd not in owner.given.values()
            copy.undo(ledger, layout)
            assert len(os.listdir("/proc/self/fd")) == before
            copy.do(ledger, layout)
            step.do(ledger, layout)
            assert layout.of(DESCRIPTORS) == {}
        (mapped,) = steps_of(plan, MapExternal)
        mapped.do(ledger, layout)
        mapped.undo(ledger, layout)
        assert layout.buffers == {}
        for step in objects:
            driver.at = driver.calls + 1
            with pytest.raises(DriverError):
                step.undo(ledger, layout)
            calls = driver.calls
            step.undo(ledger, layout)
            assert (driver.calls, step.objects(layout)) == (calls, {})


class LastSignal(Forwarder):
    """A driver at whose third query of a stream the signal of a producer arrives that has ended."""

    def __init__(self, driver: SimDriver, producer: InProcessProducer) -> None:
        super().__init__(driver)
        self.producer, self.queries = producer, 0

    def stream_query(self, stream: int) -> bool:
        self.queries += 1
        if self.queries == 3 and self.producer.left:
            external_api.signal(self.producer.given["ready"], 7)
        return bool(self._driver.stream_query(stream))


@pytest.mark.parametrize("left", [False, True])
def test_a_process_does_not_signal_for_a_producer_that_is_there_or_whose_last_signal_arrives(left: bool) -> None:
    machine = invented(1)
    plan = plan_of(semaphores("wait: 5"), machine)
    with camera(machine, signalled=0) as owner, SimDriver(machine) as simulator:
        simulator.init()
        driver, layout = LastSignal(simulator, owner), Layout("frames", handle_source=owner, timeout=0.02)
        for step in plan.steps:
            step.do(driver, layout)
        driver.wait_external_semaphore(layout.of(SEMAPHORE_HANDLES)["s0"], 5, layout.of(STREAMS)[0])
        layout.of(WAITING)[0] = Wait("s0", 5, "camera")
        driver.queries, owner.left, began = 0, left, time.monotonic()
        (wait,) = steps_of(plan, AwaitStream)
        if left:
            wait.undo(driver, layout)
        else:
            with pytest.raises(MemtopoError, match="'s0' of camera to reach 5, which was not signalled"):
                wait.undo(driver, layout)
            assert time.monotonic() - began < GRACE
        assert external_api.counter(owner.given["ready"]) == (7 if left else 0)
        external_api.signal(owner.given["ready"], 7)
        for step in reversed(plan.steps):
            step.undo(driver, layout)
