"""The fields of a spec's entries: how each is read from text, and how an editor's schema describes it.

A field that refuses its text raises `Fault`. A schema sees values as YAML readers guess them, where memtopo reads text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Field, GetCoreSchemaHandler, GetJsonSchemaHandler, WithJsonSchema
from pydantic_core import core_schema

from memtopo import complaints
from memtopo.diagnostics import Fault
from memtopo.driver.types import Access, HandleType
from memtopo.units import NotASize, Size, parse_count, parse_size, shorten

LARGEST_PROCESSES = 128
"""The most processes that one spec may ask for."""

LARGEST_COUNT = 2_000_000
"""The most chunks, ranges or steps that one spec may ask for."""

_NAME = "[A-Za-z][A-Za-z0-9_-]{0,127}"
NAME = re.compile(_NAME)
REFERENCE = re.compile(rf"({_NAME})(?:\.([0-9]{{1,7}})(?::([0-9]{{1,7}}))?)?")
_SIBLING = re.compile(rf"({_NAME})\.({_NAME})")
_INDEXED = re.compile(rf"{_NAME}[./]({_NAME}\.[0-9:]+|[0-9]+\.{_NAME})")
_EXPORT = re.compile(rf"(?:{_NAME}(?:\.[0-9]{{1,3}})?\.)?{_NAME}")
_ADDRESS = re.compile(r"0x[0-9A-Fa-f]{1,16}")
_DEVICE = f"{_NAME}|host:[0-9]+"
_BYTES = "(B|KiB|MiB|GiB|TiB)"
_UNITS = "(B|KiB|MiB|GiB|TiB|granules?)"


class Reference(NamedTuple):
    """A name with an optional index or half-open slice: `page`, `page.3`, `page.0:4`."""

    name: str
    first: int | None = None
    stop: int | None = None

    def __str__(self) -> str:
        if self.first is None:
            return self.name
        return f"{self.name}.{self.first}" if self.stop == self.first + 1 else f"{self.name}.{self.first}:{self.stop}"


class Source(NamedTuple):
    """Where an import comes from: `server.weights` of a sibling, `weights-server/w` of a held layout or a socket."""

    holder: str
    export: str
    sibling: bool = False

    def __str__(self) -> str:
        return f"{self.holder}{'.' if self.sibling else '/'}{self.export}"


def parse_reference(text: str) -> Reference:
    """Read `page`, `page.3` or `page.0:4` (both ends, half-open). Raises `Fault`."""
    match = REFERENCE.fullmatch(text)
    if not match:
        help = "a slice names both ends: page.0:4" if ":" in text else None
        raise Fault("MT104", f"{shorten(text)!r} is not a name, an index (page.3) or a slice (page.0:4)", help=help)
    if match[2] is None:
        return Reference(match[1])
    first = int(match[2])
    stop = int(match[3]) if match[3] else first + 1
    if stop <= first:
        raise Fault("MT202", f"{text!r} is an empty slice; its end is the first that is left out")
    return Reference(match[1], first, stop)


def one_or_more(value: object) -> object:
    """A list of at least one; what stands alone is a list of one."""
    if not value:
        raise Fault("MT103", "expected at least one, found none")
    return value if isinstance(value, list) else [value]


def _text(value: object, wanted: str) -> str:
    if isinstance(value, str):
        if value:
            return value
        raise Fault("MT103", f"expected {wanted}, found nothing")
    raise Fault("MT103", f"expected {wanted}, found a {'list' if isinstance(value, list) else 'mapping'}")


def _size(value: object) -> Size:
    try:
        return parse_size(_text(value, "a size such as 64MiB or 4 granules"))
    except NotASize as error:
        meant = error.meant if error.meant and parse_size(error.meant).amount else None
        raise Fault("MT105", str(error), help=f"write {meant}" if meant else None) from error


def _positive(value: object) -> Size:
    size = _size(value)
    if size.amount == 0:
        raise Fault("MT105", "a size of 0 is nothing to build", help="leave the entry out, or give it a size")
    return size


def _bytes(value: object) -> Size:
    size = _positive(value)
    if size.in_granules:
        raise Fault("MT105", "a buffer has no granules", help="write its bytes: 2MiB")
    return size


def _processes(value: object) -> int:
    count = _count(value)
    if count > LARGEST_PROCESSES:
        raise Fault("MT109", f"{count:,} processes are more than the {LARGEST_PROCESSES} that one spec may ask for")
    return count


def _count(value: object) -> int:
    text = _text(value, "a count")
    try:
        count = parse_count(text)
    except ValueError as error:
        meant = text.replace("_", "").replace(",", "")
        help = f"write {int(meant)}" if meant.isascii() and meant.isdecimal() and len(meant) < 20 else None  # noqa: PLR2004
        raise Fault("MT106", str(error), help=help) from error
    if count == 0:
        raise Fault("MT106", "a count of 0 is nothing to build", help="leave the entry out, or count from 1")
    if count > LARGEST_COUNT:
        raise Fault("MT109", f"a count of {count:,} is more than the {LARGEST_COUNT:,} that one spec may ask for")
    return count


def _address(value: object) -> int:
    text = _text(value, "an address such as 0x7f0000000000")
    if not _ADDRESS.fullmatch(text):
        raise Fault("MT106", f"{shorten(text)!r} is not an address", help="write it as 0x and hexadecimal digits")
    return int(text, 16)


def _boolean(value: object) -> bool:
    text = _text(value, "true or false")
    if text not in ("true", "false"):
        raise Fault("MT107", f"{shorten(text)!r} is not a boolean", help="write true or false")
    return text == "true"


def _word(words: Mapping[str, Any], what: str) -> Callable[[object], Any]:
    def read(value: object) -> Any:
        text = _text(value, what)
        if text not in words:
            raise Fault("MT107", f"{shorten(text)!r} is not {what}", help=complaints.choose(text, list(words)))
        return words[text]

    return read


def _device(value: object) -> str:
    return _text(value, "a device name")


def _source(value: object) -> Source:
    """Read where an import comes from: a sibling's export, or that of a held layout or a socket."""
    text = _text(value, "a source such as server.weights or weights-server/w")
    holder, slash, export = text.rpartition("/")
    if slash and _EXPORT.fullmatch(export) and ("/" in holder or NAME.fullmatch(holder)):
        return Source(holder, export)
    if not slash and (match := _SIBLING.fullmatch(text)):
        return Source(match[1], match[2], sibling=True)
    help = "write PROCESS.EXPORT of a sibling, LAYOUT/EXPORT of a held layout, or /path/to/socket/EXPORT"
    if _INDEXED.fullmatch(text):
        help = "an import takes all of an export, of every process of a counted one; 'map' takes parts of it: w.0:4"
    raise Fault("MT104", f"{shorten(text)!r} names no export", help=help)


