"""Errors between two processes."""

from __future__ import annotations

from memtopo.common.errors import Exit, MemtopoError, Unavailable

_EXIT_CODES = {"stale": Exit.STALE, "broken": Exit.LEFT, "internal": Exit.BUG}


class ExchangeError(MemtopoError):
    """A failed exchange; `code` is one of the codes in `docs/protocol.md`."""

    def __init__(self, code: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint, exit_code=_EXIT_CODES.get(code, Exit.FAILED))
        self.code = code


class NoLayout(Unavailable):
    """No process holds a layout of that name, or serves at that path."""


class BadPacket(ExchangeError):
    """A packet that breaks the protocol; it ends the connection to its sender."""

    def __init__(self, message: str, code: str = "packet") -> None:
        super().__init__(code, message)
