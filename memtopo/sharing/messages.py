"""Messages of the protocol: records as JSON objects and back, with a check of every field (`docs/protocol.md`)."""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any, TypeVar, get_args

from memtopo.common.errors import InternalError, MemtopoError
from memtopo.common.processes import pid_namespace
from memtopo.common.units import NamedPart, shorten
from memtopo.driver.handles import SECRET_BYTES, Handle, OfferedKind, Secret, Via
from memtopo.language.limits import LARGEST_PARTS
from memtopo.machine.cluster import MachineLine
from memtopo.plans.report import Checks, Difference, Report, Tally
from memtopo.sharing.errors import BadPacket, ExchangeError
from memtopo.sharing.offers import LONGEST_NAME, CommitState, Offer
from memtopo.sharing.status import Importer, NodeStatus, Released, Status, Taken

PAGE_BYTES = 48 << 10
"""Bytes of a list that go into one packet; the rest is for the fields around it."""

TEXT_CHARACTERS = 8 << 10
"""Characters of a long text that go into one packet; one character takes up to six bytes."""

LONGEST_SOURCE = 32 << 20
"""Characters of a source in all packets."""

MAX_ENTRIES = 4096
"""Entries of a list that are accepted in one packet; `PAGE_BYTES` allows fewer."""

LONGEST_TEXT = 4096
"""Characters of a text that has no limit of its own."""

_SECRET_CHARACTERS = 88
"""Length of the 64 bytes of a secret in base64."""

LIMIT = 1 << 63
"""Numbers of a message are below."""
LARGEST_COUNT = 1_000_000
"""Entries of a list in all packets, which bounds what a holder can send."""

_SHORT = 300
_LONGEST_REASON = 1000
_DEVICES = 64
_DIFFERENCE = ("aspect", "subject", "wanted", "seen")

W = TypeVar("W", bound=str)


class Fields:
    """One JSON object of a message, read by type and range.

    Every method raises `BadPacket` if the field is not as required; its message repeats no value.
    """

    def __init__(self, value: object, what: str) -> None:
        if not isinstance(value, dict):
            raise BadPacket(f"{what} is not an object")
        self._fields: dict[str, Any] = value
        self._what = what

    def has(self, key: str) -> bool:
        return self._fields.get(key) is not None

    def text(self, key: str, longest: int = LONGEST_TEXT) -> str:
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

    def number(self, key: str, low: int = 0, high: int = LIMIT) -> int:
        """Return an integer of [low, high)."""
        value = self._fields.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and low <= value < high:
            return value
        raise self._wrong(key, f"an integer of {low} or more" if high == LIMIT else f"one of {low} to {high - 1}")

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
        items = self.items(key, most)
        if all(isinstance(value, str) and len(value) <= LONGEST_TEXT for value in items):
            return tuple(items)
        raise self._wrong(key, "a list of texts")

    def object(self, key: str) -> Fields:
        return Fields(self._fields.get(key), f"{self._what}'s {key!r}")

    def allow_only(self, *known: str) -> None:
        """Refuse unknown keys: a request must not ask for what the holder does not support."""
        if self._fields.keys() - {"memtopo", *known}:
            raise BadPacket(f"{self._what} has a key besides {', '.join(known)}", "request")

    def _wrong(self, key: str, required: str) -> BadPacket:
        return BadPacket(f"{self._what} needs {key!r}: {required}")


def page(entries: Iterable[Any]) -> list[dict[str, Any]]:
    """Encode as many of the first entries as fit into one packet, and at least one."""
    encoded: list[dict[str, Any]] = []
    size = 0
    for entry in entries:
        fields = asdict(entry)
        size += len(json.dumps(fields))
        if encoded and size > PAGE_BYTES:
            break
        encoded.append(fields)
    return encoded


def parts(names: Collection[str]) -> Iterator[list[str]]:
    """Yield names in parts that fit into one packet each, and at least one part."""
    part: list[str] = []
    size = 0
    for name in names:
        size += len(json.dumps(name)) + 1
        if part and (size > PAGE_BYTES or len(part) == MAX_ENTRIES):
            yield part
            part, size = [], len(json.dumps(name)) + 1
        part.append(name)
    yield part


def encode_importers(importers: Sequence[Importer]) -> list[dict[str, Any]]:
    """Encode all importers for one packet; if they do not fit, without the exports of each."""
    encoded = page(importers)
    return encoded if len(encoded) == len(importers) else page(replace(each, taken=()) for each in importers)