def _reference(value: object) -> Reference:
    return parse_reference(_text(value, "a name"))


def _text_like(pattern: str) -> dict[str, Any]:
    return {"type": "string", "pattern": f"^(?:{pattern})$"}


class _Read:
    """How a field is read from its text, and what an editor's schema says of it.

    pydantic's own PlainValidator also looks at the type that comes out, for a schema that nobody asks for.
    """

    def __init__(self, read: Callable[[object], Any], schema: dict[str, Any]) -> None:
        self._read, self._schema = read, schema

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        del source, handler
        return core_schema.no_info_plain_validator_function(self._read)

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        del schema, handler
        return {**self._schema}  # pydantic adds each field's description to it


_AMOUNT = _text_like(f"(0|[1-9][0-9]{{0,19}}) ?{_UNITS}")
_SOME = _text_like(f"[1-9][0-9]{{0,19}} ?{_UNITS}")

Amount = Annotated[Size, _Read(_size, {"anyOf": [_AMOUNT, {"type": "integer", "const": 0}]})]
PositiveAmount = Annotated[Size, _Read(_positive, _SOME)]
PositiveBytes = Annotated[Size, _Read(_bytes, _text_like(f"[1-9][0-9]{{0,19}} ?{_BYTES}"))]
Count = Annotated[int, _Read(_count, {"type": "integer", "minimum": 1, "maximum": LARGEST_COUNT})]
ProcessCount = Annotated[int, _Read(_processes, {"type": "integer", "minimum": 1, "maximum": LARGEST_PROCESSES})]
# A YAML reader turns 0x… into an integer before a schema sees it.
_ADDRESSES = {"anyOf": [_text_like(_ADDRESS.pattern), {"type": "integer", "minimum": 0}]}
Address = Annotated[int, _Read(_address, _ADDRESSES)]
Boolean = Annotated[bool, _Read(_boolean, {"type": "boolean"})]
Rounding = Annotated[Literal["up"], _Read(_word({"up": "up"}, "a way to round"), {"enum": ["up"]})]

