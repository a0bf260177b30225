"""Log of a held layout: one line for each event, `key=value` after a short text."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from memtopo.common.text import printable
from memtopo.sharing.holder import Event

_PRIORITIES = {"info": 6, "warning": 4, "error": 3}
_LONGEST = 300
_LONGEST_LINE = 4000


def line(event: Event, *, priority: bool = False, at: float | None = None) -> str:
    """Return an event as one line, with a priority of sd-daemon(3), or the time of seconds of the epoch in UTC.

    It has less than 4096 bytes, which a pipe takes as a whole. Values with other characters than those of names and
    paths are quoted, and escaped as by `printable`.
    """
    before = f"<{_PRIORITIES[event.severity]}>" if priority else ""
    if at is not None:
        before += time.strftime("%Y-%m-%dT%H:%M:%SZ ", time.gmtime(at))
    words = [f"{key}={_value(value)}" for key, value in event.fields.items()]
    return f"{before}memtopo: {' '.join([event.text, *words])}"[:_LONGEST_LINE]


def is_journal(fd: int, environment: Mapping[str, str]) -> bool:
    """Return whether a descriptor is the stream of systemd's journal that JOURNAL_STREAM names (systemd.exec(5))."""
    found = os.fstat(fd)
    return environment.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


def _value(value: str | float) -> str:
    text = str(value)[:_LONGEST]
    if text and all(char.isalnum() or char in "-_./:+@," for char in text) and text.isascii():
        return text
    quoted = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{printable(quoted)}"'
