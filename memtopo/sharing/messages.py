"""From messages to data and back: the shapes that `docs/protocol.md` describes."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any, get_args

from memtopo.common.units import shorten
from memtopo.plans.report import Checks, Difference, MachineLine, Tally
from memtopo.sharing.faults import BadPacket
from memtopo.sharing.offers import DESCRIPTORS, LONGEST_NAME, SECRET_BYTES, Handle, Kind, Offer, Secret, Via
from memtopo.sharing.reading import Fields
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
