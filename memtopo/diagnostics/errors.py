"""Causes of the driver's errors, by call, from the page docs/errors.md, which tests make on the simulator."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from memtopo.diagnostics import read_page

PAGE = "errors.md"
"""Page with the causes, the only copy of them."""

EVERY = "Every call"
"""Heading of the causes that any call may have."""

_PART = re.compile(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_ROW = re.compile(r"^\| ([A-Z_]+) \| (.+?) \| (.+?) \| (.+?) \| ([0-9, ]+) \|$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Cause:
    """Cause of an error of a call, with what to check and the numbers of the facts that it rests on.

    `error` is without `CUDA_ERROR_`; `cause` and `check` are Markdown. `reasons` are those that the simulator states
    for it, where `…` stands for any text.
    """

    call: str
    error: str
    cause: str
    reasons: tuple[str, ...]
    check: str
    facts: tuple[int, ...]

    @property
    def title(self) -> str:
        """Call and error."""
        return f"{self.call}: {self.error}"

    def is_stated(self, text: str) -> bool:
        """Return whether a text, such as a message of the simulator, has one of the reasons in parentheses."""
        patterns = (re.escape(each).replace("…", ".+?") for each in self.reasons)
        return re.search(rf"\((?:{'|'.join(patterns)})\b", text, re.IGNORECASE) is not None


@cache
def causes() -> tuple[Cause, ...]:
    """Return all causes, those of a call and an error by likelihood."""
    return tuple(
        Cause(call, error, cause, tuple(reasons.split(" / ")), check, tuple(map(int, numbers.split(","))))
        for call, rows in _PART.findall(read_page(PAGE))
        for error, cause, reasons, check, numbers in _ROW.findall(rows)
    )


def of(call: str | None, error: str | None) -> list[Cause]:
    """Return the causes of a call, of an error, or of both, in order; none if nothing is known.

    Those of an error that the call has no row for are those that any call may have.
    """
    found = [each for each in causes() if error in {None, each.error}]
    own = [each for each in found if call in {None, each.call}]
    return own or [each for each in found if error and each.call == EVERY]


def stated(found: list[Cause], text: str) -> list[Cause]:
    """Return those of some causes whose reason is in a text in parentheses; all if none is."""
    return [each for each in found if each.is_stated(text)] or found
