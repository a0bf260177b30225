"""Durations as people write them: `10m`, `5s`, `500ms`, `1.5h`."""

from __future__ import annotations

import re

_UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)(ms|s|m|h|d)")
_LOOSE = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?) *([A-Za-z]{0,12})")
_MEANT = {
    **{unit.upper(): unit for unit in _UNITS if unit != "ms"},
    **dict.fromkeys(("", "sec", "secs", "second", "seconds"), "s"),
    **dict.fromkeys(("min", "mins", "minute", "minutes"), "m"),
    **dict.fromkeys(("hr", "hrs", "hour", "hours"), "h"),
    **dict.fromkeys(("day", "days"), "d"),
    **dict.fromkeys(("msec", "millis", "millisecond", "milliseconds"), "ms"),
}
_SHOWN = 40


class NotADuration(ValueError):
    """Text that is no duration; `meant` is the nearest text that is one, if there is any."""

    def __init__(self, message: str, meant: str | None = None) -> None:
        super().__init__(message)
        self.meant = meant


def parse_duration(text: str) -> float:
    """Read digits and a unit (ms, s, m, h or d) as seconds.

    Raises `NotADuration`, with the text that was probably meant.
    """
    if match := _DURATION.fullmatch(text):
        return float(match[1]) * _UNITS[match[2]]
    told = repr(text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…")
    match = _LOOSE.fullmatch(text.strip())
    unit = match and (match[2] if match[2] in _UNITS else _MEANT.get(match[2].lower(), _MEANT.get(match[2])))
    if match and unit:
        what = "is not how a duration is written" if match[2] else "has no unit"
        raise NotADuration(f"{told} {what}", f"{match[1]}{unit}")
    raise NotADuration(f"{told} is not a duration; write 500ms, 5s, 10m, 2h or 1d")
