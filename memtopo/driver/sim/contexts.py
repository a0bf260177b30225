"""Primary contexts: who retains them, and which is current on which thread (fact 8)."""

from __future__ import annotations

import threading

from memtopo.driver.sim.budget import Budget
from memtopo.driver.sim.refusal import Refused
from memtopo.driver.types import gpu
from memtopo.machine import CONTEXT_BYTES

FIRST_CONTEXT = 0x5600_0000


class _Stack(threading.local):
    """The contexts that are current on a thread, the last one on top."""

    def __init__(self) -> None:
        self.devices: list[int] = []


class Contexts:
    """The primary contexts of one process."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._retains: dict[int, int] = {}
        self._stack = _Stack()

    def retain(self, device: int) -> int:
        """Retain a device's primary context, which costs device memory while it is active (fact 30)."""
        if not self.active(device):
            self._budget.take(gpu(device), CONTEXT_BYTES)
        self._retains[device] = self._retains.get(device, 0) + 1
        return FIRST_CONTEXT + device

    def release(self, device: int) -> None:
        """Give one retain back; the last one makes the context inactive."""
        if not self.active(device):
            raise Refused("CUDA_ERROR_INVALID_CONTEXT", "the primary context is not retained")
        self._retains[device] -= 1
        if not self._retains[device]:
            del self._retains[device]
            self._budget.give(gpu(device), CONTEXT_BYTES)

    def is_last(self, device: int) -> bool:
        """Whether the next release ends a device's primary context."""
        return self._retains.get(device) == 1

    def active(self, device: int) -> bool:
        """Whether a device's primary context is retained."""
        return device in self._retains

    def push(self, context: int) -> None:
        """Make a context current on this thread."""
        if not self.active(context - FIRST_CONTEXT):
            raise Refused("CUDA_ERROR_INVALID_CONTEXT", "the context is not retained")
        self._stack.devices.append(context - FIRST_CONTEXT)

    def pop(self) -> int:
        """Take the current context off this thread."""
        if not self._stack.devices:
            raise Refused("CUDA_ERROR_INVALID_CONTEXT", "no context is current")
        return FIRST_CONTEXT + self._stack.devices.pop()

    def current(self) -> int:
        """The device whose context is current on this thread."""
        if not self._stack.devices:
            raise Refused("CUDA_ERROR_INVALID_CONTEXT", "no context is current")
        device = self._stack.devices[-1]
        if not self.active(device):
            raise Refused("CUDA_ERROR_CONTEXT_IS_DESTROYED", "the current context was released")
        return device
