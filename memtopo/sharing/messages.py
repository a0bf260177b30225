"""Messages of the protocol as structs, which `wire.read` validates, and their encoding (`docs/protocol.md`)."""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field, to_builtins
from msgspec.structs import replace

from memtopo.common.errors import BadPacket, ExchangeError, InternalError, MemtopoError
from memtopo.common.processes import pid_namespace
from memtopo.common.units import shorten
from memtopo.driver.handles import Handle, Secret
from memtopo.machine import MachineLine
from memtopo.plans.report import Checks, Difference, Report
from memtopo.sharing.offers import Offer
from memtopo.sharing.status import (
    MOST_PROCESSES,
    MOST_STATES,
    HeapUse,
    Importer,
    LayoutEnd,
    NodeStatus,
    Notice,
    Processes,
    State,
    Status,
)
from memtopo.sharing.wire import (
    LONGEST_NAME,
    LONGEST_SOURCE,
    MAX_ENTRIES,
    MOST_FDS,
    Count,
    LayoutName,
    Name,
    Packet,
    Positive,
    Seconds,
    Text,
    Texts,
    read,
)

PAGE_BYTES = 48 << 10
"""Bytes of a list that go into one packet; the rest is for the fields around it."""

TEXT_CHARACTERS = 8 << 10
"""Characters of a long text that go into one packet; one character takes up to six bytes."""

LARGEST_COUNT = 1_000_000
"""Entries of a list in all packets, which bounds what a holder can send."""

_SHORT = 300
_LONGEST_REASON = 1000
_DEVICES = 64
_HEAPS = 128
_DIFFERENCE = ("aspect", "subject", "wanted", "seen")

LONGEST_WAIT = 3600.0
"""Seconds for which a request may wait for importers or a writer, and that importers have before a release."""

Wait = Annotated[float, Meta(ge=0, le=LONGEST_WAIT)]
Exports = Annotated[Texts, Meta(min_length=1)]


class Refusal(Struct, frozen=True):
    """Reason why a request was refused; `code` is one of those in `docs/protocol.md`."""

    code: Annotated[str, Meta(max_length=32)]
    message: Text
    hint: Text | None = None


class RefusedAnswer(Struct, frozen=True):
    """Answer to a refused request."""

    error: Refusal


class _Releasing(Notice, frozen=True, kw_only=True):
    grace: Seconds


class _Changing(Notice, frozen=True, kw_only=True):
    grace: Seconds = field(name="deadline")
    generation: Positive
    exports: Texts


class _Changed(Notice, frozen=True, kw_only=True):
    generation: Positive
    exports: Texts


class ProgressNotice(Struct, frozen=True):
    """Steps of a phase of the work on a request, of a `total`."""

    phase: Annotated[str, Meta(max_length=64)]
    done: Count
    total: Count


NOTICES: Mapping[str, type[Notice | ProgressNotice]] = {
    "releasing": _Releasing, "changing": _Changing, "changed": _Changed, "progress": ProgressNotice,
}  # fmt: skip


class StatusAnswer(Struct, frozen=True):
    """Status of a layout; `pid` is that of the holder in its own pid namespace."""

    name: LayoutName
    pid: Count
    since: Seconds
    state: State
    machine: MachineLine
    deadline: Seconds | None = None
    spec: Text | None = None
    pid_namespace: Count | None = None
    generation: Positive = 1
    layout_state: Text | None = None
    layout_states: Annotated[tuple[Text, ...], Meta(max_length=MOST_STATES)] = ()
    contexts: Texts | None = None
    nodes: Texts = ()
    processes: Processes = {}
    heaps: Annotated[tuple[HeapUse, ...], Meta(max_length=_HEAPS)] = ()
    end: LayoutEnd | None = None


class OffersAnswer(Struct, frozen=True):
    """Some of `total` offers. Holders of an earlier version have no `generation` here and in other answers."""

    total: Annotated[int, Meta(ge=0, le=LARGEST_COUNT - 1)]
    offers: tuple[Offer, ...]
    generation: Positive | None = None


class ImportersAnswer(Struct, frozen=True):
    """Some importers, and whether there are `more`."""

    importers: tuple[Importer, ...]
    more: bool


class ReleaseAnswer(Struct, frozen=True):
    """Importers that lost memory in use or keep some, and whether the holder `reports` its end in a notice."""

    name: LayoutName
    lost: tuple[Importer, ...]
    kept: tuple[Importer, ...]
    reports: bool = False


class EndNotice(Struct, frozen=True):
    """End of a released layout, by the report of its holder."""

    outcome: Annotated[str, Meta(max_length=32)]
    exit_code: Annotated[int, Meta(ge=0, le=255)]
    reason: Text | None = None


class TextAnswer(Struct, frozen=True):
    """Part of a text of `total` characters."""

    total: Annotated[int, Meta(ge=0, le=LONGEST_SOURCE)]
    text: Annotated[str, Meta(max_length=TEXT_CHARACTERS)]


