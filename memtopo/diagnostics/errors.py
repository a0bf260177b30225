"""Causes of errors of the driver and the system, by call, from the page docs/errors.md."""

from __future__ import annotations

import re
from functools import cache

from msgspec import Struct

from memtopo.diagnostics import read_page

PAGE = "errors.md"
"""Page with the causes, the only copy of them."""

EVERY = "Every call"
"""Heading of the causes that any call may have."""

_PART = re.compile(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_ROW = re.compile(r"^\| ([A-Z0-9_, ]+) \| (.+?) \| (.+?) \| (.+?) \| ([^|]+) \|$", re.MULTILINE)
_NO_REASON = "—"


class Cause(Struct, frozen=True):
    """Cause of an error of a call, with what to check and the numbers of the facts that it rests on.

    `error` is without `CUDA_ERROR_`; `cause` and `check` are Markdown. `reasons` are those that the simulator states
    for it, where `…` stands for any text; it states none for a cause that is not a fact. `sources` are `doc` for
    NVIDIA's reference or a manual page, and `reports` for public reports.
    """

    call: str
    error: str
    cause: str
    reasons: tuple[str, ...]
    check: str
    facts: tuple[int, ...]
    sources: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Call and error."""
        return f"{self.call}: {self.error}"

    def is_stated(self, text: str) -> bool:
        """Return whether a text, such as a message of the simulator, has one of the reasons in parentheses."""
        patterns = (re.escape(each).replace("…", "[^\n]+?") for each in self.reasons)
        found = re.search(rf"\((?:{'|'.join(patterns)})(?!\w)", text, re.IGNORECASE)
        return bool(self.reasons) and found is not None


@cache
def causes() -> tuple[Cause, ...]:
    """Return all causes, those of a call and an error by likelihood.

    A part of the page may be that of several calls, and a row that of several errors: each has a cause of its own.
    """
    return tuple(
        Cause(call, error, cause, _reasons(reasons), check, *_sources(sources))
        for calls, rows in _PART.findall(read_page(PAGE))
        for errors, cause, reasons, check, sources in _ROW.findall(rows)
        for call in calls.split(", ")
        for error in errors.split(", ")
    )


def _reasons(cell: str) -> tuple[str, ...]:
    return () if cell == _NO_REASON else tuple(cell.split(" / "))


def _sources(cell: str) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Numbers of facts, and other sources, of the last cell of a row."""
    return tuple(map(int, re.findall(r"\d+", cell))), tuple(re.findall(r"\[(\w+)\]", cell))


def causes_of(call: str | None, error: str | None) -> list[Cause]:
    """Return the causes of a call, of an error, or of both, in order; none if nothing is known.

    Those of an error that the call has no row for are those that any call may have.
    """
    found = [each for each in causes() if error in {None, each.error}]
    own = [each for each in found if call in {None, each.call}]
    return own or [each for each in found if error and each.call == EVERY]


def causes_with_reason(call: str, error: str, reason: str) -> list[Cause]:
    """Return the causes of an error of a call for which the simulator states a reason; none for a reason without."""
    found = [*causes_of(call, error), *causes_of(EVERY, error)]
    return [each for each in dict.fromkeys(found) if each.is_stated(f"({reason})")]
