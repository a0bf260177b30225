"""Sizes (`64MiB`, `0`, `4 granules`) and durations (`10m`, `5s`, `500ms`): parsing and formatting."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from fractions import Fraction
from functools import lru_cache
from math import prod
from typing import TypeVar

from msgspec import Struct

from memtopo.common.errors import UsageError

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

KiB, MiB, GiB, TiB = 1 << 10, 1 << 20, 1 << 30, 1 << 40
UNITS = {"B": 1, "KiB": KiB, "MiB": MiB, "GiB": GiB, "TiB": TiB}
LARGEST = (1 << 64) - 1

_SIZE = re.compile(r"([0-9]{1,20}) ?(B|KiB|MiB|GiB|TiB|granules?)")
_SHARE = r"(0|[1-9][0-9]{0,2})(?:\.([0-9]{1,3}))?%"
_DECIMAL = re.compile(r"(?:0|[1-9][0-9]{0,19})")
_LOOSE_SIZE = r"([0-9][0-9_.,]{0,30}) *([A-Za-z]{0,30})"
_GROUPS = r"[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+(?:_[0-9]+)+"
_UNIT_MEANT = {
    **{unit.lower(): unit for unit in ("KiB", "MiB", "GiB", "TiB")},
    "kb": "KiB", "mb": "MiB", "gb": "GiB", "tb": "TiB", "b": "B", "byte": "B", "bytes": "B",
    "k": "KiB", "m": "MiB", "g": "GiB", "t": "TiB",
    "granule": "granules", "granules": "granules", "page": "granules", "pages": "granules",
}  # fmt: skip


class Size(Struct, frozen=True):
    """Size as written in a spec: `amount` bytes, or `amount` granules."""

    amount: int
    in_granules: bool = False

    def bytes(self, granule: int) -> int:
        """Return the size in bytes, for granules of `granule` bytes."""
        return self.amount * granule if self.in_granules else self.amount

    def __str__(self) -> str:
        if self.in_granules:
            return f"{self.amount} granule{'' if self.amount == 1 else 's'}"
        return exact(self.amount)


class NamedPart(Struct, frozen=True):
    """Named part of an object; offset and size are in bytes."""

    name: str
    offset: int
    size: int


class Share(Struct, frozen=True):
    """Share of memory as written in a spec, in thousandths of a percent."""

    thousandths: int

    def of(self, amount: int) -> int:
        """Return the share of an amount of bytes, rounded down."""
        return amount * self.thousandths // _WHOLE

    def __str__(self) -> str:
        whole, rest = divmod(self.thousandths, 1000)
        return f"{whole}.{rest:03}".rstrip("0").rstrip(".") + "%"


_WHOLE = 100_000
WHOLE_SHARE = Share(_WHOLE)


class NotAnAmount(ValueError):
    """Text that is not an amount; `meant` is the most similar valid text, if there is one."""

    def __init__(self, message: str, meant: str | None = None) -> None:
        super().__init__(message)
        self.meant = meant


class NotASize(NotAnAmount):
    """Text that is not a size."""


_PRODUCT = r"[0-9]{1,20}(?: ?\* ?[0-9]{1,20}){1,9}"


@lru_cache(maxsize=4096)
def parse_size(text: str) -> Size:
    """Parse a size: digits and a binary unit, digits and `granules`, or a bare `0`.

    Raises `NotASize` with the probably intended text.
    """
    match = _SIZE.fullmatch(text)
    if not match:
        if text == "0":
            return Size(0)
        raise _no_size(text)
    amount, unit = int(match[1]), match[2]
    if len(match[1]) > 1 and match[1][0] == "0":
        raise NotASize(f"{text!r} has a leading zero", f"{amount}{_glue(unit)}")
    size = Size(amount, in_granules=True) if unit.startswith("granule") else Size(amount * UNITS[unit])
    if size.amount > LARGEST:
        raise NotASize(f"{shorten(text)!r} is more than 64 bits can count")
    return size


def parse_share(text: str) -> Share:
    """Parse a share: more than 0 and at most 100, with up to three decimals, and a percent sign.

    Raises `ValueError` with the reason.
    """
    match = re.fullmatch(_SHARE, text)
    if not match:
        raise ValueError(f"{shorten(text)!r} is not a share such as 90% or 12.5%")
    share = Share(int(match[1]) * 1000 + int((match[2] or "").ljust(3, "0")))
    if not 0 < share.thousandths <= _WHOLE:
        raise ValueError(f"{shorten(text)!r} is not a share of more than 0% and at most 100%")
    return share


def parse_count(text: str) -> int:
    """Parse an unsigned decimal number of at most 64 bits.

    Raises `ValueError` with the reason: a sign, a leading zero, a fraction, an exponent, other digits than 0 to 9.
    """
    if not _DECIMAL.fullmatch(text):
        raise ValueError(f"{shorten(text)!r} is not a whole number in plain digits")
    if (number := int(text)) > LARGEST:
        raise ValueError(f"{text} is more than 64 bits can count")
    return number


def exact(amount: int) -> str:
    """Format a number of bytes in the largest unit that divides it, `2MiB`, so that it can be parsed without loss."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if amount and amount % UNITS[unit] == 0:
            return f"{amount // UNITS[unit]}{unit}"
    return "0" if amount == 0 else f"{amount}B"