def encode_status(status: Status) -> dict[str, Any]:
    """Encode the status of this process's layout, without its offers and importers, which have packets of their own."""
    fields = {
        "name": status.name,
        "pid": status.pid,
        "pid_namespace": pid_namespace(),
        "since": status.since,
        "state": status.state,
        "deadline": status.deadline,
        "spec": status.spec,
        "machine": encode_machine(status.machine),
        "generation": status.generation,
    }
    states = {"layout_state": status.layout_state, "layout_states": status.layout_states}
    contexts = {} if status.contexts is None else {"contexts": status.contexts[:MAX_ENTRIES]}
    nodes = {"nodes": [each.node for each in status.nodes]} if status.nodes else {}
    return fields | contexts | nodes | (states if status.layout_state else {})


def encode_machine(line: MachineLine) -> dict[str, Any]:
    """Encode the description of a machine, with its texts shortened."""
    devices = [_short(name) for name in line.devices[:_DEVICES]]
    return {
        "name": _short(line.name), "simulated": line.simulated, "devices": devices, "driver": _short(line.driver),
    }  # fmt: skip


def encode_checks(checks: Checks) -> dict[str, Any]:
    """Encode the result of a check: the first differences that fit, with their texts shortened."""
    short = (
        Difference(_short(each.aspect), _short(each.subject), _short(each.wanted), _short(each.seen))
        for each in checks.differences
    )
    return {
        "tallies": [asdict(tally) for tally in checks.tallies],
        "differences": [{key: each[key] for key in _DIFFERENCE} for each in page(short)],
        "different": checks.different,
    }


def encode_handles(handles: Sequence[Handle]) -> tuple[list[dict[str, Any]], list[int]]:
    """Encode handles, and return their descriptors, which the packet carries in the same order."""
    return [_encode_handle(handle) for handle in handles], [handle.fd for handle in handles if handle.fd is not None]


def encode_error(error: MemtopoError) -> dict[str, Any]:
    """Encode an error as the answer to a request."""
    internal = isinstance(error, InternalError)
    code = error.code if isinstance(error, ExchangeError) else "internal" if internal else "failed"
    hint = None if error.hint is None else shorten(error.hint, _LONGEST_REASON)
    return {"error": {"code": code, "message": shorten(error.message, _LONGEST_REASON), "hint": hint}}


def encode_end(report: Report) -> dict[str, Any]:
    """Encode the end of a layout, by its report, as a notice."""
    left = f"left behind: {', '.join(leak.what for leak in report.leaks)}" if report.leaks else ""
    different = f"{report.checks.different:,} not as declared" if report.checks and report.checks.different else ""
    reason = left or (report.failure.error if report.failure else different)
    end = {"outcome": report.outcome, "exit_code": report.exit_code, "reason": shorten(reason, _LONGEST_REASON) or None}
    return {"notice": "ended", **end}


def decode_end(fields: Fields, released: Released) -> Released:
    """Decode the end of a released layout. Raises `BadPacket`."""
    outcome, exit_code = fields.text("outcome", 32), fields.number("exit_code", high=256)
    return replace(released, outcome=outcome, exit_code=exit_code, reason=fields.text_or_none("reason"))


def decode_offer(fields: Fields) -> Offer:
    """Decode an offer; one of an earlier version has no `declared`. Raises `BadPacket`."""
    size = fields.number("size")
    return Offer(
        name=fields.text("name", LONGEST_NAME),
        kind=fields.word("kind", *get_args(OfferedKind)),
        via=fields.word("via", *get_args(Via)),
        count=fields.number("count", 1),
        size=size,
        location=fields.text("location", _SHORT),
        gpu=fields.text_or_none("gpu"),
        properties=fields.texts("properties", 16),
        declared=fields.number("declared", high=size + 1) if fields.has("declared") else None,
        parts=tuple(_decode_part(each, size) for each in fields.objects("parts", LARGEST_PARTS))
        if fields.has("parts")
        else (),
        commit=fields.word("commit", *get_args(CommitState)) if fields.has("commit") else None,
        entry=fields.text_or_none("entry"),
        first=fields.number("first") if fields.has("first") else 0,
        writer=fields.number("writer") or None if fields.has("writer") else None,
    )


def _decode_part(fields: Fields, size: int) -> NamedPart:
    """Decode a part of an object of `size` bytes. Raises `BadPacket`."""
    offset = fields.number("offset", high=size)
    return NamedPart(fields.text("name", LONGEST_NAME), offset, fields.number("size", 1, size - offset + 1))


