"""What a trial works with: a driver, its contexts, memory that goes when the trial ends, and the importing process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from memtopo.driver.protocol import Driver
from memtopo.driver.trying import WORD, Extras, Foreign
from memtopo.driver.types import Access, DriverError, Grant, Location, LocationKind, Properties, gpu

FIRST, SECOND, THIRD = 0x5A, 0xA5, 0x3C
"""Bytes that are written in turn, so that nobody reads what was there before."""

FATAL = frozenset(
    f"CUDA_ERROR_{name}"
    for name in (
        "ILLEGAL_ADDRESS", "LAUNCH_FAILED", "LAUNCH_TIMEOUT", "ILLEGAL_INSTRUCTION", "MISALIGNED_ADDRESS", "ASSERT",
        "INVALID_ADDRESS_SPACE", "INVALID_PC", "HARDWARE_STACK_ERROR", "ECC_UNCORRECTABLE", "CONTEXT_IS_DESTROYED",
        "CONTAINED", "EXTERNAL_DEVICE", "DEVICE_UNAVAILABLE",
    )
)  # fmt: skip
"""Errors after which nothing else that the process asks of a GPU tells anything (fact 24)."""

VULKAN = "Vulkan"
"""What stands for the driver's call in an error of the other API."""

Import = Callable[[dict[str, Any], Sequence[int]], dict[str, Any]]
"""Has the importing process do something with what is handed over; the descriptors are gone afterwards."""


class Bench:
    """A driver and its extras, contexts that are made once and kept, and ways to another process and to another API."""

    def __init__(
        self, driver: Driver, extras: Extras, hand_over: Import, meet: Callable[[bytes], Foreign] | None = None
    ) -> None:
        self.driver, self.extras, self._hand_over, self._meet = driver, extras, hand_over, meet
        self._contexts: dict[int, int] = {}
        self.opening = 0.0

    @contextmanager
    def current(self, device: int) -> Iterator[None]:
        """A GPU's context, made where there is none yet, current while this is entered.

        `opening` counts the seconds that making contexts took.
        """
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
    def foreign(self, device: int) -> Iterator[Foreign]:
        """Another API on the same GPU, found by its UUID (fact 38); its errors are told as the driver's are."""
        assert self._meet
        try:
            with self._meet(self.driver.device_get_uuid(device)) as other:
                yield other
        except Exception as error:
            if not _is_vulkans(error):
                raise
            raise DriverError(VULKAN, type(error).__name__, str(error)) from error

    def close(self) -> None:
        """Give the contexts back."""
        while self._contexts:
            self.driver.device_primary_ctx_release(self._contexts.popitem()[0])

    @contextmanager
    def chunk(self, properties: Properties) -> Iterator[tuple[int, int]]:
        """A chunk of one granule, as handle and size."""
        size = self.driver.mem_get_allocation_granularity(properties)
        handle = self.driver.mem_create(size, properties)
        with ExitStack() as undo:
            undo.callback(_quietly, self.driver.mem_release, handle)
            yield handle, size

    @contextmanager
    def mapped(self, handle: int, size: int, users: Sequence[Location]) -> Iterator[int]:
        """An address at which some may read and write a chunk."""
        with ExitStack() as undo:
            address = self.driver.mem_address_reserve(size)
            undo.callback(_quietly, self.driver.mem_address_free, address, size)
            self.driver.mem_map(address, size, handle)
            undo.callback(_quietly, self.driver.mem_unmap, address, size)
            self.driver.mem_set_access(address, size, tuple(Grant(user, Access.RW) for user in users))
            yield address

    def fill(self, device: int, address: int, value: int) -> None:
        """Write a word of equal bytes by a GPU, and wait for it."""
        with self.current(device):
            self.driver.memset_d8(address, value, WORD)
            self.driver.ctx_synchronize()

    def blocks(self, device: int, address: int, value: int) -> bool:
        """Whether a GPU reads such a word."""
        with self.current(device):
            return self.driver.memcpy_dtoh(address, WORD) == word(value)

    def import_(self, by: int, shared: int | bytes, **request: Any) -> bool:
        """Whether the importing process finds `FIRST` in what is shared, and could write `SECOND` to it.

        Raises `DriverError` with the call that was refused there.
        """
        told: dict[str, Any] = {**request, "by": by}
        fds = [shared] if isinstance(shared, int) else []
        if isinstance(shared, bytes):
            told["shared"] = shared.hex()
        answer = self._hand_over(told, fds)
        if answer.get("error"):
            raise DriverError(str(answer.get("call") or ""), str(answer["error"]))
        return bool(answer.get("same"))


def _is_vulkans(error: Exception) -> bool:
    """Whether the package raised it, or could not be loaded, or found no such GPU."""
    return isinstance(error, LookupError | OSError | ImportError) or type(error).__module__.startswith("vulkan")


def word(value: int) -> bytes:
    """A word of equal bytes."""
    return bytes([value]) * WORD


def users(place: Location, by: int) -> list[Location]:
    """A GPU, and of host memory the host too."""
    return [gpu(by)] if place.kind == LocationKind.GPU else [gpu(by), place]


def _quietly(undo: Callable[..., None], *arguments: int) -> None:
    # What stays is seen in the ledger, and goes with the process.
    with suppress(DriverError):
        undo(*arguments)