class Acknowledgement(Struct, frozen=True):
    """Answer of which only the generation is read, if it has one."""

    generation: Positive | None = None


class HandleEntry(Struct, frozen=True):
    """Handle in a packet without its descriptor, which the packet carries."""

    offset: Count
    secret: Secret | None = None


class HandlesAnswer(Struct, frozen=True):
    """Handles of an export from number `first` on."""

    offer: Offer
    first: Count
    handles: tuple[HandleEntry, ...]
    generation: Positive | None = None


class Block(Struct, frozen=True, forbid_unknown_fields=True):
    """Lent object of an export by its number, with the epoch of its bytes."""

    number: Count
    epoch: Positive


Blocks = Annotated[tuple[Block, ...], Meta(min_length=1, max_length=MAX_ENTRIES)]
Key = Annotated[str, Meta(min_length=1, max_length=LONGEST_NAME)]


class LentAnswer(Struct, frozen=True):
    """Objects that are lent from now on, each with a handle, and how many there are in all of a key."""

    blocks: Annotated[tuple[Block, ...], Meta(max_length=MOST_FDS)]
    handles: tuple[HandleEntry, ...]
    total: Count = 0
    generation: Positive | None = None


class Request(Struct, frozen=True, forbid_unknown_fields=True):
    """Request of a client, with no other keys than these: a holder must not ignore what it does not support."""

    memtopo: int
    request: str


class ListRequest(Request, frozen=True):
    """Request of a list or a text from number `first` on."""

    first: Count


class ImportersRequest(Request, frozen=True):
    """Request of the importers after the one with a number."""

    after: Count


class HandlesRequest(Request, frozen=True):
    """Request of at most `count` handles of an export."""

    export: Name
    first: Count
    count: Positive


class LetGoRequest(Request, frozen=True):
    """Request to forget the handles of exports that the client has closed; of one that lends, of some `blocks`."""

    exports: Texts
    blocks: Blocks | None = None


class LendRequest(Request, frozen=True):
    """Request of at most `count` objects of an export that lends: others, or from `first` on those of a key.

    With an `epoch`, the latest one of those of the key has to be that.
    """

    export: Name
    count: Count
    key: Key | None = None
    first: Count = 0
    epoch: Positive | None = None


class SealRequest(Request, frozen=True):
    """Request to keep lent objects under a key when they are given back; without one, no longer."""

    export: Name
    blocks: Blocks
    key: Key | None = None


class WaitRequest(Request, frozen=True):
    """Request of the lease to write exports, or of their commit."""

    exports: Exports
    wait: Wait = 0.0


class Written(Struct, frozen=True, forbid_unknown_fields=True):
    """Export with the generation that was written."""

    name: Name
    generation: Positive


class CommitRequest(Request, frozen=True):
    """Request to commit exports."""

    exports: Annotated[tuple[Written, ...], Meta(min_length=1, max_length=MAX_ENTRIES)]


class TransitionRequest(Request, frozen=True, kw_only=True):
    """Request of a change or a switch; with `force`, importers that hold memory after `wait` seconds keep it."""

    force: bool
    wait: Wait = 0.0
    check: Literal["fast", "full"] = "fast"


class SwitchRequest(TransitionRequest, frozen=True, kw_only=True):
    """Request of a switch to a state."""

    state: Name


class SourcePart(Struct, frozen=True, forbid_unknown_fields=True):
    """Part of a source of `total` characters from number `first` on."""

    first: Count
    total: Annotated[int, Meta(ge=1, le=LONGEST_SOURCE)]
    text: Annotated[str, Meta(max_length=TEXT_CHARACTERS)]


class SpecRequest(TransitionRequest, frozen=True, kw_only=True):
    """Request of a change to the spec in a source, if the layout is of that generation."""

    source: SourcePart
    generation: Positive | None = None


class SaveRequest(Request, frozen=True):
    """Request to save the bytes of the layout to a folder, by its absolute path."""

    folder: Annotated[str, Meta(pattern="^/", max_length=4096)]


class ReleaseRequest(Request, frozen=True):
    """Request of the release, with `grace` seconds for importers."""

    force: bool
    grace: Wait


REQUESTS: Mapping[str, type[Request]] = {
    **dict.fromkeys(("status", "check", "metrics"), Request),
    **dict.fromkeys(("offers", "nodes", "source"), ListRequest),
    **dict.fromkeys(("write", "await"), WaitRequest),
    "importers": ImportersRequest, "handles": HandlesRequest, "let_go": LetGoRequest, "commit": CommitRequest,
    "lend": LendRequest, "seal": SealRequest,
    "switch": SwitchRequest, "change": SpecRequest, "save": SaveRequest, "release": ReleaseRequest,
}  # fmt: skip


def read_request(packet: Packet) -> Request:
    """Validate a request. Raises `BadPacket`; then its descriptors are closed."""
    if packet.fds:
        packet.close()
        raise BadPacket("a request came with descriptors")
    kind = REQUESTS.get(str(packet.message.get("request")))
    if kind is None:
        raise BadPacket(f"the request needs 'request': one of {', '.join(REQUESTS)}", "request")
    return read(kind, packet.message, "the request")