HANDLE_WORDS = {str(kind.name).lower(): kind for kind in HandleType if kind}
ACCESS_WORDS = {access.word: access for access in (Access.R, Access.RW, Access.NONE)}
HandleWord = Annotated[HandleType, _Read(_word(HANDLE_WORDS, "a handle type"), {"enum": [*HANDLE_WORDS]})]
AccessWord = Annotated[Access, _Read(_word(ACCESS_WORDS, "an access"), {"enum": [*ACCESS_WORDS]})]

Name = Annotated[str, WithJsonSchema(_text_like(_NAME))]
ReferringName = Annotated[str, WithJsonSchema(_text_like(REFERENCE.pattern))]
DeviceName = Annotated[str, _Read(_device, _text_like(_DEVICE))]
_Gpu = Annotated[str, WithJsonSchema(_text_like(f"(?!host$){_NAME}"))]
_IDENTITIES = {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "minLength": 1}]}
DeviceIdentity = Annotated[str, _Read(_device, _IDENTITIES)]
ChunkReference = Annotated[Reference, _Read(_reference, _text_like(REFERENCE.pattern))]
Grants = dict[Annotated[str, WithJsonSchema(_text_like(_DEVICE))], AccessWord]

_SOURCE = rf"{_NAME}\.{_NAME}|({_NAME}|[^\n]*/[^\n]*)/{_EXPORT.pattern}"
SourceText = Annotated[Source, _Read(_source, _text_like(_SOURCE))]
TRANSPORTS = {word: word for word in ("fd", "fabric", "ipc")}
Transport = Annotated[Literal["fd", "fabric", "ipc"], _Read(_word(TRANSPORTS, "a transport"), {"enum": [*TRANSPORTS]})]

_OneOrMoreDevices = DeviceName | Annotated[list[DeviceName], Field(min_length=1)]
_OneOrMoreGpus = _Gpu | Annotated[list[_Gpu], Field(min_length=1)]
Gpus = Annotated[list[DeviceName], BeforeValidator(one_or_more, json_schema_input_type=_OneOrMoreGpus)]
_OneOrMoreHandles = HandleWord | Annotated[list[HandleWord], Field(min_length=1)]
Devices = Annotated[list[DeviceName], BeforeValidator(one_or_more, json_schema_input_type=_OneOrMoreDevices)]
_OneOrMoreIdentities = DeviceIdentity | Annotated[list[DeviceIdentity], Field(min_length=1)]
Identities = Annotated[list[DeviceIdentity], BeforeValidator(one_or_more, json_schema_input_type=_OneOrMoreIdentities)]
Handles = Annotated[list[HandleWord], BeforeValidator(one_or_more, json_schema_input_type=_OneOrMoreHandles)]
