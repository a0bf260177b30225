"""Steps of managed memory, external objects, semaphores and streams."""

from __future__ import annotations

from memtopo import planner
from memtopo.common.units import MiB
from memtopo.driver.types import Advice, Location, LocationKind, MemAttach, MemoryHandleType, SemaphoreHandleType, gpu
from memtopo.kinds.external.steps import AwaitStream, DuplicateDescriptor, ImportMemory, ImportSemaphore, MapExternal
from memtopo.kinds.managed.steps import Advise, AllocateManaged, AttachStream, Prefetch
from memtopo.kinds.resources import Attach, CreateStream, LoadKernels, RetainContext, Synchronize
from memtopo.kinds.step import Phase
from tests.helpers.machines import invented
from tests.helpers.specs import plan_of, steps_of

MACHINE = invented(3)
HOST = Location(LocationKind.HOST)
TEXT = """
managed:
  m: {size: 2MiB, prefer: gpu1, accessed_by: [host, gpu0], read_mostly: true, prefetch: host}
  own: {size: 1MiB, attach: single, prefer: gpu0, prefetch: gpu0}
  h: {size: 4MiB, attach: host}
external:
  frame: {from: camera, via: opaque_fd, device: gpu2, size: 8MiB,
          buffers: {y: {offset: 1MiB, size: 4MiB}}}
  still: {from: /run/x.sock/picture, via: opaque_fd, device: gpu0, size: 2MiB, dedicated: true}
semaphores:
  ready: {from: camera, via: timeline_fd, device: gpu2, wait: 1, signal: 2}
  shown: {from: camera, via: opaque_fd, device: gpu0, signal: true}
buffers: {b: {location: gpu2, size: 2MiB}, c: {location: gpu0, size: 2MiB}}
"""
PLAN = plan_of(TEXT, MACHINE)


def test_gpus_of_managed_memory_and_semaphores_have_a_context() -> None:
    assert [step.device for step in PLAN.steps if isinstance(step, RetainContext)] == [0, 1, 2]


def test_a_gpu_has_one_stream_for_semaphores_and_single_managed_memory() -> None:
    steps = PLAN.steps
    assert [step.device for step in steps if isinstance(step, CreateStream)] == [0, 2]
    first = next(index for index, step in enumerate(steps) if isinstance(step, AllocateManaged))
    assert all(steps.index(step) < first for step in steps_of(PLAN, CreateStream))


def test_a_shared_resource_has_the_path_of_the_first_entry_that_needs_it() -> None:
    assert [step.path for step in steps_of(PLAN, CreateStream)] == [("managed", "own"), ("semaphores", "ready")]
    assert [step.path for step in steps_of(PLAN, Attach)] == [("external", "frame"), ("external", "still")]


def test_kernels_are_loaded_after_all_contexts_and_before_everything_else() -> None:
    plan = planner.with_kernels(PLAN, [0, 2])
    assert [(step.verb, step.describe().subject) for step in plan.steps[:5]] == [
        *(("retain context", f"gpu{device}") for device in range(3)),
        *(("load kernels", f"gpu{device}") for device in (0, 2)),
    ]
    assert [step for step in plan.steps if not isinstance(step, LoadKernels)] == list(PLAN.steps)


def test_managed_memory_is_allocated_then_advised_then_attached() -> None:
    steps = [step for step in PLAN.steps if isinstance(step, AllocateManaged)]
    assert [(step.label, step.size, step.device, step.attach) for step in steps] == [
        ("m", 2 * MiB, 1, MemAttach.GLOBAL), ("own", MiB, 0, MemAttach.HOST), ("h", 4 * MiB, 0, MemAttach.HOST),
    ]  # fmt: skip
    advice = [step for step in PLAN.steps if isinstance(step, Advise)]
    assert [(step.label, step.advice, step.location) for step in advice] == [
        ("m", Advice.SET_READ_MOSTLY, gpu(1)),
        ("m", Advice.SET_PREFERRED_LOCATION, gpu(1)),
        ("m", Advice.SET_ACCESSED_BY, HOST),
        ("m", Advice.SET_ACCESSED_BY, gpu(0)),
        ("own", Advice.SET_PREFERRED_LOCATION, gpu(0)),
    ]
    assert [step.path for step in advice][:2] == [("managed", "m", "read_mostly"), ("managed", "m", "prefer")]
    kinds = [type(step) for step in steps_of(PLAN, AllocateManaged, Advise, AttachStream, Prefetch)]
    assert kinds == [*[AllocateManaged] * 3, *[Advise] * 5, AttachStream, *[Prefetch] * 2]


