"""Shortest story that still breaks the same promise: events are left out, and each is made as plain as it can be."""

from __future__ import annotations

import re
from dataclasses import replace

from tests.story.story import Told, tell


def shrink(told: Told, limit: int = 400) -> Told:
    """Return a shorter story of the same seed with the same failure, after at most some tellings."""
    best, left, size = told, limit, len(told.events) // 2
    while size and left > 0:
        first, found_any = 0, False
        while first < len(best.events) and left > 0:
            left -= 1
            found = tell(told.seed, (*best.events[:first], *best.events[first + size :]))
            if kind(found) == kind(told):  # it may have fewer events still
                best, found_any = found, True
            else:
                first += size
        size = size if found_any and size == 1 else size // 2
    for index in range(min(len(best.events), max(left, 0))):
        event = best.events[index]
        found = tell(told.seed, (*best.events[:index], replace(event, pace=1), *best.events[index + 1 :]))
        if event.pace > 1 and kind(found) == kind(told) and len(found.events) == len(best.events):
            best = found
    return best


def kind(told: Told) -> str:
    """Return what was broken, without the names and numbers of one story."""
    return re.sub(r"[0-9a-f]{16}|\b[eo][1-5]\b|[0-9]+", "#", told.reason)[:60] if told.failure else ""
