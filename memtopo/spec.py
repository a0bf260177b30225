"""The language: what each section of a spec may say, and what it means as typed data.

A spec is read section by section. A bad entry becomes diagnostics and is left out; everything else is kept, so that
one run shows every fault.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, PlainValidator, Tag, TypeAdapter
from pydantic import ValidationError as PydanticError

from memtopo import complaints
from memtopo.diagnostics import Diagnostic, Fault, Path
from memtopo.driver.types import Access, HandleType
from memtopo.units import NotASize, Size, parse_count, parse_size, shorten

VERSION = 1
LARGEST_COUNT = 2_000_000
"""The most chunks, ranges or steps that one spec may ask for."""

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,127}")
_REFERENCE = re.compile(r"([A-Za-z][A-Za-z0-9_-]{0,127})(?:\.([0-9]{1,7})(?::([0-9]{1,7}))?)?")
_ADDRESS = re.compile(r"0x[0-9A-Fa-f]{1,16}")


class Reference(NamedTuple):
    """A name with an optional index or half-open slice: `page`, `page.3`, `page.0:4`."""

    name: str
    first: int | None = None
    stop: int | None = None

    def __str__(self) -> str:
        if self.first is None:
            return self.name
        return f"{self.name}.{self.first}" if self.stop == self.first + 1 else f"{self.name}.{self.first}:{self.stop}"


def parse_reference(text: str) -> Reference:
    """Read `page`, `page.3` or `page.0:4` (both ends, half-open). Raises `Fault`."""
    match = _REFERENCE.fullmatch(text)
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
        raise Fault("MT105", str(error), help=f"write {error.meant}" if error.meant else None) from error


def _positive(value: object) -> Size:
    size = _size(value)
    if size.amount == 0:
        raise Fault("MT105", "a size of 0 is nothing to build", help="leave the entry out, or give it a size")
    return size


def _count(value: object) -> int:
    text = _text(value, "a count")
    try:
        count = parse_count(text)
    except ValueError as error:
        raise Fault("MT106", str(error)) from error
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


def _reference(value: object) -> Reference:
    return parse_reference(_text(value, "a name"))


def _one_or_more(value: object) -> object:
    if not value:
        raise Fault("MT103", "expected at least one, found none")
    return value if isinstance(value, list) else [value]


def _map_entry(value: object) -> object:
    return {"chunk": value} if isinstance(value, str) else value


def _shape(value: object) -> str | None:
    if isinstance(value, dict):
        return "<grant>"
    return "<parts>" if isinstance(value, list) else None


Amount = Annotated[Size, PlainValidator(_size)]
PositiveAmount = Annotated[Size, PlainValidator(_positive)]
Count = Annotated[int, PlainValidator(_count)]
Address = Annotated[int, PlainValidator(_address)]
Boolean = Annotated[bool, PlainValidator(_boolean)]
Rounding = Annotated[Literal["up"], PlainValidator(_word({"up": "up"}, "a way to round"))]
DeviceName = Annotated[str, PlainValidator(lambda value: _text(value, "a device name"))]
HANDLE_WORDS = {str(kind.name).lower(): kind for kind in HandleType if kind}
ACCESS_WORDS = {access.word: access for access in (Access.R, Access.RW, Access.NONE)}
HandleWord = Annotated[HandleType, PlainValidator(_word(HANDLE_WORDS, "a handle type"))]
AccessWord = Annotated[Access, PlainValidator(_word(ACCESS_WORDS, "an access"))]
ChunkReference = Annotated[Reference, PlainValidator(_reference)]
Grants = dict[str, AccessWord]


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Range(_Entry):
    """A reserved address range. `address` is a wish; with `fixed`, a miss is a failed check."""

    size: PositiveAmount
    align: PositiveAmount | None = None
    address: Address | None = None
    fixed: Boolean = False
    count: Count | None = None
    round: Rounding | None = None


class Chunk(_Entry):
    """Physical memory on a GPU or the host; with `count`, that many, dealt to the locations in turn."""

    location: Annotated[list[DeviceName], BeforeValidator(_one_or_more)]
    size: PositiveAmount
    count: Count | None = None
    handles: Annotated[list[HandleWord], BeforeValidator(_one_or_more)] = []
    rdma: Boolean = False
    compressible: Boolean = False
    round: Rounding | None = None

    @property
    def handle_types(self) -> HandleType:
        """All handle types asked for, as one mask."""
        mask = HandleType.NONE
        for kind in self.handles:
            mask |= kind
        return mask


class MapEntry(_Entry):
    """A chunk, one of a counted chunk or a slice of it, where the entry before ended or at `offset`."""

    chunk: ChunkReference
    offset: Amount | None = None


class Part(_Entry):
    """Access to a part of a range; a part covers whole mappings (fact 20)."""

    offset: Amount = Size(0)
    size: PositiveAmount
    grant: Grants


_Shaped = Annotated[
    Annotated[Grants, Tag("<grant>")] | Annotated[list[Part], Tag("<parts>")],
    Discriminator(_shape, custom_error_type="access", custom_error_message="access"),
]
_MapList = Annotated[list[Annotated[MapEntry, BeforeValidator(_map_entry)]], BeforeValidator(_one_or_more)]


class _Section(NamedTuple):
    entry: Any
    model: type[_Entry] | None
    referring: bool


SECTIONS = {
    "devices": _Section(DeviceName, None, referring=False),
    "ranges": _Section(Range, Range, referring=False),
    "chunks": _Section(Chunk, Chunk, referring=False),
    "map": _Section(_MapList, MapEntry, referring=True),
    "access": _Section(_Shaped, Part, referring=True),
}
_WHOLE = ("", "<<")
"""What stands for a whole section among the entries left out: the section itself, or what was to be merged into it."""

_TOP = ("memtopo", "name", *SECTIONS)


@dataclass(frozen=True, slots=True)
class Spec:
    """A spec whose entries are well formed, each by itself; names are not resolved yet."""

    name: str
    devices: dict[str, str]
    ranges: dict[str, Range]
    chunks: dict[str, Chunk]
    map: dict[str, list[MapEntry]]
    access: dict[str, Grants | list[Part]]
    left_out: frozenset[tuple[str, str]] = frozenset()
    """(section, name) of each entry that had faults: what depends on it is not judged."""

    def may_have(self, section: str, name: str) -> bool:
        """Whether an entry was written, or may have been: it, or its whole section, had to be left out."""
        return name in getattr(self, section) or any((section, each) in self.left_out for each in (name, *_WHOLE))


def read(root: Mapping[str, Any], refused: frozenset[Path] = frozenset()) -> tuple[Spec, list[Diagnostic]]:
    """Turn a document's values into a spec, and say what is wrong with the entries that had to be left out.

    `refused` has the paths of what was already left out, and told, when the document was read.
    """
    faults = [*_head(root, {str(path[0]) for path in refused if len(path) == 1})]
    sections: dict[str, dict[str, Any]] = {}
    left_out = {(str(path[0]), str((*path, "")[1])) for path in refused if path}
    for name in SECTIONS:
        told = {entry for section, entry in left_out if section == name}
        sections[name], dropped = _section(name, root.get(name, {}), told, faults)
        left_out |= {(name, entry) for entry in dropped}
    spec_name = root.get("name")
    named = spec_name if isinstance(spec_name, str) else ""
    return Spec(name=named, **cast("Any", sections), left_out=frozenset(left_out)), faults


def _head(root: Mapping[str, Any], refused: set[str]) -> Iterator[Diagnostic]:
    for key in root:
        if key not in _TOP:
            yield complaints.unknown((key,), _TOP)
    if "memtopo" not in {*root, *refused}:
        help = f"begin the spec with 'memtopo: {VERSION}', the version of the language"
        yield Diagnostic("MT102", "'memtopo' is missing", help=help)
    elif root.get("memtopo", str(VERSION)) != str(VERSION):
        told = f"this memtopo reads version {VERSION} of the language"
        yield Diagnostic("MT108", told, ("memtopo",), help=f"write 'memtopo: {VERSION}'")
    if "name" not in {*root, *refused}:
        yield Diagnostic("MT102", "'name' is missing", help="give the layout a name: 'name: kv-cache'")
    elif "name" in root and not (isinstance(root["name"], str) and NAME.fullmatch(root["name"])):
        yield complaints.bad_name(root["name"], ("name",), at="value")


def _section(name: str, value: object, told: set[str], faults: list[Diagnostic]) -> tuple[dict[str, Any], set[str]]:
    if value == "":
        return {}, set()
    if not isinstance(value, dict):
        faults.append(Diagnostic("MT103", f"{name!r} is a mapping from names to entries", (name,)))
        return {}, {""}
    misnamed = {key for key in value if not _well_named(key, referring=SECTIONS[name].referring)}
    faults += [complaints.bad_name(key, (name, key)) for key in value if key in misnamed]
    bad = misnamed | told
    entries = {key: entry for key, entry in value.items() if key not in bad}
    try:
        return _adapter(name).validate_python(entries), bad
    except PydanticError as error:
        model = SECTIONS[name].model
        faults += complaints.explain(error, name, tuple(model.model_fields) if model else ())
        bad |= {str(fault["loc"][0]) for fault in error.errors(include_url=False, include_context=False)}
    return _adapter(name).validate_python({key: entry for key, entry in entries.items() if key not in bad}), bad


def _well_named(key: str, *, referring: bool) -> bool:
    return bool((_REFERENCE if referring else NAME).fullmatch(key))


@cache
def _adapter(section: str) -> TypeAdapter[dict[str, Any]]:
    entries: Any = dict.__class_getitem__((str, SECTIONS[section].entry))
    return TypeAdapter(entries)
