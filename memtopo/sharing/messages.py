"""From messages to data and back: the shapes that `docs/protocol.md` describes."""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any, TypeVar, get_args

from memtopo.common.errors import MemtopoError
from memtopo.common.units import shorten
from memtopo.plans.report import Checks, Difference, MachineLine, Tally
from memtopo.sharing.errors import BadPacket, ExchangeError
from memtopo.sharing.offers import DESCRIPTORS, LONGEST_NAME, SECRET_BYTES, Handle, Kind, Offer, Secret, Via
from memtopo.sharing.status import Importer, Taken

PAGE = 48 << 10
"""Bytes of a list that go into one packet; the rest is for what stands around it."""

TEXT = 8 << 10
"""Characters of a long text that go into one packet, in which one of them may take six bytes."""

MOST = 4096
"""Entries of a list in one packet, of which there are always fewer."""

_CODED = 88
"""Characters that the 64 bytes of a secret take in base64."""

_TOLD = 300
_DEVICES = 64


def page(entries: Iterable[Any]) -> list[dict[str, Any]]:
    """As many of the first entries as fit into one packet; at least one, where there is one."""
    told: list[dict[str, Any]] = []
    size = 0
    for entry in entries:
        fields = asdict(entry)
        size += len(json.dumps(fields))
        if told and size > PAGE:
            break
        told.append(fields)
    return told


def importers(found: Sequence[Importer]) -> list[dict[str, Any]]:
    """All of some importers in one packet: where they are many, without what each took."""
    told = page(found)
    return told if len(told) == len(found) else page(replace(each, taken=()) for each in found)


def offer(fields: Fields) -> Offer:
    """An offer. Raises `BadPacket`."""
    return Offer(
        name=fields.text("name", LONGEST_NAME),
        kind=fields.word("kind", *get_args(Kind)),
        via=fields.word("via", *get_args(Via)),
        count=fields.number("count", 1),
        size=fields.number("size"),
        location=fields.text("location", _TOLD),
        gpu=fields.text_or_none("gpu"),
        properties=fields.texts("properties", 16),
    )


def importer(fields: Fields) -> Importer:
    """An importer. Raises `BadPacket`."""
    return Importer(
        id=fields.number("id"),
        pid=fields.number("pid"),
        uid=fields.number("uid"),
        since=fields.seconds("since"),
        handles=fields.number("handles"),
        bytes=fields.number("bytes"),
        bound=fields.flag("bound"),
        taken=tuple(_taken(each) for each in fields.objects("taken", MOST)),
    )


def _taken(fields: Fields) -> Taken:
    return Taken(
        export=fields.text("export", LONGEST_NAME),
        kind=fields.word("kind", *get_args(Kind)),
        via=fields.word("via", *get_args(Via)),
        handles=fields.number("handles"),
        bytes=fields.number("bytes"),
    )


def machine(fields: Fields) -> MachineLine:
    """A machine's line. Raises `BadPacket`."""
    devices = fields.texts("devices", _DEVICES)
    return MachineLine(fields.text("name"), fields.flag("simulated"), devices, fields.text("driver"))


def machine_fields(line: MachineLine) -> dict[str, Any]:
    """A machine's line as it travels."""
    devices = [shorten(name, _TOLD) for name in line.devices[:_DEVICES]]
    return {
        "name": shorten(line.name, _TOLD), "simulated": line.simulated, "devices": devices, "driver": line.driver,
    }  # fmt: skip


def checks(fields: Fields) -> Checks:
    """What a check found. Raises `BadPacket`."""
    return Checks(
        tuple(_tally(each) for each in fields.objects("tallies", MOST)),
        tuple(_difference(each) for each in fields.objects("differences", MOST)),
        fields.number("different"),
    )


def checks_fields(found: Checks) -> dict[str, Any]:
    """What a check found, as it travels: of the differences those that fit, of long texts the beginning."""
    short = (
        Difference(_short(each.aspect), _short(each.subject), _short(each.wanted), _short(each.seen))
        for each in found.differences
    )
    return {
        "tallies": [asdict(tally) for tally in found.tallies],
        "differences": [{key: each[key] for key in _DIFFERENCE} for each in page(short)],
        "different": found.different,
    }


def _short(text: str) -> str:
    return shorten(text, _TOLD)


_DIFFERENCE = ("aspect", "subject", "wanted", "seen")


def _difference(fields: Fields) -> Difference:
    aspect, subject, wanted, seen = map(fields.text, _DIFFERENCE)
    return Difference(aspect, subject, wanted, seen)


