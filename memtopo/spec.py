"""Spec: the values of a document as typed entries by section.

Entries with errors yield diagnostics and are left out; all others are kept, so that one run reports every error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import islice
from typing import Annotated, Any, get_args

from msgspec.structs import replace
from pydantic import AfterValidator, Field, TypeAdapter
from pydantic import ValidationError as PydanticError

from memtopo.common.text import only_near
from memtopo.common.units import shorten
from memtopo.diagnostics import messages
from memtopo.diagnostics.model import Diagnostic, InvalidValue, Label, Path
from memtopo.kinds import DEVICES, KINDS
from memtopo.kinds.kind import Keys, Kind
from memtopo.kinds.resolution import Resolution, collected
from memtopo.language.entries import Entry, Spec
from memtopo.language.fields import Boolean, Gpus, Names, OwnName, ProcessCount, one_or_more_of
from memtopo.language.limits import PARAMETERS
from memtopo.language.names import NAME, parse_reference
from memtopo.language.scalars import LARGEST_PROCESSES, FromText, text
from memtopo.machine import is_file, nearest_shipped, shipped

__all__ = ["SECTIONS", "VERSION", "ProcessKeys", "Spec", "read"]

VERSION = 1

_LeftOut = frozenset[tuple[str, str]]
"""(section, name) of entries that are left out."""


def _each_once(nodes: list[str]) -> list[str]:
    if repeated := next((each for each in nodes if nodes.count(each) > 1), None):
        raise InvalidValue("MT204", f"node {repeated!r} is listed twice", help="list it once")
    return nodes


class ProcessKeys(Entry):
    """Keys of a process besides its sections."""

    count: ProcessCount | None = Field(
        default=None,
        description="Number of instances, a number or a parameter: reader becomes reader.0, reader.1 and so on.",
    )
    visible: Gpus = Field(
        default=[],
        description="The GPUs that are visible to the process, in this order; by default all that are visible to "
        "memtopo.",
    )
    held: Boolean = Field(
        default=False,
        description="If true, 'memtopo apply --hold' has it, and the processes without it join one by one.",
    )
    node: OwnName | None = Field(default=None, description="The node that has the process, if the spec has nodes.")
    nodes: Annotated[Names, AfterValidator(_each_once)] | None = Field(
        default=None, description="Nodes of a counted process, each of which has an equal block of instances, in order."
    )


def _machine_name(value: object) -> str:
    name = text(value, "the name of a recorded machine, or a file of one")
    if not is_file(name) and name not in (known := shipped()):
        near = nearest_shipped(name)
        help = f"write one of {', '.join(known)}, or ./RECORD.json, which 'memtopo probe -o RECORD.json' makes"
        help = messages.did_you_mean(near) if near else help
        meant = only_near(name, known) if near else None
        raise InvalidValue("MT205", f"machine {shorten(name)!r} is not known", help=help, meant=meant)
    return name


_MachineName = Annotated[str, FromText(_machine_name, {"type": "string", "minLength": 1})]


class SpecKeys(Entry):
    """Keys of a spec besides its version, its name, its parameters and its sections."""

    machines: Annotated[list[_MachineName], one_or_more_of(_MachineName)] | None = Field(
        default=None,
        description="Recorded machines for which the spec is intended: names, or file paths relative to its folder.",
    )


SECTIONS: dict[str, Kind] = {kind.section: kind for kind in (DEVICES, *KINDS)}
"""Sections of the language, in order."""

MACHINES = "machines"
_TOP = ("memtopo", "name", MACHINES, PARAMETERS, *SECTIONS, "processes")
_DOCUMENTS = {
    "memtopo_plan": "a saved plan is for 'memtopo apply FILE' and 'memtopo diff FILE': name the spec here",
    "memtopo_change_plan": "a saved change is for 'memtopo change NAME FILE'",
    "memtopo_machine": "'--machine FILE' validates a spec on a recorded machine",
}
"""Help for documents that commands take in another place."""

_HOSTS = ("host", "hosts", "node", "nodes", "machine", "machines")
_KEYS = tuple(ProcessKeys.model_fields)
_PROCESS = (*_KEYS, *SECTIONS)


def read(root: Mapping[str, Any], refused: frozenset[Path] = frozenset()) -> tuple[Spec, list[Diagnostic]]:
    """Read a spec from the values of a document, with the diagnostics of the entries that are left out.

    `refused` has the paths that were left out, with diagnostics, when the document was parsed.
    """
    return collected(_spec(root, refused))


def _spec(root: Mapping[str, Any], refused: frozenset[Path]) -> Resolution[Spec]:
    if document := next((key for key in root if key.startswith("memtopo_")), None):
        help = _DOCUMENTS.get(document, f"a spec begins with 'memtopo: {VERSION}'")
        yield Diagnostic("MT102", f"this is a document of memtopo, {document!r}, and no spec", help=help)
        return Spec("", left_out=frozenset((section, "") for section in SECTIONS))
    yield from _head(root, {str(path[0]) for path in refused if len(path) == 1})
    written = root.get("name")
    name = written if isinstance(written, str) else ""
    processes = root.get("processes", "")
    if processes == "" and not any(path[0] == "processes" for path in refused if path):
        return (yield from _sections(name, root, (), refused))
    beside = [section for section in SECTIONS if section in root]
    for section in beside:
        help = "move it into the process that it belongs to"
        yield Diagnostic("MT110", f"section {section!r} is beside 'processes'", (section,), "key", help=help)
    if isinstance(processes, dict):
        refused |= {("processes", name, section) for name in processes for section in beside}
    found, left_out = yield from _processes(processes, refused)
    return Spec(name, processes=found, left_out=left_out)


def _processes(value: object, refused: frozenset[Path]) -> Resolution[tuple[dict[str, Spec], _LeftOut]]:
    """Processes that are mappings, and the names of the others."""
    left_out = {("processes", str((*path, "")[1])) for path in refused if path[:1] == ("processes",) and len(path) < 3}  # noqa: PLR2004
    everything = frozenset({*left_out, ("processes", "")})
    if not isinstance(value, dict):
        if value != "":
            yield Diagnostic("MT103", "'processes' is a mapping from names to processes", ("processes",))
        return {}, everything
    if (yield from _too_many(len(value))):
        return {}, everything
    found: dict[str, Spec] = {}
    wrong: list[Diagnostic] = []
    for name, entries in value.items():
        process, diagnostics = collected(_named_process(name, entries, refused))
        wrong += diagnostics
        if process is None:
            left_out.add(("processes", name))
        else:
            found[name] = process
    yield from messages.first(wrong)
    if (yield from _too_many(sum(each.instances or 1 for each in found.values()))):
        return {}, everything
    return found, frozenset(left_out)


def _too_many(count: int) -> Resolution[bool]:
    if count <= LARGEST_PROCESSES:
        return False
    message = f"{count:,} processes are more than the {LARGEST_PROCESSES} that one spec may declare"
    yield Diagnostic("MT109", message, ("processes",), "key")
    return True


def _named_process(name: str, entries: object, refused: frozenset[Path]) -> Resolution[Spec | None]:
    path: Path = ("processes", name)
    if not NAME.fullmatch(name):
        yield messages.bad_name(name, path)
        return None
    if not isinstance(entries, dict):
        help = "write its sections under its name: 'ranges', 'chunks' and so on"
        yield Diagnostic("MT103", f"process {name!r} is a mapping from sections to entries", path, help=help)
        return None
    yield from messages.first(_unknown_key(key, path) for key in entries if key not in _PROCESS)
    spec = yield from _sections(name, entries, path, refused)
    try:
        own = ProcessKeys.model_validate({key: entries[key] for key in _KEYS if key in entries})
    except PydanticError as error:
        yield from messages.diagnose(error, path, lambda _: _KEYS)
        return replace(spec, left_out=spec.left_out | {(key, "") for key in _KEYS})
    if own.node and own.nodes:
        label = Label("and several here", (*path, "nodes"), "key")
        message = f"process {name!r} has 'node' and 'nodes'"
        yield Diagnostic("MT103", message, (*path, "node"), "key", labels=(label,), help="leave one of them out")
    nodes = (own.node,) if own.node else tuple(own.nodes or ())
    key = "node" if own.node else "nodes"
    return replace(spec, instances=own.count, visible=tuple(own.visible), held=own.held, nodes=nodes, node_key=key)


def _unknown_key(key: str, path: Path) -> Diagnostic:
    if key == "processes":
        message = f"process {path[-1]!r} contains 'processes', which cannot be nested"
        return Diagnostic("MT101", message, (*path, key), "key", help="move them out of this process")
    if key == PARAMETERS:
        message = f"process {path[-1]!r} contains 'params', which are those of the whole spec"
        return Diagnostic("MT101", message, (*path, key), "key", help="move them to the top of the spec")
    found = messages.unknown((*path, key), _PROCESS)
    return found._replace(help="write 'node: a', or 'nodes: [a, b]' in a counted process") if key in _HOSTS else found


def _sections(name: str, root: Mapping[str, Any], path: Path, refused: frozenset[Path]) -> Resolution[Spec]:
    depth = len(path)
    within = [each[depth:] for each in refused if len(each) > depth and each[:depth] == path]
    left_out = {(str(each[0]), str((*each, "")[1])) for each in within}
    if ("<<", "") in left_out:
        left_out |= {(section, "<<") for section in SECTIONS}
    left_out |= {(section, "") for section in _misspelled(root, _PROCESS if path else _TOP)}
    sections: dict[str, dict[str, Any]] = {}
    for section in SECTIONS:
        if section not in root or root[section] in ("", {}):
            continue  # building a validator takes a millisecond per section
        known = {entry for each, entry in left_out if each == section} if left_out else set()
        sections[section], dropped = yield from _section((*path, section), root[section], known)
        if dropped:
            left_out |= {(section, entry) for entry in dropped}
    return Spec(name, sections, frozenset(left_out), path)


def _misspelled(root: Mapping[str, Any], known: Sequence[str]) -> Iterator[str]:
    """Yield the sections that unknown keys were probably meant to be: their entries are left out."""
    for key in islice((each for each in root if each not in known), messages.COMPARED):
        meant = messages.intended(key, known)
        if meant in SECTIONS and meant not in root:
            yield meant


def _head(root: Mapping[str, Any], refused: set[str]) -> Iterator[Diagnostic]:
    yield from messages.first(_unknown_sections(root))
    incomplete = "<<" in refused
    if not incomplete and "memtopo" not in {*root, *refused}:
        help = f"begin the spec with 'memtopo: {VERSION}', the version of the language"
        yield Diagnostic("MT102", "'memtopo' is missing", help=help)
    elif root.get("memtopo", str(VERSION)) != str(VERSION):
        message = f"this memtopo reads version {VERSION} of the language"
        yield Diagnostic("MT108", message, ("memtopo",), help=f"write 'memtopo: {VERSION}'")
    if not incomplete and "name" not in {*root, *refused}:
        yield Diagnostic("MT102", "'name' is missing", help="give the layout a name: 'name: kv-cache'")
    elif "name" in root and not (isinstance(root["name"], str) and NAME.fullmatch(root["name"])):
        yield messages.bad_name(root["name"], ("name",), at="value")
    try:
        if root.get(MACHINES, "") != "":
            SpecKeys.model_validate({MACHINES: root[MACHINES]})
    except PydanticError as error:
        yield from messages.diagnose(error, (), lambda _: ())


def _unknown_sections(root: Mapping[str, Any]) -> Iterator[Diagnostic]:
    above = ""
    for key in root:
        if key in SECTIONS:
            above = key
        elif key not in _TOP:
            found = messages.unknown((key,), _TOP)
            if not found.edit and key in _HOSTS:
                found = found._replace(help="a process names its node: 'node: a', or 'nodes: [a, b]' for a counted one")
            elif not found.edit and root.get(above) == "":
                found = found._replace(help=f"indent it below {above!r}, which has no entries")
            yield found


def _section(path: Path, value: object, known: set[str]) -> Resolution[tuple[dict[str, Any], set[str]]]:
    """Entries of a section, and the names of those with errors; errors of `known` names are already reported."""
    name = str(path[-1])
    if not isinstance(value, dict):
        form = SECTIONS[name].words.form
        help = f"write it as in '{name}: {{{form}}}'" if form else None
        yield Diagnostic("MT103", f"{name!r} is a mapping from names to entries", path, help=help)
        return {}, {""}
    known = known | (yield from _unindented(path, value))
    misnamed = {key: wrong for key in value if not NAME.fullmatch(key) and (wrong := _misnamed(path, key))}
    yield from messages.first(misnamed.values())
    bad = misnamed.keys() | known
    entries = {key: entry for key, entry in value.items() if key not in bad}
    adapter = _adapter(name)
    try:
        return adapter.validate_python(entries), bad
    except PydanticError as error:
        found = messages.diagnose(error, path, partial(_keys, SECTIONS[name]), SECTIONS[name].words.form)
        yield from map(_beside, found)
        bad |= {str(each["loc"][0]) for each in error.errors(include_url=False, include_context=False)}
    return adapter.validate_python({key: entry for key, entry in entries.items() if key not in bad}), bad


def _beside(found: Diagnostic) -> Diagnostic:
    """Diagnostic of a key that is unknown in an entry, and the name of a section: its help has the form of that."""
    key = str(found.path[-1])
    if found.code != "MT101" or key not in SECTIONS or key in (found.help or "").partition("known are")[0]:
        return found
    form = SECTIONS[key].words.form or "…"
    return found._replace(help=f"it is a section of its own: '{key}: {{{form}}}'", edit=None)


def _unindented(path: Path, value: Mapping[str, object]) -> Resolution[set[str]]:
    """Names of entries without a value whose keys stand beside them, and these keys; both have a diagnostic."""
    empty = [name for name, entry in value.items() if entry == ""]
    keys = [name for name in value if empty and name in _keys(SECTIONS[str(path[-1])], ("",))]
    if not keys:
        return set()
    for name in empty:
        help = f"indent the lines of its keys, such as {keys[0]!r}, below it"
        yield Diagnostic("MT103", "expected a mapping, found nothing", (*path, name), help=help)
    return {*empty, *keys}


def _keys(kind: Kind, loc: tuple[str | int, ...]) -> list[str]:
    """Keys allowed at a position in a section; `loc` begins with the name of an entry."""
    model = _model(kind.entry)
    if model and len(loc) > 2 and (field := model.model_fields.get(str(loc[1]))):  # noqa: PLR2004
        model = _model(field.annotation) or model
    return [field.alias or key for key, field in model.model_fields.items()] if model else []


def _model(annotation: Any) -> type[Entry] | None:
    """First model with keys in the type of an entry or a field; None if it has none."""
    if isinstance(annotation, type) and issubclass(annotation, Entry):
        return annotation
    return next(filter(None, map(_model, get_args(annotation))), None)


def _misnamed(path: Path, key: str) -> Diagnostic | None:
    """Diagnostic of a key that is no plain name; None for a reference in a section that has them."""
    if SECTIONS[str(path[-1])].keys is not Keys.REFERENCES:
        return messages.bad_name(key, (*path, key))
    try:
        parse_reference(key)
    except InvalidValue as wrong:
        return Diagnostic(wrong.code, wrong.message, (*path, key), "key", help=wrong.help)
    return None


@cache
def _adapter(section: str) -> TypeAdapter[dict[str, Any]]:
    entries: Any = dict.__class_getitem__((str, SECTIONS[section].entry))
    return TypeAdapter(entries)
