"""Messages between a probe and its children: some make trials, and one imports what these share."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from memtopo.common.processes import Broken
from memtopo.probe.trial_table import PlannedTrial

SharedObject = Literal["chunk", "ipc", "ipc_event", "pool"]


class Start(Struct, frozen=True):
    """First message to a child: the trials to make, each with its number, or None for the importing child.

    `record` is the machine to simulate; None for real GPUs.
    """

    trials: tuple[tuple[int, PlannedTrial], ...] | None
    record: str | None


class ImportRequest(Struct, frozen=True):
    """Request to import what a trial shares, by the driver of one GPU: its handle is beside the message.

    `handle_type` is that of chunks and pools, `size` that of chunks, in bytes, and `pointer` that of an allocation of a
    pool, in hexadecimal digits.
    """

    what: SharedObject
    device: int
    handle_type: int = 0
    size: int = 0
    pointer: str = ""


class ImportAnswer(Struct, frozen=True):
    """Answer to an `ImportRequest`: whether the bytes were as expected, or the error and the call that returned it."""

    as_expected: bool = False
    error: str | None = None
    call: str | None = None


class Ready(Struct, frozen=True):
    """A child has its driver, after so many seconds."""

    seconds: float


class TrialBegun(Struct, frozen=True):
    """A child begins the trial of a number."""

    number: int


class TrialEnded(Struct, frozen=True):
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


class Finished(Struct, frozen=True):
    """All trials of a child are made; `leaked` counts what they did not release, by kind."""

    leaked: dict[str, int] = {}


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
