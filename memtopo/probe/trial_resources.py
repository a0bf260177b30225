"""Resources of trials: the driver and its contexts, memory released after a trial, and the importing child.

Messages are between a probe and its children: some make trials, and one imports what these share.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from memtopo.driver.handles import Handle
from memtopo.driver.kernels import WORD, ExternalApi, TrialCalls
from memtopo.driver.protocol import Driver
from memtopo.driver.types import Access, DriverError, Grant, HandleType, Location, LocationKind, Properties, gpu
from memtopo.probe.trial_table import PlannedTrial

SharedObject = Literal["chunk", "ipc", "ipc_event", "pool"]


@dataclass(frozen=True, slots=True)
class Start:
    """First message to a child: the trials to make, each with its number, or None for the importing child.

    `record` is the machine to simulate; None for real GPUs.
    """

    trials: tuple[tuple[int, PlannedTrial], ...] | None
    record: str | None


@dataclass(frozen=True, slots=True)
class ImportRequest:
    """Request to import what a trial shares, by the driver of one GPU: its handle is beside the message.

    `handle_type` is that of chunks and pools, `size` that of chunks, in bytes, and `pointer` that of an allocation of a
    pool, in hexadecimal digits.
    """

    what: SharedObject
    device: int
    handle_type: int = 0
    size: int = 0
    pointer: str = ""


@dataclass(frozen=True, slots=True)
class ImportAnswer:
    """Answer to an `ImportRequest`: whether the bytes were as expected, or the error and the call that returned it."""

    as_expected: bool = False
    error: str | None = None
    call: str | None = None


@dataclass(frozen=True, slots=True)
class Ready:
    """A child has its driver, after so many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class TrialBegun:
    """A child begins the trial of a number."""

    number: int


@dataclass(frozen=True, slots=True)
class TrialEnded:
    """Result of a trial: `works`, or the driver's error and the call that returned it, or `data` that was measured.

    `works` is None if the trial does not show it. `reason` explains an error that is not the driver's, or why there is
    no result. `contexts` are the seconds spent creating contexts, which are not in `seconds`.
    """

    number: int
    works: bool | None = None
    error: str | None = None
    call: str | None = None
    reason: str | None = None
    seconds: float = 0.0
    contexts: float = 0.0
    data: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """All trials of a child are made; `leaked` counts what they did not release, by kind."""

    leaked: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Broken:
    """A child ends by an exception."""

    error: str


ToChild = Start | ImportRequest | ImportAnswer
FromChild = Ready | TrialBegun | TrialEnded | ImportRequest | ImportAnswer | Finished | Broken


FATAL = frozenset(
    f"CUDA_ERROR_{name}"
    for name in (
        "ILLEGAL_ADDRESS", "LAUNCH_FAILED", "LAUNCH_TIMEOUT", "ILLEGAL_INSTRUCTION", "MISALIGNED_ADDRESS", "ASSERT",
        "INVALID_ADDRESS_SPACE", "INVALID_PC", "HARDWARE_STACK_ERROR", "ECC_UNCORRECTABLE", "CONTEXT_IS_DESTROYED",
        "CONTAINED", "EXTERNAL_DEVICE", "DEVICE_UNAVAILABLE",
    )
)  # fmt: skip
"""Errors after which the process can use no GPU any more (fact 24)."""

VULKAN = "Vulkan"
"""Call of a `DriverError` raised for an error of Vulkan."""

ImportElsewhere = Callable[[ImportRequest, Handle], ImportAnswer]
"""Has the importing child answer a request; the descriptors are closed afterwards."""


