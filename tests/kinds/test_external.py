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
from memtopo.kinds.external import MEMORY_KINDS, ExternalObject, produced
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
from memtopo.machine import Trial
from tests.helpers.external_specs import FAILED, FRAME, NEVER, TIMELINE, semaphores
from tests.helpers.failing_driver import Failing
from tests.helpers.in_process_producer import InProcessProducer, camera
from tests.helpers.machines import invented
from tests.helpers.specs import codes, diagnose, geometry_of, plan_of, steps_of


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
    assert [each[:3] for each in frame.mapped] == [
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
    assert list(produced(found)) == [frame, other, ready, taken]


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


@pytest.mark.parametrize("via", [via for via in MEMORY_KINDS if via != "opaque_fd"])
def test_memory_handle_types_that_linux_cannot_import_are_refused_with_the_reason(via: str) -> None:
    """Fact 54."""
    (diagnostic,) = diagnose(FRAME.replace("opaque_fd", via))
    assert (diagnostic.code, diagnostic.path) == ("MT702", ("external", "frame", "via"))
    assert "NOT_SUPPORTED" in diagnostic.notes[0]
    assert ("Windows" in diagnostic.notes[0]) == (via not in ("dmabuf", "dma_buf", "nvscibuf"))


DMABUF = FRAME.replace("opaque_fd", "dmabuf")
BINARY = TIMELINE.replace("timeline_fd", "opaque_fd").replace("signal: 1", "signal: true")

NO_TIMELINES = {"TIMELINE_SEMAPHORE_INTEROP_SUPPORTED": 0}


@pytest.mark.parametrize(
    ("text", "attributes", "trials", "expected"),
    [
        (FRAME, {}, {"external-memory": FAILED}, ["MT702"]),
        (FRAME, NO_TIMELINES, {"external-memory": NEVER}, []),
        (DMABUF, {}, {}, ["MT702"]),
        (DMABUF, {}, {"external-dmabuf": FAILED}, ["MT702"]),
        (DMABUF, {}, {"external-dmabuf": Trial(works=True), "external-memory": FAILED}, []),
        (TIMELINE, {}, {"external-semaphore": FAILED}, ["MT702"]),
        (TIMELINE, NO_TIMELINES, {}, ["MT702"]),
        (TIMELINE, NO_TIMELINES, {"external-semaphore": Trial(works=True)}, []),
        (TIMELINE, {}, {"external-semaphore": NEVER}, []),
        (BINARY, NO_TIMELINES, {}, []),
        (BINARY, {}, {"external-semaphore": FAILED}, ["MT702"]),
    ],
)
def test_a_trial_decides_and_without_one_timelines_must_be_advertised(
    text: str, attributes: dict[str, int], trials: dict[str, Trial], expected: list[str]
) -> None:
    assert codes(text, invented(1, attributes=attributes, trials=trials)) == expected


@pytest.mark.parametrize(
    ("part", "help"),
    [
        ("{size: 8388609B}", "write 'size: 8MiB' at most"),
        ("{offset: 4MiB, size: 5MiB}", "write 'size: 4MiB' at most"),
        ("{offset: 8388607B, size: 2B}", "write 'size: 1B' at most"),
        ("{offset: 8MiB, size: 1B}", None),
        ("{offset: 18446744073709551615B, size: 18446744073709551615B}", None),
    ],
)
def test_parts_end_within_their_object(part: str, help: str | None) -> None:
    (diagnostic,) = diagnose(FRAME.replace("8MiB}", f"8MiB, buffers: {{y: {part}}}}}"))
    assert (diagnostic.code, diagnostic.path, diagnostic.help) == (
        "MT703",
        ("external", "frame", "buffers", "y", "size"),
        help,
    )
    assert diagnostic.labels[0].path == ("external", "frame", "size")
    assert codes(FRAME.replace("8MiB}", "8MiB, buffers: {y: {size: 8MiB}, z: {offset: 8388607B, size: 1B}}}")) == []


@pytest.mark.parametrize(("part", "expected"), [("{size: 1MiB}", []), ("{offset: 1MiB, size: 1MiB}", ["MT703"])])
def test_parts_of_a_dedicated_object_begin_with_it(part: str, expected: list[str]) -> None:
    assert codes(FRAME.replace("8MiB}", f"8MiB, dedicated: true, buffers: {{y: {part}}}}}")) == expected


def test_what_is_wrong_beside_a_device_that_does_not_exist_is_reported_too() -> None:
    assert codes(FRAME.replace("gpu0", "gpu7").replace("opaque_fd", "opaque_win32")) == ["MT401", "MT702"]


def test_a_producer_cannot_have_the_name_of_a_process() -> None:
    text = f"processes:\n  camera: {{buffers: {{b: {{location: gpu0, size: 1MiB}}}}}}\n  p: {{{FRAME.strip()}}}\n"
    (diagnostic,) = diagnose(text)
    assert (diagnostic.code, diagnostic.path) == ("MT203", ("processes", "p", "external", "frame", "from"))
    assert codes(text.replace("from: camera", "from: camera/frame")) == ["MT203"]
    assert codes(text.replace("from: camera", "from: ./camera/frame")) == []


@pytest.mark.parametrize(
    ("one", "other", "message"),
    [
        (
            "external: {%s: {from: %s, via: opaque_fd, device: gpu0, size: 8MiB}}",
            "size: 4MiB",
            "size is 4MiB here and 8MiB",
        ),
        (
            "external: {%s: {from: %s, via: opaque_fd, device: gpu0, size: 8MiB}}",
            "device: gpu1",
            "device is gpu1 here and gpu0",
        ),
        (
            "external: {%s: {from: %s, via: opaque_fd, device: gpu0, size: 8MiB}}",
            "dedicated: true",
            "is dedicated here",
        ),
        (
            "semaphores: {%s: {from: %s, via: timeline_fd, device: gpu0}}",
            "via: opaque_fd",
            "is a binary semaphore here",
        ),
        ("semaphores: {%s: {from: %s, via: timeline_fd, device: gpu0}}", "device: gpu1", None),
        ("semaphores: {%s: {from: %s, via: timeline_fd, device: gpu0}}", "signal: 4", None),
        ("external: {%s: {from: %s, via: opaque_fd, device: gpu0, size: 8MiB}}", "buffers: {y: {size: 1MiB}}", None),
    ],
)
def test_entries_of_one_object_declare_equal_properties(one: str, other: str, message: str | None) -> None:
    first, again = one % ("f", "camera"), one % ("g", "camera/f")
    key = other.partition(":")[0]
    written = [each for each in again.removesuffix("}}").split(", ") if not each.startswith(f"{key}:")]
    text = f"processes:\n  a: {{{first}}}\n  b: {{{', '.join([*written, other])}}}}}}}\n"
    found = diagnose(text)
    assert [diagnostic.code for diagnostic in found] == ["MT707"] * (message is not None), found
    assert message is None or message in found[0].message
    assert codes(text.replace("camera/f", "camera/h")) == []


def test_one_export_is_not_both_memory_and_semaphore() -> None:
    (diagnostic,) = diagnose(FRAME + "semaphores: {s: {from: camera/frame, via: timeline_fd, device: gpu0}}")
    assert (diagnostic.code, diagnostic.path) == ("MT707", ("semaphores", "s"))
    assert diagnostic.message == "'s' is camera/frame, whose kind is a timeline semaphore here and memory for 'frame'"


@pytest.mark.parametrize("entry", ["device: host", "device: host:0", "device: gpu9", "device: nobody"])
def test_the_device_is_an_existing_gpu(entry: str) -> None:
    for text in (FRAME, TIMELINE):
        assert codes(text.replace("device: gpu0", entry)) in (["MT405"], ["MT401"], ["MT201"])


def test_unused_objects_and_semaphores_give_no_warning() -> None:
    assert codes("devices: {d: 0}\n" + (FRAME + semaphores("")).replace("gpu0", "d")) == []


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
