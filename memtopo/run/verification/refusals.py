"""What the driver itself refuses to do to real mappings (fact 23): fills and copies by GPUs that may not.

Host memory is left out: there a copy by the CPU, which may not either, would end the process (fact 40). So is what this
run did not create, since a refusal that does not come is a write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from memtopo.driver.types import Access, DriverError, LocationKind, gpu
from memtopo.kinds.layout import current
from memtopo.plans.report import Finding
from memtopo.run.verification.prover import Scene

_REFUSED = "CUDA_ERROR_INVALID_VALUE"


def refusals(scene: Scene) -> Iterator[Finding]:
    """What each GPU of the layout is refused, of what it may not do. Raises what `stop` raises."""
    for device, context in scene.layout.contexts.items():
        for subject, call, path in _forbidden(scene, device):
            scene.stop()
            with current(scene.driver, context):
                seen = _answer(call)
            yield Finding("refused", f"{subject} by gpu{device}", _REFUSED, seen, path)


def _forbidden(scene: Scene, device: int) -> Iterator[tuple[str, Callable[[], object], tuple[str | int, ...]]]:
    driver = scene.driver
    for chunk in scene.mine:
        if not chunk.ours or chunk.location.kind is not LocationKind.GPU:
            continue
        for label, offset, grants in chunk.seen_at:
            if label not in scene.layout.ranges:
                continue
            access = dict(grants).get(gpu(device), Access.NONE)
            address = scene.layout.address(label) + offset
            where = f"{chunk.chunk} in {label} at {offset:#x}"
            if access != Access.RW:
                yield f"fill of {where}", partial(driver.memset_d8, address, 0, 1), chunk.path
            if not access:
                yield f"copy from {where}", partial(driver.memcpy_dtoh, address, 8), chunk.path


def _answer(call: Callable[[], object]) -> str:
    try:
        call()
    except DriverError as error:
        return error.name
    return "CUDA_SUCCESS"
