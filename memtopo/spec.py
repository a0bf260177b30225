"""The language: what each section of a spec may say, and what it means as typed data.

A spec is read section by section. A bad entry becomes diagnostics and is left out; everything else is kept, so that
one run shows every fault.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from pydantic import TypeAdapter
from pydantic import ValidationError as PydanticError

from memtopo.diagnostics import messages, pydantic_errors
from memtopo.diagnostics.model import Diagnostic, InvalidValue, Path
from memtopo.kinds.entries import (
    SECTIONS,
    Buffer,
    Chunk,
    Event,
    Export,
    External,
    Import,
    Managed,
    MapEntry,
    Part,
    Process,
    Range,
    Semaphore,
)
from memtopo.language.fields import LARGEST_COUNT, LARGEST_PROCESSES, NAME, Grants, Reference, Source, parse_reference

# What reads a spec needs the types of its entries and fields as well.
__all__ = [
    "LARGEST_COUNT",
    "SECTIONS",
    "VERSION",
    "Buffer",
    "Chunk",
    "Event",
    "Export",
    "External",
    "Grants",
    "Import",
    "Managed",
    "MapEntry",
    "Part",
    "Process",
    "Range",
    "Reference",
    "Semaphore",
    "Source",
    "Spec",
    "parse_reference",
    "read",
]

VERSION = 1

_WHOLE = ("", "<<")
"""What stands for a whole section among the entries left out: the section itself, or what was to be merged into it."""

_NONE: Mapping[str, Any] = MappingProxyType({})


class Spec(NamedTuple):
    """A spec, or one process of it, whose entries are well formed, each by itself; names are not resolved yet.

    A spec with `processes` has nothing in its own sections. `path` is where the sections stand in the document.
    """

    name: str
    devices: Mapping[str, list[str]] = _NONE
    ranges: Mapping[str, Range] = _NONE
    chunks: Mapping[str, Chunk] = _NONE
    map: Mapping[str, list[MapEntry]] = _NONE
    access: Mapping[str, Grants | list[Part]] = _NONE
    buffers: Mapping[str, Buffer] = _NONE
    managed: Mapping[str, Managed] = _NONE
    events: Mapping[str, Event] = _NONE
    external: Mapping[str, External] = _NONE
    semaphores: Mapping[str, Semaphore] = _NONE
    exports: Mapping[str, Export] = _NONE
    imports: Mapping[str, Import] = _NONE
    left_out: frozenset[tuple[str, str]] = frozenset()
    """(section, name) of each entry that had faults: what depends on it is not judged."""
    path: Path = ()
    instances: int | None = None
    """How many of this process there are; None where it is not counted."""
    visible: tuple[str, ...] = ()
    """The only GPUs that this process is to see, in its order; without any it sees what the launching process sees."""
    processes: Mapping[str, Spec] = _NONE

    def may_have(self, section: str, name: str) -> bool:
        """Whether an entry was written, or may have been: it, or its whole section, had to be left out."""
        return name in getattr(self, section) or any((section, each) in self.left_out for each in (name, *_WHOLE))

    @property
    def countless(self) -> bool:
        """Whether it is not known how many of this process there are."""
        return ("count", "") in self.left_out or ("<<", "") in self.left_out

    def at(self, *steps: str | int) -> Path:
        """The document's path of something in this spec's sections."""
        return (*self.path, *steps)


_TOP = ("memtopo", "name", *SECTIONS, "processes")
_PROCESS = ("count", "visible", *SECTIONS)


def read(root: Mapping[str, Any], refused: frozenset[Path] = frozenset()) -> tuple[Spec, list[Diagnostic]]:
    """Turn a document's values into a spec, and say what is wrong with the entries that had to be left out.

    `refused` has the paths of what was already left out, and told, when the document was read.
    """
    faults = [*_head(root, {str(path[0]) for path in refused if len(path) == 1})]
    spec_name = root.get("name")
    named = spec_name if isinstance(spec_name, str) else ""
    processes = root.get("processes", "")
    if processes == "" and not any(path[0] == "processes" for path in refused if path):
        return _sections(named, root, (), refused, faults), faults
    beside = [name for name in SECTIONS if name in root]
    for name in beside:
        help = "move it under the name of the process that it belongs to"
        faults.append(Diagnostic("MT110", f"section {name!r} stands beside 'processes'", (name,), "key", help=help))
    found, left_out = _processes(processes, refused, faults)
    return Spec(named, processes=found, left_out=left_out), faults


def _processes(
    value: object, refused: frozenset[Path], faults: list[Diagnostic]
) -> tuple[dict[str, Spec], frozenset[tuple[str, str]]]:
    """The processes that are mappings, and the names of the others."""
    left_out = {("processes", str((*path, "")[1])) for path in refused if path[:1] == ("processes",) and len(path) < 3}  # noqa: PLR2004
    everything = frozenset({*left_out, ("processes", "")})
    found: dict[str, Spec] = {}
    if not isinstance(value, dict):
        if value != "":
            faults.append(Diagnostic("MT103", "'processes' is a mapping from names to processes", ("processes",)))
        return {}, everything
    if _too_many(len(value), faults):
        return {}, everything
    told: list[Diagnostic] = []
    for name, entries in value.items():
        path: Path = ("processes", name)
        if not NAME.fullmatch(name):
            told.append(messages.bad_name(name, path))
        elif not isinstance(entries, dict):
            help = "write its sections under its name: 'ranges', 'chunks' and so on"
            told.append(Diagnostic("MT103", f"process {name!r} is a mapping from sections to entries", path, help=help))
        else:
            found[name] = _process(name, entries, path, refused, told)
            continue
        left_out.add(("processes", name))
    faults += messages.first(told)
    if _too_many(sum(each.instances or 1 for each in found.values()), faults):
        return {}, everything
    return found, frozenset(left_out)


def _too_many(count: int, faults: list[Diagnostic]) -> bool:
    if count <= LARGEST_PROCESSES:
        return False
    told = f"{count:,} processes are more than the {LARGEST_PROCESSES} that one spec may ask for"
    faults.append(Diagnostic("MT109", told, ("processes",), "key"))
    return True


def _process(
    name: str, entries: dict[str, Any], path: Path, refused: frozenset[Path], faults: list[Diagnostic]
) -> Spec:
    faults += messages.first(_strange(key, path) for key in entries if key not in _PROCESS)
    spec = _sections(name, entries, path, refused, faults)
    try:
        own = Process.model_validate({key: entries[key] for key in ("count", "visible") if key in entries})
    except PydanticError as error:
        faults += pydantic_errors.diagnose(error, path, lambda _: ("count", "visible"))
        return spec._replace(left_out=spec.left_out | {("count", ""), ("visible", "")})
    return spec._replace(instances=own.count, visible=tuple(own.visible))


def _strange(key: str, path: Path) -> Diagnostic:
    if key == "processes":
        told = f"process {path[-1]!r} holds 'processes', and a process has none of its own"
        return Diagnostic("MT101", told, (*path, key), "key", help="write them beside it")
    return messages.unknown((*path, key), _PROCESS)


def _sections(
    name: str, root: Mapping[str, Any], path: Path, refused: frozenset[Path], faults: list[Diagnostic]
) -> Spec:
    depth = len(path)
    within = [each[depth:] for each in refused if len(each) > depth and each[:depth] == path]
    left_out = {(str(each[0]), str((*each, "")[1])) for each in within}
    if ("<<", "") in left_out:
        left_out |= {(section, "<<") for section in SECTIONS}
    sections: dict[str, dict[str, Any]] = {}
    for section in SECTIONS:
        told = {entry for each, entry in left_out if each == section}
        sections[section], dropped = _section((*path, section), root.get(section, ""), told, faults)
        left_out |= {(section, entry) for entry in dropped}
    return Spec(name=name, **cast("Any", sections), left_out=frozenset(left_out), path=path)


def _head(root: Mapping[str, Any], refused: set[str]) -> Iterator[Diagnostic]:
    yield from messages.first(messages.unknown((key,), _TOP) for key in root if key not in _TOP)
    if "memtopo" not in {*root, *refused}:
        help = f"begin the spec with 'memtopo: {VERSION}', the version of the language"
        yield Diagnostic("MT102", "'memtopo' is missing", help=help)
    elif root.get("memtopo", str(VERSION)) != str(VERSION):
        told = f"this memtopo reads version {VERSION} of the language"
        yield Diagnostic("MT108", told, ("memtopo",), help=f"write 'memtopo: {VERSION}'")
    if "name" not in {*root, *refused}:
        yield Diagnostic("MT102", "'name' is missing", help="give the layout a name: 'name: kv-cache'")
    elif "name" in root and not (isinstance(root["name"], str) and NAME.fullmatch(root["name"])):
        yield messages.bad_name(root["name"], ("name",), at="value")


def _section(path: Path, value: object, told: set[str], faults: list[Diagnostic]) -> tuple[dict[str, Any], set[str]]:
    name = str(path[-1])
    if value in ("", {}):
        return {}, set()  # and no validator is made, which takes a millisecond for each section
    if not isinstance(value, dict):
        faults.append(Diagnostic("MT103", f"{name!r} is a mapping from names to entries", path))
        return {}, {""}
    misnamed = {key: fault for key in value if (fault := _misnamed(path, key))}
    faults += messages.first(misnamed.values())
    bad = misnamed.keys() | told
    entries = {key: entry for key, entry in value.items() if key not in bad}
    try:
        return _adapter(name).validate_python(entries), bad
    except PydanticError as error:
        faults += pydantic_errors.diagnose(error, path, SECTIONS[name].keys)
        bad |= {str(fault["loc"][0]) for fault in error.errors(include_url=False, include_context=False)}
    return _adapter(name).validate_python({key: entry for key, entry in entries.items() if key not in bad}), bad


def _misnamed(path: Path, key: str) -> Diagnostic | None:
    if not SECTIONS[str(path[-1])].referring:
        return None if NAME.fullmatch(key) else messages.bad_name(key, (*path, key))
    try:
        parse_reference(key)
    except InvalidValue as fault:
        return Diagnostic(fault.code, fault.message, (*path, key), "key", help=fault.help)
    return None


@cache
def _adapter(section: str) -> TypeAdapter[dict[str, Any]]:
    entries: Any = dict.__class_getitem__((str, SECTIONS[section].entry))
    return TypeAdapter(entries)