def rounded(amount: int) -> str:
    """Format a number of bytes for display, rounded to a tenth: `95.8 GiB`, `2 MiB`, `512 B`."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        # An amount that rounds to 1024.0 of a unit is shown as 1.0 of the next unit.
        if abs(amount) >= UNITS[unit] * (1 - 0.05 / 1024):
            whole, rest = divmod(amount, UNITS[unit])
            return f"{whole} {unit}" if rest == 0 else f"{amount / UNITS[unit]:.1f} {unit}"
    return f"{amount} B"


def by_key(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Values in lists by their keys, both in the order in which they come."""
    found: dict[K, list[V]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def summed(amounts: Iterable[Mapping[K, int]]) -> Counter[K]:
    """Sums of amounts by their keys."""
    total: Counter[K] = Counter()
    for each in amounts:
        total.update(each)
    return total


def rounded_up(amount: int, unit: int) -> int:
    """Smallest multiple of a unit that is not less than an amount."""
    return -(-amount // unit) * unit


def shorten(text: str, limit: int = 40) -> str:
    """Truncate a text to `limit` characters, so that messages stay short."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _no_size(text: str) -> NotASize:
    match = re.fullmatch(_LOOSE_SIZE, text)
    if re.fullmatch(_PRODUCT, text):
        message = f"{shorten(text)!r} is not a size: an arithmetic has a $name"
        return NotASize(message, _in_bytes(str(prod(map(int, text.split("*"))))))
    if not match:
        return NotASize(f"{shorten(text)!r} is not a size")
    digits, unit = match[1], match[2]
    plain = re.sub("[,_]", "", digits) if re.fullmatch(_GROUPS, digits) else digits
    if not unit:
        return NotASize(f"{shorten(text)!r} has no unit", _in_bytes(plain))
    known = unit if unit in UNITS else _UNIT_MEANT.get(unit.lower())
    if known is None:
        return NotASize(f"{shorten(unit)!r} is not a unit; units are B, KiB, MiB, GiB, TiB and granules")
    if not plain.isdecimal():
        return NotASize(f"{shorten(text)!r} is not a whole number of units", _whole(plain, known))
    meant = f"{int(plain)}{_glue(known)}"
    match = _SIZE.fullmatch(meant)
    fits = match and int(match[1]) * UNITS.get(match[2], 1) <= LARGEST
    return NotASize(f"{shorten(text)!r} is not a valid form of a size", meant if fits else None)


def _in_bytes(digits: str) -> str | None:
    return exact(int(digits)) if digits.isdecimal() and int(digits) <= LARGEST else None


def _whole(digits: str, unit: str) -> str | None:
    try:
        amount = Fraction(digits) * UNITS[unit]
    except (ValueError, KeyError):
        return None
    return exact(int(amount)) if amount.denominator == 1 and amount <= LARGEST else None


def _glue(unit: str) -> str:
    return " granules" if unit.startswith("granule") else unit


_SECONDS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = r"([0-9]{1,9}(?:\.[0-9]{1,3})?)(ms|s|m|h|d)"
_LOOSE_DURATION = r"([0-9]{1,9}(?:\.[0-9]{1,3})?) *([A-Za-z]{0,12})"
_MEANT = {
    **{unit.upper(): unit for unit in _SECONDS if unit != "ms"},
    **dict.fromkeys(("", "sec", "secs", "second", "seconds"), "s"),
    **dict.fromkeys(("min", "mins", "minute", "minutes"), "m"),
    **dict.fromkeys(("hr", "hrs", "hour", "hours"), "h"),
    **dict.fromkeys(("day", "days"), "d"),
    **dict.fromkeys(("msec", "millis", "millisecond", "milliseconds"), "ms"),
}


class NotADuration(NotAnAmount):
    """Text that is not a duration."""


def parse_duration(text: str) -> float:
    """Parse digits and a unit (ms, s, m, h or d), and return seconds.

    Raises `NotADuration` with the probably intended text.
    """
    if match := re.fullmatch(_DURATION, text):
        return float(match[1]) * _SECONDS[match[2]]
    shown = shorten(repr(text))
    match = re.fullmatch(_LOOSE_DURATION, text.strip())
    unit = match and (match[2] if match[2] in _SECONDS else _MEANT.get(match[2].lower(), _MEANT.get(match[2])))
    if match and unit:
        what = "is not a valid form of a duration" if match[2] else "has no unit"
        raise NotADuration(f"{shown} {what}", f"{match[1]}{unit}")
    raise NotADuration(f"{shown} is not a duration; write 500ms, 5s, 10m, 2h or 1d")


def parsed(parse: Callable[[str], T], text: str, name: str = "") -> T:
    """Parse an argument of a user, of an option with a `name`. Raises `UsageError` with what is probably meant."""
    try:
        return parse(text)
    except NotAnAmount as error:
        meant = error.meant
        if meant and re.fullmatch("[0-9]+B", meant):
            meant = f"{meant[:-1]}MiB or {meant[:-1]}GiB, or {meant} for bytes"
        raise UsageError(f"{name} {error}".lstrip(), hint=f"write {meant}" if meant else None) from error