def page(entries: Iterable[Any]) -> list[dict[str, Any]]:
    """Encode as many of the first entries as fit into one packet, and at least one."""
    encoded: list[dict[str, Any]] = []
    size = 0
    for entry in entries:
        fields = to_builtins(entry)
        size += len(json.dumps(fields))
        if encoded and size > PAGE_BYTES:
            break
        encoded.append(fields)
    return encoded


def text_part(text: str, first: int) -> dict[str, Any]:
    """Encode the part of a text from a character on, as `TextAnswer`."""
    return {"total": len(text), "text": text[first : first + TEXT_CHARACTERS]}


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
    states = ("layout_state", "layout_states") if status.layout_state else ()
    keys = ("name", "pid", "since", "state", "deadline", "spec", "generation", *states)
    fields = {key: getattr(status, key) for key in keys}
    fields |= {"pid_namespace": pid_namespace(), "machine": encode_machine(status.machine)}
    if status.contexts is not None:
        fields["contexts"] = status.contexts[:MAX_ENTRIES]
    optional = {
        "nodes": [each.node for each in status.nodes],
        "processes": {label: pid for label, pid in islice(status.processes.items(), MOST_PROCESSES) if label},
        "heaps": to_builtins(status.heaps[:_HEAPS]),
        "end": to_builtins(status.end),
    }
    return fields | {key: value for key, value in optional.items() if value}


def encode_machine(line: MachineLine) -> dict[str, Any]:
    """Encode the description of a machine, with its texts shortened."""
    devices = tuple(map(_short, line.devices[:_DEVICES]))
    short: dict[str, Any] = to_builtins(MachineLine(_short(line.name), line.simulated, devices, _short(line.driver)))
    return short


def encode_checks(checks: Checks) -> dict[str, Any]:
    """Encode the result of a check: the first differences that fit, with their texts shortened."""
    short = (
        Difference(_short(each.aspect), _short(each.subject), _short(each.wanted), _short(each.seen))
        for each in checks.differences
    )
    differences = [{key: each[key] for key in _DIFFERENCE} for each in page(short)]
    return {"tallies": to_builtins(checks.tallies), "differences": differences, "different": checks.different}


def encode_handles(handles: Sequence[Handle]) -> tuple[list[dict[str, Any]], list[int]]:
    """Encode handles, and return their descriptors, which the packet carries in the same order."""
    encoded: list[dict[str, Any]] = [{"offset": handle.offset} for handle in handles]
    for fields, handle in zip(encoded, handles, strict=True):
        if handle.secret is not None:
            fields["secret"] = base64.b64encode(handle.secret.reveal()).decode()
    return encoded, [handle.fd for handle in handles if handle.fd is not None]


def encode_error(error: MemtopoError) -> dict[str, Any]:
    """Encode an error as the answer to a request."""
    code = "internal" if isinstance(error, InternalError) else "failed"
    if isinstance(error, ExchangeError):
        code = error.code
    hint = None if error.hint is None else shorten(error.hint, _LONGEST_REASON)
    return {"error": {"code": code, "message": shorten(error.message, _LONGEST_REASON), "hint": hint}}


def encode_end(report: Report) -> dict[str, Any]:
    """Encode the end of a layout, by its report, as a notice."""
    left = f"left behind: {', '.join(leak.what for leak in report.leaks)}" if report.leaks else ""
    different = f"{report.checks.different:,} not as declared" if report.checks and report.checks.different else ""
    reason = left or (report.failure.error if report.failure else different)
    end = {"outcome": report.outcome, "exit_code": report.exit_code, "reason": shorten(reason, _LONGEST_REASON) or None}
    return {"notice": "ended", **end}


def decode_nodes(text: str) -> tuple[NodeStatus, ...]:
    """Decode the parts of a layout of several nodes. Raises `BadPacket`."""
    try:
        return read(tuple[NodeStatus, ...], json.loads(text or "[]"), "the text of its nodes")
    except (ValueError, RecursionError) as error:
        raise BadPacket("its nodes are not JSON") from error


def decode_handles(
    entries: Sequence[HandleEntry], fds: Sequence[int], *, descriptors: bool, secrets: bool, of: str
) -> list[Handle]:
    """Decode handles of one transport, of an export or a message: with `descriptors`, which they own, or `secrets`.

    Those of allocations have both. Raises `BadPacket`; then the descriptors stay the caller's.
    """
    if len(fds) != (len(entries) if descriptors else 0):
        raise BadPacket(f"{len(entries)} handles of {of!r} came with {len(fds)} descriptors")
    if secrets and not all(each.secret for each in entries):
        raise BadPacket(f"a handle of {of!r} has no 'secret'")
    owned = fds if descriptors else [None] * len(entries)
    pairs = zip(owned, entries, strict=True)
    return [Handle(fd, each.secret if secrets else None, each.offset) for fd, each in pairs]


def _short(text: str) -> str:
    return shorten(text, _SHORT)
