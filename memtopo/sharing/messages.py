"""Messages of the protocol as dataclasses, which `wire.read` validates, and their encoding (`docs/protocol.md`)."""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, PlainValidator

from memtopo.common.errors import InternalError, MemtopoError
from memtopo.common.processes import pid_namespace
from memtopo.common.units import shorten
from memtopo.driver.handles import Handle, Secret
from memtopo.machine import MachineLine
from memtopo.plans.report import Checks, Difference, Report
from memtopo.sharing.errors import BadPacket, ExchangeError
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

Wait = Annotated[float, Field(ge=0, le=LONGEST_WAIT)]
Exports = Annotated[Texts, Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Reason why a request was refused; `code` is one of those in `docs/protocol.md`."""

    code: Annotated[str, Field(max_length=32)]
    message: Text
    hint: Text | None = None


@dataclass(frozen=True, slots=True)
class RefusedAnswer:
    """Answer to a refused request."""

    error: Refusal


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class _Releasing(Notice):
    grace: Seconds


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class _Changing(Notice):
    grace: Annotated[Seconds, Field(validation_alias="deadline")]
    generation: Positive
    exports: Texts


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class _Changed(Notice):
    generation: Positive
    exports: Texts


@dataclass(frozen=True, slots=True)
class ProgressNotice:
    """Steps of a phase of the work on a request, of a `total`."""

    phase: Annotated[str, Field(max_length=64)]
    done: Count
    total: Count


NOTICES: Mapping[str, type[Notice | ProgressNotice]] = {
    "releasing": _Releasing, "changing": _Changing, "changed": _Changed, "progress": ProgressNotice,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class StatusAnswer:
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
    layout_states: Annotated[tuple[Text, ...], Field(max_length=MOST_STATES)] = ()
    contexts: Texts | None = None
    nodes: Texts = ()
    processes: Processes = field(default_factory=dict)
    heaps: Annotated[tuple[HeapUse, ...], Field(max_length=_HEAPS)] = ()
    end: LayoutEnd | None = None


@dataclass(frozen=True, slots=True)
class OffersAnswer:
    """Some of `total` offers. Holders of an earlier version have no `generation` here and in other answers."""

    total: Annotated[int, Field(ge=0, lt=LARGEST_COUNT)]
    offers: tuple[Offer, ...]
    generation: Positive | None = None


@dataclass(frozen=True, slots=True)
class ImportersAnswer:
    """Some importers, and whether there are `more`."""

    importers: tuple[Importer, ...]
    more: bool


@dataclass(frozen=True, slots=True)
class ReleaseAnswer:
    """Importers that lost memory in use or keep some, and whether the holder `reports` its end in a notice."""

    name: LayoutName
    lost: tuple[Importer, ...]
    kept: tuple[Importer, ...]
    reports: bool = False


@dataclass(frozen=True, slots=True)
class EndNotice:
    """End of a released layout, by the report of its holder."""

    outcome: Annotated[str, Field(max_length=32)]
    exit_code: Annotated[int, Field(ge=0, lt=256)]
    reason: Text | None = None


@dataclass(frozen=True, slots=True)
class TextAnswer:
    """Part of a text of `total` characters."""

    total: Annotated[int, Field(ge=0, le=LONGEST_SOURCE)]
    text: Annotated[str, Field(max_length=TEXT_CHARACTERS)]


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """Answer of which only the generation is read, if it has one."""

    generation: Positive | None = None


def _decoded(text: object) -> Secret:
    try:
        return Secret(base64.b64decode(str(text), validate=True))
    except ValueError:
        raise ValueError("64 bytes in base64") from None


@dataclass(frozen=True, slots=True)
class HandleEntry:
    """Handle in a packet without its descriptor, which the packet carries."""

    offset: Count
    secret: Annotated[Secret, PlainValidator(_decoded)] | None = None


@dataclass(frozen=True, slots=True)
class HandlesAnswer:
    """Handles of an export from number `first` on."""

    offer: Offer
    first: Count
    handles: tuple[HandleEntry, ...]
    generation: Positive | None = None


@dataclass(frozen=True, slots=True)
class Block:
    """Lent object of an export by its number, with the epoch of its bytes."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    number: Count
    epoch: Positive


Blocks = Annotated[tuple[Block, ...], Field(min_length=1, max_length=MAX_ENTRIES)]
Key = Annotated[str, Field(min_length=1, max_length=LONGEST_NAME)]


@dataclass(frozen=True, slots=True)
class LentAnswer:
    """Objects that are lent from now on, each with a handle, and how many there are in all of a key."""

    blocks: Annotated[tuple[Block, ...], Field(max_length=MOST_FDS)]
    handles: tuple[HandleEntry, ...]
    total: Count = 0
    generation: Positive | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """Request of a client, with no other keys than these: a holder must not ignore what it does not support."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    memtopo: int
    request: str


@dataclass(frozen=True, slots=True)
class ListRequest(Request):
    """Request of a list or a text from number `first` on."""

    first: Count


@dataclass(frozen=True, slots=True)
class ImportersRequest(Request):
    """Request of the importers after the one with a number."""

    after: Count


@dataclass(frozen=True, slots=True)
class HandlesRequest(Request):
    """Request of at most `count` handles of an export."""

    export: Name
    first: Count
    count: Positive


@dataclass(frozen=True, slots=True)
class LetGoRequest(Request):
    """Request to forget the handles of exports that the client has closed; of one that lends, of some `blocks`."""

    exports: Texts
    blocks: Blocks | None = None


@dataclass(frozen=True, slots=True)
class LendRequest(Request):
    """Request of at most `count` objects of an export that lends: others, or from `first` on those of a key.

    With an `epoch`, the latest one of those of the key has to be that.
    """

    export: Name
    count: Count
    key: Key | None = None
    first: Count = 0
    epoch: Positive | None = None


@dataclass(frozen=True, slots=True)
class SealRequest(Request):
    """Request to keep lent objects under a key when they are given back; without one, no longer."""

    export: Name
    blocks: Blocks
    key: Key | None = None


@dataclass(frozen=True, slots=True)
class WaitRequest(Request):
    """Request of the lease to write exports, or of their commit."""

    exports: Exports
    wait: Wait = 0.0


@dataclass(frozen=True, slots=True)
class Written:
    """Export with the generation that was written."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    name: Name
    generation: Positive


@dataclass(frozen=True, slots=True)
class CommitRequest(Request):
    """Request to commit exports."""

    exports: Annotated[tuple[Written, ...], Field(min_length=1, max_length=MAX_ENTRIES)]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransitionRequest(Request):
    """Request of a change or a switch; with `force`, importers that hold memory after `wait` seconds keep it."""

    force: bool
    wait: Wait = 0.0
    check: Literal["fast", "full"] = "fast"


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchRequest(TransitionRequest):
    """Request of a switch to a state."""

    state: Name


@dataclass(frozen=True, slots=True)
class SourcePart:
    """Part of a source of `total` characters from number `first` on."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    first: Count
    total: Annotated[int, Field(ge=1, le=LONGEST_SOURCE)]
    text: Annotated[str, Field(max_length=TEXT_CHARACTERS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecRequest(TransitionRequest):
    """Request of a change to the spec in a source, if the layout is of that generation."""

    source: SourcePart
    generation: Positive | None = None


@dataclass(frozen=True, slots=True)
class SaveRequest(Request):
    """Request to save the bytes of the layout to a folder, by its absolute path."""

    folder: Annotated[str, Field(pattern="^/", max_length=4096)]


@dataclass(frozen=True, slots=True)
class ReleaseRequest(Request):
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
        fields = asdict(entry)
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
    contexts = {} if status.contexts is None else {"contexts": status.contexts[:MAX_ENTRIES]}
    nodes = {"nodes": [each.node for each in status.nodes]} if status.nodes else {}
    own = {label: pid for label, pid in islice(status.processes.items(), MOST_PROCESSES) if label}
    processes = {"processes": own} if own else {}
    heaps = {"heaps": [asdict(each) for each in status.heaps[:_HEAPS]]} if status.heaps else {}
    end = {"end": asdict(status.end)} if status.end else {}
    return fields | contexts | nodes | processes | heaps | end


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
    encoded: list[dict[str, Any]] = [{"offset": handle.offset} for handle in handles]
    for fields, handle in zip(encoded, handles, strict=True):
        if handle.secret is not None:
            fields["secret"] = base64.b64encode(handle.secret.reveal()).decode()
    return encoded, [handle.fd for handle in handles if handle.fd is not None]


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
