"""Events of a held layout for its log: a short text, and the circumstances by key."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

Severity = Literal["info", "warning", "error"]
EventFields = Mapping[str, str | float]

MOST_OF_CLIENTS = 1000
"""Events of clients that are recorded in each `PERIOD`; a client can cause any number of them."""

PERIOD = 60.0


@dataclass(frozen=True, slots=True)
class Event:
    """One event. Texts among the values may come from clients, and are not safe to print as they are."""

    text: str
    fields: EventFields
    severity: Severity = "info"


class Events:
    """Records events by calling `write`, which must not wait or raise; `now` returns seconds."""

    def __init__(
        self, write: Callable[[Event], None] = lambda _: None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._write, self._now = write, now
        self._until = 0.0
        self._of_clients = 0

    def add(self, text: str, fields: EventFields, severity: Severity = "info") -> None:
        """Record an event."""
        self._write(Event(text, fields, severity))

    def add_of_client(self, text: str, fields: EventFields) -> None:
        """Record an event that a client caused; beyond `MOST_OF_CLIENTS` in a period, only their number."""
        if (now := self._now()) >= self._until:
            left_out, self._of_clients = self._of_clients - MOST_OF_CLIENTS, 0
            self._until = now + PERIOD
            if left_out > 0:
                self.add("events of clients left out", {"count": left_out}, "warning")
        self._of_clients += 1
        if self._of_clients <= MOST_OF_CLIENTS:
            self.add(text, fields)
