"""Names of a spec, references to them with an index or slice, and sources of imports and external objects."""

from __future__ import annotations

import re
from functools import lru_cache

from msgspec import Struct

from memtopo.common.text import printable
from memtopo.common.units import Share, Size, shorten
from memtopo.diagnostics import messages
from memtopo.diagnostics.model import InvalidValue
from memtopo.language.scalars import size_or_share, text

NAME_PATTERN = "[A-Za-z][A-Za-z0-9_-]{0,127}"
NAME = re.compile(NAME_PATTERN)
REFERENCE = re.compile(rf"({NAME_PATTERN})(?:\.([0-9]{{1,7}})(?::([0-9]{{1,7}}))?)?")
_BOUNDS = r"([0-9]*) ?((?::|-|\.\.)?) ?([0-9]*)"
_SUBSCRIPT = rf"({NAME_PATTERN})(?:\[{_BOUNDS}\]|\.{_BOUNDS})"
"""Index or slice as other languages write it."""
_SIBLING = rf"({NAME_PATTERN})\.({NAME_PATTERN})"
_EXPORT = rf"(?:{NAME_PATTERN}(?:\.[0-9]{{1,3}})?\.)?{NAME_PATTERN}"
_OUTSIDE = rf"({NAME_PATTERN}|[^\n]*/[^\n]*)"
SOURCES = rf"{NAME_PATTERN}\.{NAME_PATTERN}|{_OUTSIDE}/{_EXPORT}"
PRODUCERS = rf"{NAME_PATTERN}|{_OUTSIDE}/{NAME_PATTERN}"


AWAKE = "awake"
"""Name of a layout as it is written; no state of it has this name."""


class Reference(Struct, frozen=True):
    """Name with an optional index or half-open slice: `page`, `page.3`, `page.0:4`."""

    name: str
    first: int | None = None
    stop: int | None = None

    def __str__(self) -> str:
        if self.first is None:
            return self.name
        return f"{self.name}.{self.first}" if self.stop == self.first + 1 else f"{self.name}.{self.first}:{self.stop}"


class ImportSource(Struct, frozen=True):
    """Source of an import or external object.

    `server.weights` is an export of a sibling process, `weights-server/w` one of a held layout or a socket, and
    `camera` or `camera/frame` an object of an external producer; an empty export is the entry's own name.
    """

    holder: str
    export: str
    sibling: bool = False

    def __str__(self) -> str:
        return f"{self.holder}{'.' if self.sibling else '/'}{self.export}" if self.export else self.holder


class Near(Struct, frozen=True):
    """NUMA node of a GPU: memory of the host that is near to it. `gpu` names the GPU, or all with `gpus`."""

    gpu: str

    def __str__(self) -> str:
        return f"{{near: {self.gpu}}}"


NamedDevice = str | Near
"""Device as a spec names it."""

GPUS, PEERS = "gpus", "peers"
"""Sets of devices: every visible GPU, and every visible GPU that can access the memory in question."""


def device(value: object) -> NamedDevice:
    """Read a device: its name, or `{near: gpu0}`."""
    if isinstance(value, dict) and value:
        if set(value) == {"near"}:
            return Near(text(value["near"], "the name of a GPU"))
        raise InvalidValue("MT103", "expected a device name, found a mapping", help="write gpu0, or {near: gpu0}")
    return text(value, "a device name")


@lru_cache(maxsize=4096)
def parse_reference(written: str) -> Reference:
    """Read `page`, `page.3` or `page.0:4` (both ends, half-open). Raises `InvalidValue`."""
    match = REFERENCE.fullmatch(written)
    if not match:
        help, meant = _reference_meant(written)
        if part := re.fullmatch(rf"({NAME_PATTERN}(?:\.[0-9]+)?)\.{NAME_PATTERN}", written):
            help = f"name a chunk as a whole: {part[1]}; programs, drawings and importers know its parts, "
            help += f"and an export via dmabuf may have one: {{chunk: {part[1]}, part: {written.rpartition('.')[2]}}}"
        message = f"{shorten(written)!r} is not a name, an index (page.3) or a slice (page.0:4)"
        raise InvalidValue("MT104", message, help=help, meant=meant)
    if match[2] is None:
        return Reference(match[1])
    first = int(match[2])
    stop = int(match[3]) if match[3] else first + 1
    if stop <= first:
        raise InvalidValue("MT202", f"{written!r} is an empty slice; the end of a slice is exclusive")
    return Reference(match[1], first, stop)