def _tally(fields: Fields) -> Tally:
    counts = fields.number("looked_at"), fields.number("as_declared"), fields.number("not_checked")
    return Tally(fields.text("aspect"), *counts, fields.text_or_none("why_not"))


def handle_fields(handles: Iterable[Handle]) -> list[dict[str, Any]]:
    """Handles as they travel, without their descriptors, which stand beside in the same order."""
    return [_handle(handle) for handle in handles]


def _handle(handle: Handle) -> dict[str, Any]:
    fields: dict[str, Any] = {"offset": handle.offset}
    if handle.secret is not None:
        fields["secret"] = base64.b64encode(handle.secret.reveal()).decode()
    return fields


def handles(fields: Iterable[Fields], fds: Iterable[int], via: Via) -> Iterator[Handle]:
    """Handles of one kind out of a packet; a descriptor that is taken belongs to its handle. Raises `BadPacket`."""
    left = iter(fds)
    for each in fields:
        offset = each.number("offset")
        if via in DESCRIPTORS:
            yield Handle(fd=next(left), offset=offset)
        else:
            yield Handle(secret=_secret(each.text("secret", _CODED)), offset=offset)


def _secret(text: str) -> Secret:
    try:
        value = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        value = b""
    if len(value) != SECRET_BYTES:
        raise BadPacket(f"a handle is no {SECRET_BYTES} bytes in base64")
    return Secret(value)


LONGEST = 4096
"""Characters of a text that has no bound of its own."""

WIDEST = 1 << 63

W = TypeVar("W", bound=str)


class Fields:
    """One JSON object of a message. Every method raises `BadPacket` where the field is not what it should be."""

    def __init__(self, value: object, what: str) -> None:
        if not isinstance(value, dict):
            raise BadPacket(f"{what} is no object")
        self._fields: dict[str, Any] = value
        self._what = what

    def text(self, key: str, longest: int = LONGEST) -> str:
        value = self._fields.get(key)
        if isinstance(value, str) and len(value) <= longest:
            return value
        raise self._wrong(key, f"a text of at most {longest} characters")

    def text_or_none(self, key: str) -> str | None:
        return None if self._fields.get(key) is None else self.text(key)

    def word(self, key: str, *words: W) -> W:
        value = self._fields.get(key)
        for word in words:
            if word == value:
                return word
        raise self._wrong(key, f"one of {', '.join(words)}")

    def number(self, key: str, low: int = 0, high: int = WIDEST) -> int:
        value = self._fields.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and low <= value < high:
            return value
        raise self._wrong(key, f"a whole number from {low} on" if high == WIDEST else f"one of {low} to {high - 1}")

    def seconds(self, key: str, most: float = 1e12) -> float:
        value = self._fields.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= most:
            return float(value) if math.isfinite(value) else most
        raise self._wrong(key, f"seconds, at most {most:g}")

    def seconds_or_none(self, key: str) -> float | None:
        return None if self._fields.get(key) is None else self.seconds(key)

    def flag(self, key: str) -> bool:
        value = self._fields.get(key)
        if isinstance(value, bool):
            return value
        raise self._wrong(key, "true or false")

    def items(self, key: str, most: int) -> list[Any]:
        value = self._fields.get(key)
        if isinstance(value, list) and len(value) <= most:
            return value
        raise self._wrong(key, f"a list of at most {most}")

    def objects(self, key: str, most: int) -> Iterator[Fields]:
        for value in self.items(key, most):
            yield Fields(value, f"an entry of {self._what}'s {key!r}")

    def texts(self, key: str, most: int) -> tuple[str, ...]:
        found = self.items(key, most)
        if all(isinstance(value, str) and len(value) <= LONGEST for value in found):
            return tuple(found)
        raise self._wrong(key, "a list of texts")

    def object(self, key: str) -> Fields:
        return Fields(self._fields.get(key), f"{self._what}'s {key!r}")

    def has(self, key: str) -> bool:
        return key in self._fields

    def only(self, *known: str) -> None:
        """Refuse keys that are not known: what asks for something says nothing that is not understood."""
        if len(self._fields.keys() - {"memtopo", *known}) > 0:
            raise BadPacket(f"{self._what} has a key besides {', '.join(known)}", "request")

    def _wrong(self, key: str, wanted: str) -> BadPacket:
        return BadPacket(f"{self._what} needs {key!r}: {wanted}")


_LONGEST_REASON = 1000


def refusal(error: MemtopoError) -> dict[str, Any]:
    """An error as it travels."""
    code = error.code if isinstance(error, ExchangeError) else "failed"
    hint = None if error.hint is None else shorten(error.hint, _LONGEST_REASON)
    return {"error": {"code": code, "message": shorten(error.message, _LONGEST_REASON), "hint": hint}}
