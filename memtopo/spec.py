"""The language: what each section of a spec may say, and what it means as typed data.

A spec is read section by section. A bad entry becomes diagnostics and is left out; everything else is kept, so that
one run shows every fault.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Annotated, Any, NamedTuple, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, TypeAdapter
from pydantic import ValidationError as PydanticError

from memtopo import complaints
from memtopo.diagnostics import Diagnostic, Fault, Path
from memtopo.driver.types import HandleType
from memtopo.fields import (
    LARGEST_COUNT,
    NAME,
    Address,
    Amount,
    Boolean,
    ChunkReference,
    Count,
    DeviceIdentity,
    Devices,
    Grants,
    Handles,
    PositiveAmount,
    Reference,
    Rounding,
    one_or_more,
    parse_reference,
)
from memtopo.units import Size

# What reads a spec needs the types of its fields as well.
__all__ = [
    "LARGEST_COUNT",
    "SECTIONS",
    "VERSION",
    "Chunk",
    "Grants",
    "MapEntry",
    "Part",
    "Range",
    "Reference",
    "Spec",
    "parse_reference",
    "read",
]

VERSION = 1


def _map_entry(value: object) -> object:
    return {"chunk": value} if isinstance(value, str) else value


def _shape(value: object) -> str | None:
    if isinstance(value, dict):
        return "<grant>"
    return "<parts>" if isinstance(value, list) else None


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class Range(_Entry):
    """A reserved address range. `address` is a wish; with `fixed`, a miss is a failed check."""

    size: PositiveAmount = Field(description="Bytes of addresses to reserve: 96MiB, or 4 granules of its chunks.")
    align: PositiveAmount | None = Field(default=None, description="A power of two that the address is a multiple of.")
    address: Address | None = Field(
        default=None, description="Where it would best begin, 0x…; a wish, unless it is fixed."
    )
    fixed: Boolean = Field(
        default=False, description="Whether another address than the one wished for is a failed check."
    )
    count: Count | None = Field(default=None, description="How many equal ranges: kv becomes kv.0, kv.1 and so on.")
    round: Rounding | None = Field(
        default=None, description="up: a size that is no multiple of the granularity grows to one."
    )


class Chunk(_Entry):
    """Physical memory on a GPU or the host; with `count`, that many, dealt to the locations in turn."""

    location: Devices = Field(description="Where the memory is: a device's name, or several, which take turns.")
    size: PositiveAmount = Field(description="Bytes of each chunk: 2MiB, or 1 granule.")
    count: Count | None = Field(default=None, description="How many in all: page becomes page.0, page.1 and so on.")
    handles: Handles = Field(default=[], description="How it may be handed to other processes: fd, fabric or both.")
    rdma: Boolean = Field(default=False, description="Whether network cards may reach it by GPUDirect RDMA.")
    compressible: Boolean = Field(default=False, description="Whether the GPU may compress it.")
    round: Rounding | None = Field(
        default=None, description="up: a size that is no multiple of the granularity grows to one."
    )

    @property
    def handle_types(self) -> HandleType:
        """All handle types asked for, as one mask."""
        mask = HandleType.NONE
        for kind in self.handles:
            mask |= kind
        return mask


class MapEntry(_Entry):
    """A chunk, one of a counted chunk or a slice of it, where the entry before ended or at `offset`."""

    chunk: ChunkReference = Field(
        description="hot, page for all of a counted chunk, page.3, or page.0:4 for the first 4."
    )
    offset: Amount | None = Field(
        default=None, description="Where in the range it begins; else where the entry before ended."
    )


class Part(_Entry):
    """Access to a part of a range; a part covers whole mappings (fact 20)."""

    offset: Amount = Field(default=Size(0), description="Where in the range the part begins.")
    size: PositiveAmount = Field(description="Bytes of the part, which covers whole mappings.")
    grant: Grants = Field(description="The devices that may use it, each with r, rw or none.")


_Shaped = Annotated[
    Annotated[Grants, Tag("<grant>")] | Annotated[list[Part], Tag("<parts>")],
    Discriminator(_shape, custom_error_type="access", custom_error_message="access"),
]
_Mapped = Annotated[MapEntry, BeforeValidator(_map_entry, json_schema_input_type=ChunkReference | MapEntry)]
_OneOrMoreMapped = _Mapped | Annotated[list[_Mapped], Field(min_length=1)]
_MapList = Annotated[list[_Mapped], BeforeValidator(one_or_more, json_schema_input_type=_OneOrMoreMapped)]


class _Section(NamedTuple):
    entry: Any
    model: type[_Entry] | None
    referring: bool


SECTIONS = {
    "devices": _Section(DeviceIdentity, None, referring=False),
    "ranges": _Section(Range, Range, referring=False),
    "chunks": _Section(Chunk, Chunk, referring=False),
    "map": _Section(_MapList, MapEntry, referring=True),
    "access": _Section(_Shaped, Part, referring=True),
}
_WHOLE = ("", "<<")
"""What stands for a whole section among the entries left out: the section itself, or what was to be merged into it."""

_TOP = ("memtopo", "name", *SECTIONS)


class Spec(NamedTuple):
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
    yield from complaints.first(complaints.unknown((key,), _TOP) for key in root if key not in _TOP)
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
    if value in ("", {}):
        return {}, set()  # and no validator is made, which takes a millisecond for each section
    if not isinstance(value, dict):
        faults.append(Diagnostic("MT103", f"{name!r} is a mapping from names to entries", (name,)))
        return {}, {""}
    misnamed = {key: fault for key in value if (fault := _misnamed(name, key))}
    faults += complaints.first(misnamed.values())
    bad = misnamed.keys() | told
    entries = {key: entry for key, entry in value.items() if key not in bad}
    try:
        return _adapter(name).validate_python(entries), bad
    except PydanticError as error:
        model = SECTIONS[name].model
        faults += complaints.explain(error, name, tuple(model.model_fields) if model else ())
        bad |= {str(fault["loc"][0]) for fault in error.errors(include_url=False, include_context=False)}
    return _adapter(name).validate_python({key: entry for key, entry in entries.items() if key not in bad}), bad


def _misnamed(section: str, key: str) -> Diagnostic | None:
    if not SECTIONS[section].referring:
        return None if NAME.fullmatch(key) else complaints.bad_name(key, (section, key))
    try:
        parse_reference(key)
    except Fault as fault:
        return Diagnostic(fault.code, fault.message, (section, key), "key", help=fault.help)
    return None


@cache
def _adapter(section: str) -> TypeAdapter[dict[str, Any]]:
    entries: Any = dict.__class_getitem__((str, SECTIONS[section].entry))
    return TypeAdapter(entries)
