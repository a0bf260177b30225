"""Access tried by calls of the driver on the real memory: granted access works, other access is refused (fact 23).

A fill or copy without access is refused with INVALID_VALUE, and the context lives on. Host memory is tried by fills
alone, which a GPU makes: a copy that the CPU makes without access would end the process (fact 40). Memory that this run
did not create is left out, since a fill that is not refused is a write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from memtopo.diagnostics.model import Path
from memtopo.driver.types import Access, DriverError, LocationKind, gpu
from memtopo.kinds.layout import current
from memtopo.kinds.step import Finding
from memtopo.kinds.views import MappedMemory
from memtopo.run.verification.verifier import VerificationContext

PERMITTED = "permitted"
"""Aspect of the tries of granted access."""

_ACCEPTED, _REFUSED = "CUDA_SUCCESS", "CUDA_ERROR_INVALID_VALUE"
_EQUAL = Finding.equal(PERMITTED)


class CopyRefused(Exception):
    """Refusal of a copy to or from memory that a GPU was granted access to."""

    def __init__(self, subject: str, path: Path, error: DriverError) -> None:
        super().__init__(error.message)
        self.error = error
        self.finding = Finding(PERMITTED, subject, _ACCEPTED, error.name, path)

    @classmethod
    def from_error(cls, subject: str, path: Path, error: DriverError) -> Exception:
        """Exception to raise for an error of a copy: another error than a refusal stays as it is."""
        return cls(subject, path, error) if error.name == _REFUSED else error


class _View(NamedTuple):
    """Memory that this run created, at one of its addresses, and the access of one GPU to it."""

    address: int
    size: int
    text: str
    on_host: bool
    access: Access
    path: Path


def permissions(context: VerificationContext, *, host_only: bool) -> Iterator[Finding]:
    """Check that the driver accepts fills, or copies from what a GPU may only read, before anything is written.

    The last byte is tried, so that memory which is too small is found as well. With `host_only` only host memory that
    is mapped is tried, where a copy without access would end the process. Raises what `raise_if_stopped` raises.
    """
    memory = _mapped_on_host(context.own_memory) if host_only else context.own_memory
    for device, device_context in context.layout.contexts.items():
        # A list, not a generator: the code that takes the findings must not run in the device's context.
        found: list[Finding] = []
        with current(context.driver, device_context):
            for view in _views(context, memory, device):
                context.raise_if_stopped()
                found.extend(_permitted(context, view, device))
        yield from found


def _mapped_on_host(memory: Sequence[MappedMemory]) -> Sequence[MappedMemory]:
    of_gpu = LocationKind.GPU
    return [each for each in memory if each.location.kind is not of_gpu and not each.addressed]


def refusals(context: VerificationContext) -> Iterator[Finding]:
    """Check that the driver refuses fills and copies by GPUs without access. Raises what `raise_if_stopped` raises."""
    for device, device_context in context.layout.contexts.items():
        for view in _views(context, context.own_memory, device, mapped=True):
            for subject, call in _forbidden_calls(context, view):
                context.raise_if_stopped()
                with current(context.driver, device_context):
                    observed = _error_name(call)
                yield Finding("refused", f"{subject} by gpu{device}", _REFUSED, observed, view.path)


def _views(
    context: VerificationContext, memory: Sequence[MappedMemory], device: int, *, mapped: bool = False
) -> Iterator[_View]:
    """Memory at each of its addresses; with `mapped`, in ranges alone."""
    for chunk in memory:
        if not chunk.ours:
            continue
        on_host = chunk.location.kind is not LocationKind.GPU
        for label, offset, grants in chunk.views:
            if not mapped or label in context.layout.ranges:
                access = dict(grants).get(gpu(device), Access.NONE)
                text = f"{chunk.name} in {label} at {offset:#x}"
                yield _View(context.layout.address(label) + offset, chunk.size, text, on_host, access, chunk.path)


def _permitted(context: VerificationContext, view: _View, device: int) -> Iterator[Finding]:
    """Try what a view permits, if that is safe."""
    last = view.address + view.size - 1
    if view.access is Access.RW:
        subject, observed = "fill of", _error_name(partial(context.driver.memset_d8, last, 0, 1))
    elif view.access and not view.on_host:
        subject, observed = "copy from", _error_name(partial(context.driver.memcpy_dtoh, last, 1))
    else:
        return
    if observed == _ACCEPTED:
        yield _EQUAL
    else:
        yield Finding(PERMITTED, f"{subject} {view.text} by gpu{device}", _ACCEPTED, observed, view.path)


def _forbidden_calls(context: VerificationContext, view: _View) -> Iterator[tuple[str, Callable[[], object]]]:
    if view.access is not Access.RW:
        yield f"fill of {view.text}", partial(context.driver.memset_d8, view.address, 0, 1)
    if not view.access and not view.on_host:
        yield f"copy from {view.text}", partial(context.driver.memcpy_dtoh, view.address, 8)


def _error_name(call: Callable[[], object]) -> str:
    try:
        call()
    except DriverError as error:
        return error.name
    return _ACCEPTED