def test_prefetches_follow_everything_else_in_the_attached_stream() -> None:
    moved = [step for step in PLAN.steps if isinstance(step, Prefetch)]
    assert [(step.label, step.location, step.device, step.own) for step in moved] == [
        ("m", HOST, 1, False),
        ("own", gpu(0), 0, True),
    ]
    settle = [type(step) for step in PLAN.steps if step.phase is Phase.SETTLE]
    assert settle == [Prefetch, Prefetch, Synchronize, Synchronize, Synchronize, AwaitStream]


def test_holders_are_attached_once_and_descriptors_duplicated_before_import() -> None:
    assert [step.holder for step in PLAN.steps if isinstance(step, Attach)] == ["camera", "/run/x.sock"]
    taken = [step for step in PLAN.steps if isinstance(step, DuplicateDescriptor)]
    assert [(step.label, step.source.text) for step in taken] == [
        ("frame", "camera/frame"), ("still", "/run/x.sock/picture"),
        ("ready", "camera/ready"), ("shown", "camera/shown"),
    ]  # fmt: skip
    memory = [step for step in PLAN.steps if isinstance(step, ImportMemory)]
    assert [(step.label, step.size, step.device, step.kind, step.dedicated) for step in memory] == [
        ("frame", 8 * MiB, 2, MemoryHandleType.OPAQUE_FD, False),
        ("still", 2 * MiB, 0, MemoryHandleType.OPAQUE_FD, True),
    ]
    semaphores = [step for step in PLAN.steps if isinstance(step, ImportSemaphore)]
    assert [(step.label, step.device, step.kind) for step in semaphores] == [
        ("ready", 2, SemaphoreHandleType.TIMELINE_FD),
        ("shown", 0, SemaphoreHandleType.OPAQUE_FD),
    ]


def test_the_whole_object_is_mapped_before_its_parts() -> None:
    mapped = [step for step in PLAN.steps if isinstance(step, MapExternal)]
    assert [(step.label, step.memory, step.offset, step.size, step.path) for step in mapped] == [
        ("frame", "frame", 0, 8 * MiB, ("external", "frame")),
        ("frame.y", "frame", MiB, 4 * MiB, ("external", "frame", "buffers", "y")),
        ("still", "still", 0, 2 * MiB, ("external", "still")),
    ]
    assert mapped[1].blocks() == ("external memory frame",)


def test_a_waiting_gpu_is_polled_and_its_blocked_resources_are_named() -> None:
    (step,) = (step for step in PLAN.steps if isinstance(step, AwaitStream))
    assert step.device == 2
    assert {each for each in step.stays if "context" not in each and "kernels" not in each} == {
        "managed memory m", "managed memory own", "managed memory h", "buffer b", "external memory frame",
        "mapped buffer frame", "mapped buffer frame.y", "semaphore ready", "semaphore shown",
    }  # fmt: skip
    assert {each for each in step.stays if "context" in each} == {f"context of gpu{each}" for each in range(3)}
    assert step.blocks() == step.stays


def test_managed_memory_counts_where_allocated_and_external_memory_does_not() -> None:
    assert PLAN.memory == {"gpu0": 7 * MiB, "gpu1": 2 * MiB, "gpu2": 2 * MiB}