def decode_importer(fields: Fields) -> Importer:
    """Decode an importer. Raises `BadPacket`."""
    return Importer(
        id=fields.number("id"),
        pid=fields.number("pid") or None,
        uid=fields.number("uid"),
        since=fields.seconds("since"),
        handles=fields.number("handles"),
        bytes=fields.number("bytes"),
        bound=fields.flag("bound"),
        taken=tuple(_decode_taken(each) for each in fields.objects("taken", MAX_ENTRIES)),
    )


def decode_nodes(text: str) -> tuple[NodeStatus, ...]:
    """Decode the parts of a layout of several nodes. Raises `BadPacket`."""
    try:
        entries = json.loads(text or "[]")
    except (ValueError, RecursionError) as error:
        raise BadPacket("its nodes are no JSON") from error
    nodes = {"nodes": entries}
    return tuple(map(_decode_node, Fields(nodes, "the text of its nodes").objects("nodes", MAX_ENTRIES)))


def _decode_node(fields: Fields) -> NodeStatus:
    return NodeStatus(
        node=fields.text("node", LONGEST_NAME),
        host=fields.text("host", _SHORT),
        state=fields.word("state", "serving", "releasing", "starting", "unreachable"),
        socket=fields.text("socket"),
        pid=fields.number("pid") or None if fields.has("pid") else None,
        offers=tuple(map(decode_offer, fields.objects("offers", LARGEST_COUNT))),
        importers=tuple(map(decode_importer, fields.objects("importers", LARGEST_COUNT))),
        contexts=fields.texts("contexts", MAX_ENTRIES) if fields.has("contexts") else None,
    )


def decode_machine(fields: Fields) -> MachineLine:
    """Decode the description of a machine. Raises `BadPacket`."""
    devices = fields.texts("devices", _DEVICES)
    return MachineLine(fields.text("name"), fields.flag("simulated"), devices, fields.text("driver"))


def decode_checks(fields: Fields) -> Checks:
    """Decode the result of a check. Raises `BadPacket`."""
    return Checks(
        tuple(_decode_tally(each) for each in fields.objects("tallies", MAX_ENTRIES)),
        tuple(_decode_difference(each) for each in fields.objects("differences", MAX_ENTRIES)),
        fields.number("different"),
    )


def decode_handles(
    entries: Sequence[Fields], fds: Sequence[int], *, descriptors: bool, secrets: bool, of: str
) -> list[Handle]:
    """Decode handles of one transport, of an export or a message: with `descriptors`, which they own, or `secrets`.

    Those of allocations have both. Raises `BadPacket`; then the descriptors stay the caller's.
    """
    if len(fds) != (len(entries) if descriptors else 0):
        raise BadPacket(f"{len(entries)} handles of {of!r} came with {len(fds)} descriptors")
    offsets = [each.number("offset") for each in entries]
    owned = fds if descriptors else [None] * len(entries)
    found = [_decode_secret(each.text("secret", _SECRET_CHARACTERS)) if secrets else None for each in entries]
    return [Handle(*each) for each in zip(owned, found, offsets, strict=True)]


def _short(text: str) -> str:
    return shorten(text, _SHORT)


def _encode_handle(handle: Handle) -> dict[str, Any]:
    fields: dict[str, Any] = {"offset": handle.offset}
    if handle.secret is not None:
        fields["secret"] = base64.b64encode(handle.secret.reveal()).decode()
    return fields


def _decode_taken(fields: Fields) -> Taken:
    return Taken(
        export=fields.text("export", LONGEST_NAME),
        kind=fields.word("kind", *get_args(OfferedKind)),
        via=fields.word("via", *get_args(Via)),
        handles=fields.number("handles"),
        bytes=fields.number("bytes"),
    )


def _decode_difference(fields: Fields) -> Difference:
    aspect, subject, wanted, seen = map(fields.text, _DIFFERENCE)
    return Difference(aspect, subject, wanted, seen)


def _decode_tally(fields: Fields) -> Tally:
    counts = fields.number("looked_at"), fields.number("as_declared"), fields.number("not_checked")
    return Tally(fields.text("aspect"), *counts, fields.text_or_none("why_not"))


def _decode_secret(text: str) -> Secret:
    try:
        value = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        value = b""
    if len(value) != SECRET_BYTES:
        raise BadPacket(f"a handle is not {SECRET_BYTES} bytes in base64")
    return Secret(value)
