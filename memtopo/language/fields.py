"""Field types of a spec's entries: each with the function that reads it from text, and its JSON Schema.

A field raises `InvalidValue` for text that it does not accept. memtopo reads all scalars as text; the schemas describe
the numbers and booleans that an editor's YAML reader makes of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Generic, Literal, TypeVar

from msgspec import Struct
from pydantic import BeforeValidator, Field, WithJsonSchema

from memtopo.common.units import Share, Size, shorten
from memtopo.diagnostics.model import InvalidValue
from memtopo.driver.handles import Via
from memtopo.driver.types import Access, HandleType
from memtopo.language import names, scalars
from memtopo.language.names import NAME_PATTERN, ImportSource, NamedDevice, Reference
from memtopo.language.scalars import FromText, FromWord, one_of, text_like

T = TypeVar("T")

_MISPLACED = re.compile(r"(^|[ \t])else([ \t]|$)")


class Alternatives(Struct, Generic[T], frozen=True):
    """Values in the order of preference, and the words that a spec writes for them."""

    options: tuple[T, ...]
    words: tuple[str, ...]

    def __str__(self) -> str:
        return " else ".join(self.words)


def or_else(read: Callable[[object], T], example: str) -> Callable[[object], T | Alternatives[T]]:
    """Return a function that reads one value, or alternatives of it; `read` reads one of them."""

    def alternatives(value: object) -> T | Alternatives[T]:
        if not (isinstance(value, str) and _MISPLACED.search(value)):
            return read(value)
        words = tuple(re.split(r"[ \t]+else[ \t]+", value))
        if any(_MISPLACED.search(word) for word in words):
            raise InvalidValue("MT107", "'else' stands between two alternatives", help=f"write {example}")
        options = tuple(map(read, words))
        if twice := next((word for index, word in enumerate(words) if word in words[:index]), None):
            raise InvalidValue("MT107", f"{twice!r} is twice among the alternatives", help="omit one of them")
        return Alternatives(options, words)

    return alternatives


def or_else_schema(schema: dict[str, Any], words: str) -> dict[str, Any]:
    """JSON Schema of one value or alternatives of it; `words` is the pattern of one alternative."""
    message = "Alternatives; the first one that works is used: fabric else fd."
    return {"anyOf": [schema, text_like(f"({words})( else ({words}))+", message)]}


def one_or_more_of(item: Any) -> BeforeValidator:
    """Annotation of a list that a spec may write as its only item."""
    several = Annotated[list[item], Field(min_length=1)]
    return BeforeValidator(scalars.one_or_more, json_schema_input_type=item | several)


def entries_or_chunks(entry: Any) -> Any:
    """Type of a list of entries, each of which a spec may write as the name of its chunk alone."""

    def read(value: object) -> object:
        return {"chunk": value} if isinstance(value, str) else value

    item: Any = Annotated[entry, BeforeValidator(read, json_schema_input_type=ChunkReference | entry)]
    return Annotated[list[item], one_or_more_of(item)]


_DEVICE = f"{NAME_PATTERN}|host:[0-9]+"
_BYTES = "(B|KiB|MiB|GiB|TiB)"
_UNITS = "(B|KiB|MiB|GiB|TiB|granules?)"


_BOOLEANS = dict.fromkeys(("true", "yes", "on"), "true") | dict.fromkeys(("false", "no", "off"), "false")
"""Words for booleans in YAML 1.1, in lower case."""


def _boolean(value: object) -> bool:
    found = scalars.text(value, "true or false")
    if found not in ("true", "false"):
        meant = _BOOLEANS.get(found.lower())
        raise InvalidValue("MT107", f"{shorten(found)!r} is not a boolean", help="write true or false", meant=meant)
    return found == "true"


def _support(value: object) -> bool | Alternatives[bool]:
    """Read a boolean, or `true else false`: the property if the machine supports it."""
    found = or_else(_boolean, "true else false")(value)
    if isinstance(found, Alternatives) and found.options != (True, False):
        message = "'true' is never used, because 'false' needs no support"
        raise InvalidValue("MT107", message, help="write 'true else false'")
    return found


def _keeper(value: object) -> NamedDevice:
    """Read a device, or the path of a folder, without a slash at its end."""
    if isinstance(value, str) and "/" in value:
        return scalars.file_path(value.rstrip("/") or value, "folder")
    return names.device(value)


def part_size(value: object) -> Size | str:
    """Read the size of a part: a size that is more than 0, or `rest`."""
    return REST if value == REST else scalars.positive(value)


_AMOUNT_MESSAGE = "A size with a unit, or in granules: 64MiB, 4 granules."
_BYTES_MESSAGE = "A size with a unit: 64MiB."
_ANY_AMOUNT = text_like(f"(0|[1-9][0-9]{{0,19}}) ?{_UNITS}", _AMOUNT_MESSAGE)
_POSITIVE_AMOUNT = text_like(f"[1-9][0-9]{{0,19}} ?{_UNITS}", _AMOUNT_MESSAGE)
_ZERO = {"type": "integer", "const": 0}

Amount = Annotated[Size, FromText(scalars.size, {"anyOf": [_ANY_AMOUNT, _ZERO]})]
PositiveAmount = Annotated[Size, FromText(scalars.positive, _POSITIVE_AMOUNT)]
_POSITIVE_BYTES = text_like(f"[1-9][0-9]{{0,19}} ?{_BYTES}", _BYTES_MESSAGE)
_ANY_BYTES = text_like(f"(0|[1-9][0-9]{{0,19}}) ?{_BYTES}", _BYTES_MESSAGE)
PositiveBytes = Annotated[Size, FromText(scalars.positive_bytes, _POSITIVE_BYTES)]
OffsetBytes = Annotated[Size, FromText(scalars.offset_bytes, {"anyOf": [_ANY_BYTES, _ZERO]})]
REST = "rest"
"""Size of the part that takes what the other parts leave."""
PartSize = Annotated[Size | str, FromText(part_size, {"anyOf": [_POSITIVE_AMOUNT, {"const": REST}]})]
_COUNT = {"type": "integer", "minimum": 1, "maximum": scalars.LARGEST_COUNT}
Count = Annotated[int, FromText(scalars.count, _COUNT)]
_EACH_COUNT = {"anyOf": [_COUNT, {"enum": ["fill", "all"]}]}
EachCount = Annotated[int | Literal["fill", "all"], FromText(scalars.count_or_word(("fill", "all")), _EACH_COUNT)]
_PROCESSES = {"type": "integer", "minimum": 1, "maximum": scalars.LARGEST_PROCESSES}
ProcessCount = Annotated[int, FromText(scalars.processes, _PROCESSES)]
# A YAML reader converts 0x… to an integer before the schema is applied.
_ADDRESS = text_like(scalars.ADDRESS, "An address: 0x7f0000000000.")
Address = Annotated[int, FromText(scalars.address, {"anyOf": [_ADDRESS, {"type": "integer", "minimum": 0}]})]
Boolean = Annotated[bool, FromText(_boolean, {"type": "boolean"})]
_SUPPORT = {"anyOf": [{"type": "boolean"}, text_like("true else false", "true, false, or true else false.")]}
BooleanOrElse = Annotated[bool | Alternatives[bool], FromText(_support, _SUPPORT)]
Rounding = Annotated[Literal["up"], FromWord({"up": "up"}, "a way to round")]
_PERCENT = text_like(
    r"(100(\.0{1,3})?|[1-9][0-9]?(\.[0-9]{1,3})?|0\.(?!0{1,3}%)[0-9]{1,3})%", "A share of the remaining memory: 90%."
)
_FILL = {"const": "fill"}
SizeOrShare = Annotated[Size | Share, FromText(scalars.size_or_share, {"anyOf": [_POSITIVE_AMOUNT, _PERCENT]})]
HeapLimit = Annotated[
    Size | Share | str,
    FromText(names.size_share_or_name, {"anyOf": [_POSITIVE_AMOUNT, _PERCENT, text_like(NAME_PATTERN, "A heap.")]}),
]
SizeOrFill = Annotated[Size | Literal["fill"], FromText(scalars.size_or_fill, {"anyOf": [_POSITIVE_AMOUNT, _FILL]})]
_CHUNK_COUNT = {"anyOf": [_COUNT, _FILL, _PERCENT]}
ChunkCount = Annotated[int | Share | Literal["fill"], FromText(scalars.chunk_count, _CHUNK_COUNT)]
_COUNT_OR_ZERO = {"type": "integer", "minimum": 0, "maximum": scalars.LARGEST_COUNT}
LeastCount = Annotated[int | Share, FromText(scalars.least_count, {"anyOf": [_COUNT_OR_ZERO, _PERCENT]})]
InTurn = Annotated[bool, FromWord({"round-robin": True}, "an order of mappings")]
_TIMELINE = {"type": "integer", "minimum": 0, "maximum": scalars.LARGEST_TIMELINE_VALUE}
Point = Annotated[int | Literal[True], FromText(scalars.semaphore_value, {"anyOf": [_TIMELINE, {"const": True}]})]

HANDLE_NAMES = {str(kind.name).lower(): kind for kind in HandleType if kind}
ACCESS_NAMES = {access.word: access for access in (Access.R, Access.RW, Access.NONE)}
_HANDLES_MEANT = dict.fromkeys(("posix_fd", "posix", "file_descriptor", "opaque_fd"), "fd")
_HANDLE_HINTS = {
    "ipc": "legacy IPC cannot carry chunks (fact 31): write fd, or declare a buffer and export it via ipc",
    **dict.fromkeys(("win32", "win32_kmt"), "Windows only: write fd or fabric"),
}
_HANDLES = or_else_schema({"enum": [*HANDLE_NAMES]}, "|".join(HANDLE_NAMES))
HandleTypeName = Annotated[
    HandleType | Alternatives[HandleType],
    FromText(or_else(one_of(HANDLE_NAMES, "a handle type", _HANDLE_HINTS, _HANDLES_MEANT), "fabric else fd"), _HANDLES),
]
AccessName = Annotated[Access, FromWord(ACCESS_NAMES, "an access", meant={"ro": "r"})]

NAME_MESSAGE = "A name begins with a letter and continues with letters, digits, _ and -."
_NAME_LIKE = text_like(NAME_PATTERN, NAME_MESSAGE)
_REFERENCE = "A name, one of a counted entry, or a slice: page, page.3, page.0:4."
_REFERENCE_LIKE = text_like(names.REFERENCE.pattern, _REFERENCE)
_DEVICE_LIKE = text_like(_DEVICE, "A device: gpu0, host, host:0, gpus, or a name of the section 'devices'.")
Name = Annotated[str, WithJsonSchema(_NAME_LIKE)]
OwnName = Annotated[str, FromText(names.name, _NAME_LIKE)]
ReferringName = Annotated[str, WithJsonSchema(_REFERENCE_LIKE)]
_NEAR_TEXT = "A GPU, or gpus for all: the NUMA node of the host that is nearest to it."
_NEAR = {
    "type": "object",
    "properties": {"near": _NAME_LIKE | {"description": _NEAR_TEXT}},
    "required": ["near"],
    "additionalProperties": False,
}
DeviceName = Annotated[NamedDevice, FromText(names.device, {"anyOf": [_DEVICE_LIKE, _NEAR]})]
_PATH = text_like("/.*[^/]", "An absolute path of a file: /dev/shm/ring.")
FilePath = Annotated[str, FromText(scalars.file_path, _PATH)]
_FOLDER = text_like("/.*[^/]/?", "The absolute path of a folder: /nvme/weights.")
KeeperName = Annotated[NamedDevice, FromText(_keeper, {"anyOf": [_DEVICE_LIKE, _NEAR, _FOLDER]})]
_Gpu = Annotated[str, WithJsonSchema(text_like(f"(?!host$){NAME_PATTERN}", "A GPU: gpu0, or a name for one."))]
_IDENTITY = [{"type": "integer", "minimum": 0}, {"type": "string", "minLength": 1}]
_NEAR_ANY = {**_NEAR, "properties": {"near": {"anyOf": _IDENTITY, "description": _NEAR_TEXT}}}
DeviceIdentity = Annotated[NamedDevice, FromText(names.device, {"anyOf": [*_IDENTITY, _NEAR_ANY]})]
ChunkReference = Annotated[Reference, FromText(names.reference, _REFERENCE_LIKE)]
Grants = dict[Annotated[str, WithJsonSchema(_DEVICE_LIKE)], AccessName]

_SOURCE_MESSAGE = "An export: PROCESS.EXPORT of this spec, or LAYOUT/EXPORT of another layout."
_PRODUCER_MESSAGE = "A producer's object: PRODUCER/NAME, or PRODUCER for one of the entry's own name."
SourceText = Annotated[ImportSource, FromText(names.source, text_like(names.SOURCES, _SOURCE_MESSAGE))]
ProducerText = Annotated[ImportSource, FromText(names.producer, text_like(names.PRODUCERS, _PRODUCER_MESSAGE))]
TRANSPORTS = {each: each for each in ("fd", "fabric", "ipc")}
_EXPORTED = {**TRANSPORTS, "dmabuf": "dmabuf"}
_IMPORT_HINTS = {"dmabuf": "no CUDA driver imports a dma-buf (fact 84): also export it via fd, and import that export"}


def _transports(words: Mapping[str, Via], **more: Mapping[str, str]) -> FromText:
    """Annotation of a transport or alternatives of it; `more` are arguments of `one_of`."""
    alternatives = or_else(one_of(words, "a transport", **more), "fabric else fd")

    def read(value: object) -> Via | Alternatives[Via]:
        found: Via | Alternatives[Via] = alternatives(value)
        if isinstance(found, Alternatives) and (alone := next((each for each in _ALONE if each in found.words), None)):
            raise InvalidValue("MT107", f"{alone!r} has no alternative: {_ALONE[alone]}")
        return found

    return FromText(read, or_else_schema({"enum": [*words]}, "fd|fabric"))


_ALONE = {
    "ipc": "fd and fabric carry chunks, which it cannot",
    "dmabuf": "fd and fabric are for other processes, but a dma-buf is for other devices",
}
"""Transports that are no alternative to another one, with the reason."""
Transport = Annotated[Via | Alternatives[Via], _transports(TRANSPORTS, hints=_IMPORT_HINTS)]
ExportTransport = Annotated[Via | Alternatives[Via], _transports(_EXPORTED, meant={"dma_buf": "dmabuf"})]
DmaBufMapping = Annotated[Literal["pcie"], FromWord({"pcie": "pcie"}, "a mapping")]
Commit = Annotated[Literal["required"], FromWord({"required": "required"}, "a way to commit")]

OWN_FIRST = "own-first"
"""Order of an import from a counted process: of the same number, then of the next ones, around."""
OWN_NODE = "own-node"
"""Order of an import from a counted process: those on the node of the importing process."""
WHOLE_ORDERS = (OWN_FIRST, OWN_NODE)
"""Orders that cannot be part of a list."""
_ORDERS = {each: each for each in (*WHOLE_ORDERS, "own", "next", "previous")}
_OrderWord = Annotated[str, FromWord(_ORDERS, "an order of processes")]
ProcessOrder = Annotated[list[_OrderWord], one_or_more_of(_OrderWord)]

Gpus = Annotated[list[DeviceName], one_or_more_of(_Gpu)]
Names = Annotated[list[OwnName], one_or_more_of(OwnName)]
Devices = Annotated[list[DeviceName], one_or_more_of(DeviceName)]
Identities = Annotated[list[DeviceIdentity], one_or_more_of(DeviceIdentity)]
Handles = Annotated[list[HandleTypeName], one_or_more_of(HandleTypeName)]