def plain_subscripts(written: str) -> str:
    """Return a reference for an index or a slice in brackets; any other text as it is."""
    return _reference_meant(written)[1] or written


def _reference_meant(written: str) -> tuple[str | None, str | None]:
    """Help for an index or slice of another language, and the reference that it is, if it is certainly one."""
    match = re.fullmatch(_SUBSCRIPT, written)
    if not match:
        return ("a slice names both ends, such as page.0:4" if ":" in written else None), None
    name, *bounds = filter(None, match.groups())
    numbers = [each for each in bounds if each.isdecimal()]
    if len(numbers) == len(bounds) == 1:
        meant = f"{name}.{numbers[0]}"
    elif len(numbers) == 2 and {"-", ".."} & {*bounds}:  # noqa: PLR2004 both ends
        first, last = numbers
        help = messages.did_you_mean(f"{name}.{first}:{last}")
        return f"{help} the end is exclusive: with {name}.{last}, it is {name}.{first}:{int(last) + 1}", None
    elif len(numbers) == 2:  # noqa: PLR2004
        meant = f"{name}.{numbers[0]}:{numbers[1]}"
    elif numbers and bounds[-1] in numbers:
        meant = f"{name}.0:{numbers[0]}"
    elif numbers:
        first = int(numbers[0])
        return f"a slice names both ends, such as {name}.{first}:{first + 4}", None
    else:
        meant = name
    if REFERENCE.fullmatch(meant) is None:
        return None, None
    return messages.did_you_mean(meant), meant


def name(value: object) -> str:
    """Read the name that an entry declares, such as that of a part of an external object."""
    found = str(value)
    if NAME.fullmatch(found):
        return found
    wrong = messages.bad_name(found, ())
    raise InvalidValue(wrong.code, wrong.message, help=wrong.help, at=wrong.at)


def size_share_or_name(value: object) -> Size | Share | str:
    """Read a size that is more than 0, a share of memory in percent, or the name of another entry."""
    if isinstance(value, str) and NAME.fullmatch(value):
        return value
    return size_or_share(value)


def reference(value: object) -> Reference:
    """Read a name with its index or slice."""
    return parse_reference(text(value, "a name"))


def source(value: object) -> ImportSource:
    """Read the source of an import: an export of a sibling, of a held layout, or of a socket."""
    written = text(value, "a source such as server.weights or weights-server/w")
    holder, slash, export = written.rpartition("/")
    if slash and re.fullmatch(_EXPORT, export) and _is_holder(holder):
        return ImportSource(holder, export)
    if not slash and (match := re.fullmatch(_SIBLING, written)):
        return ImportSource(match[1], match[2], sibling=True)
    help = "write PROCESS.EXPORT of a sibling, LAYOUT/EXPORT of a held layout, or /path/to/socket/EXPORT"
    if re.fullmatch(r"[^/\s]*:[^/\s]*/.*|[a-z+]+://.*", written):
        help = "a process on another node, of this spec, is PROCESS.EXPORT, and names its node with 'node: …'; "
        help += "a holder is on the same host: LAYOUT/EXPORT, or /path/to/socket/EXPORT"
    if re.fullmatch(rf"{NAME_PATTERN}[./]({NAME_PATTERN}\.[0-9:]+|[0-9]+\.{NAME_PATTERN})", written):
        help = "an import refers to a whole export, of every instance if the process is counted; "
        help += "'map' can name a part of it: w.0:4"
    raise InvalidValue("MT104", f"{shorten(written)!r} names no export", help=help)


def producer(value: object) -> ImportSource:
    """Read the source of an external object: `camera`, `camera/frame`, `/path/to/socket/frame`."""
    written = text(value, "a producer such as camera or camera/frame")
    if NAME.fullmatch(written):
        return ImportSource(written, "")
    holder, slash, export = written.rpartition("/")
    if slash and NAME.fullmatch(export) and _is_holder(holder):
        return ImportSource(holder, export)
    help = "write PRODUCER, PRODUCER/EXPORT or /path/to/socket/EXPORT"
    if re.fullmatch(_SIBLING, written):
        help = "an export of a process of this spec is imported under 'imports'; a producer is an external program"
    elif "/" in written and written.strip("./"):
        help = f"the name of the export follows the socket's path: {printable(shorten(written)).rstrip('/')}/frame"
    raise InvalidValue("MT104", f"{shorten(written)!r} names no external object", help=help)


def _is_holder(text: str) -> bool:
    return "/" in text or NAME.fullmatch(text) is not None
