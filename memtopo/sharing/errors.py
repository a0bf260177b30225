"""What can go wrong between two processes."""

from __future__ import annotations

from collections.abc import Sequence

from memtopo.common.errors import MemtopoError, Unavailable


class ExchangeError(MemtopoError):
    """An exchange that did not come about; `code` is one of the words in `docs/protocol.md`."""

    exit_code = 4

    def __init__(self, code: str, message: str, *, hint: str | None = None, details: Sequence[str] = ()) -> None:
        super().__init__(message, hint=hint, details=details)
        self.code = code


class NoLayout(Unavailable):
    """No process holds a layout of that name, or serves at that path."""


class BadPacket(ExchangeError):
    """A packet that breaks the protocol; whoever sent it is not talked to any more."""

    def __init__(self, message: str, code: str = "packet") -> None:
        super().__init__(code, message)


def reason(error: OSError) -> str:
    """The system's words for an error, as they stand within a message."""
    return (error.strerror or "error").lower()
