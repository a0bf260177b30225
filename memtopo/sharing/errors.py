"""Errors between two processes."""

from __future__ import annotations

from memtopo.common.errors import Exit, MemtopoError, Unavailable

_EXIT_CODES = {"stale": Exit.STALE, "broken": Exit.LEFT, "internal": Exit.BUG}


def _note_hint(error: MemtopoError) -> None:
    """Have the hint of an error in its traceback."""
    if error.hint:
        error.add_note(f"hint: {error.hint}")


class ExchangeError(MemtopoError):
    """A failed exchange; `code` is one of the codes in `docs/protocol.md`."""

    def __init__(self, code: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        _note_hint(self)
        self.code = code
        self.exit_code = _EXIT_CODES.get(code, Exit.FAILED)


class NoLayout(Unavailable):
    """No process holds a layout of that name, or serves at that path."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        _note_hint(self)


class BadPacket(ExchangeError):
    """A packet that breaks the protocol; it ends the connection to its sender."""

    def __init__(self, message: str, code: str = "packet") -> None:
        super().__init__(code, message)
