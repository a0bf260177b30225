"""memtopo lays out GPU memory from a file: validate, plan, apply, verify, and take down without a trace."""

# ruff: noqa: F405 names that only a checker imports

from __future__ import annotations

from memtopo.common import __version__

TYPE_CHECKING = False  # known to checkers by its name; to import typing's takes longer than all else here
if TYPE_CHECKING:
    from memtopo.api import *  # noqa: F403 the names below are among those of the API

__all__ = [
    "ApiError", "BadTensors", "DriverError", "ExchangeError", "ExternalMemory", "FolderRefused", "HostMemory",
    "ImportMismatch", "InternalError", "InvalidSpec", "MemoryHeld", "MemtopoError", "NoLayout", "NotApplied",
    "NotBuilt", "NotCaptured", "NotChanged", "NotJoined", "NotMapped", "NotSwitched", "NotWritten", "OutOfMemory",
    "ProcessLost", "ProducerFailed", "ReadOnlyIgnored", "Semaphore", "Unavailable", "Unsuitable", "UsageError",
    "ViewOutlived", "__version__", "applied", "attach", "capturing", "dma_bufs", "hold", "join", "load", "mark",
    "plan", "rank", "serve",
]  # fmt: skip


def __getattr__(name: str) -> object:
    """Import the API when something of it is first used: the command line and its modules do without."""
    if name not in __all__:
        raise AttributeError(f"module 'memtopo' has no attribute {name!r}")
    from memtopo import api  # noqa: PLC0415

    found: object = getattr(api, name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