class TrialResources:
    """A driver with its extras, and contexts that are created once; `opening` is the seconds that took.

    `importer` sends a request to the importing child, `external` opens an external API on the GPU of a UUID.
    """

    def __init__(
        self,
        driver: Driver,
        extras: TrialCalls,
        importer: ImportElsewhere,
        external: Callable[[bytes], ExternalApi] | None = None,
    ) -> None:
        self.driver, self.extras, self._importer, self._external = driver, extras, importer, external
        self._contexts: dict[int, int] = {}
        self.opening = 0.0

    @contextmanager
    def current(self, device: int) -> Iterator[None]:
        """Make a GPU's context current, and create it first if there is none."""
        if device not in self._contexts:
            began = time.monotonic()
            try:
                self._contexts[device] = self.driver.device_primary_ctx_retain(device)
            finally:
                self.opening += time.monotonic() - began
        self.driver.ctx_push_current(self._contexts[device])
        try:
            yield
        finally:
            self.driver.ctx_pop_current()

    @contextmanager
    def external(self, device: int) -> Iterator[ExternalApi]:
        """Open an external API on the same GPU, by its UUID (fact 38). Raises `DriverError` for its errors too."""
        assert self._external
        try:
            with self._external(self.driver.device_get_uuid(device)) as api:
                yield api
        except Exception as error:
            if not _is_vulkan_error(error):
                raise
            raise DriverError(VULKAN, type(error).__name__, str(error)) from error

    def close(self) -> None:
        """Release the contexts."""
        while self._contexts:
            self.driver.device_primary_ctx_release(self._contexts.popitem()[0])

    @contextmanager
    def chunk(self, properties: Properties) -> Iterator[tuple[int, int]]:
        """Create a chunk of one granule; yield its handle and size."""
        size = self.driver.mem_get_allocation_granularity(properties)
        handle = self.driver.mem_create(size, properties)
        with ExitStack() as undo:
            undo.callback(_quietly, self.driver.mem_release, handle)
            yield handle, size

    @contextmanager
    def mapped_chunk(self, properties: Properties, users: Sequence[Location]) -> Iterator[tuple[int, int, int]]:
        """Create a chunk of one granule, and map it; yield its address, its handle and its size."""
        with self.chunk(properties) as (handle, size), self.mapped(handle, size, users) as address:
            yield address, handle, size

    @contextmanager
    def made(self, device: int, make: Callable[[], int], undo: Callable[[int], None]) -> Iterator[int]:
        """Make an object in the context of a GPU; yield it."""
        with self.current(device), ExitStack() as stack:
            made = make()
            stack.callback(undo, made)
            yield made

    @contextmanager
    def mapped(self, handle: int, size: int, users: Sequence[Location]) -> Iterator[int]:
        """Map a chunk with access for some users; yield its address."""
        with ExitStack() as undo:
            address = self.driver.mem_address_reserve(size)
            undo.callback(_quietly, self.driver.mem_address_free, address, size)
            self.driver.mem_map(address, size, handle)
            undo.callback(_quietly, self.driver.mem_unmap, address, size)
            self.driver.mem_set_access(address, size, tuple(Grant(user, Access.RW) for user in users))
            yield address

    def fill(self, device: int, address: int, value: int) -> None:
        """Have a GPU write a word of equal bytes, and wait for it."""
        with self.current(device):
            self.driver.memset_d8(address, value, WORD)
            self.driver.ctx_synchronize()

    def reads(self, device: int, address: int, value: int) -> bool:
        """Return whether a GPU reads such a word."""
        with self.current(device):
            return self.driver.memcpy_dtoh(address, WORD) == word(value)

    def import_elsewhere(
        self,
        what: SharedObject,
        device: int,
        shared: int | bytes,
        *,
        handle_type: HandleType = HandleType.NONE,
        size: int = 0,
        pointer: bytes = b"",
    ) -> bool:
        """Return whether the importing child finds the bytes of the trial in what is shared; it writes others to it.

        Raises `DriverError` with the call that failed there.
        """
        request = ImportRequest(what, device, int(handle_type), size, pointer.hex())
        answer = self._importer(request, Handle.of(shared))
        if answer.error:
            raise DriverError(answer.call or "", answer.error)
        return answer.as_expected


def _is_vulkan_error(error: Exception) -> bool:
    """Return whether the package raised it, could not be loaded, or found no such GPU."""
    return isinstance(error, LookupError | OSError | ImportError) or type(error).__module__.startswith("vulkan")


def word(value: int) -> bytes:
    """Word of equal bytes."""
    return bytes([value]) * WORD


def users(location: Location, device: int) -> list[Location]:
    """Users of a trial's memory: the GPU; of host memory also the host."""
    return [gpu(device)] if location.kind == LocationKind.GPU else [gpu(device), location]


def _quietly(undo: Callable[..., None], *arguments: int) -> None:
    # What is not released is in the ledger, and is released with the process.
    with suppress(DriverError):
        undo(*arguments)
