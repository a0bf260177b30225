"""Which diagnostics are told: codes, or what codes begin with, that a command line selects or ignores."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from memtopo.common.errors import UsageError
from memtopo.common.text import nearest
from memtopo.diagnostics.codes import CODES
from memtopo.language.suppressions import NEVER


class Selection(NamedTuple):
    """Codes by what they begin with: those selected, all where none are, without those ignored."""

    selected: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()

    def takes(self, code: str) -> bool:
        """Whether a code is told. Codes of reading the text always are: what is not read is not checked."""
        if code.startswith(NEVER):
            return True
        return (not self.selected or code.startswith(self.selected)) and not code.startswith(self.ignored)


def selection(select: Iterable[str] = (), ignore: Iterable[str] = ()) -> Selection:
    """A selection from words such as `MT301`, `MT5` and `MT301,MT5`. Raises `UsageError` for what begins no code."""
    ignored = _codes(ignore)
    for code in ignored:
        if code.startswith(NEVER):
            hint = "correct the file, or leave it out of the command"
            raise UsageError(f"{code} cannot be ignored: what is not read is not checked", hint=hint)
    return Selection(_codes(select), ignored)


def _codes(words: Iterable[str]) -> tuple[str, ...]:
    parts = [part.strip() for word in words for part in word.split(",")]
    return tuple(_known(part) for part in parts if part)


def _known(word: str) -> str:
    code = word.upper()
    if code.startswith("MT") and any(known.startswith(code) for known in CODES):
        return code
    meant = nearest(code, CODES)
    hint = (
        f"did you mean {meant}? " if meant else "write a code such as MT301, or what several begin with, such as MT3; "
    )
    raise UsageError(f"there is no code {word!r}", hint=f"{hint}'memtopo explain' lists them all")
