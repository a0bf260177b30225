"""Diagnostics that several rooms make, and the suggestions in them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from memtopo.common.text import nearest, only_near
from memtopo.common.units import NotASize, parse_size, shorten
from memtopo.diagnostics.model import At, Diagnostic, Edit, InvalidValue, Path

if TYPE_CHECKING:
    from pydantic import ValidationError


LISTED = 12
"""Known names that a message lists."""

MOST = 1000
"""Diagnostics of one kind that are reported one by one."""

COMPARED = 1000
"""Known names that an unknown name is compared with; each comparison takes some microseconds."""

_GPU = re.compile(r"\b(?:[A-Za-z][\w-]*/)?gpu\d+\b")

SUGGESTED = 10
"""Diagnostics of one kind, the first ones, that get a suggestion."""


def first(found: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Return the first diagnostics of one kind; if there are more, a note in the last one states it."""
    reported = list(islice(found, MOST + 1))
    if len(reported) > MOST:
        del reported[MOST:]
        last = reported[-1]
        note = f"there are more; only the first {MOST:,} are reported"
        reported[-1] = last._replace(notes=(*last.notes, note))
    return reported


def merged_by_gpu(found: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Return diagnostics; ones that differ in nothing but their GPU are one, which names all of the GPUs."""
    equal: dict[object, dict[str, Diagnostic]] = {}
    for each in found:
        gpus = {*_GPU.findall("\n".join((each.message, *each.notes)))}
        gpu = gpus.pop() if len(gpus) == 1 else ""
        same = each._replace(message=_GPU.sub("", each.message), notes=tuple(_GPU.sub("", note) for note in each.notes))
        equal.setdefault(same if gpu else each, {}).setdefault(gpu, each)
    return [_of_gpus([*each], *each.values()) for each in equal.values()]


def _of_gpus(gpus: Sequence[str], first: Diagnostic, *others: Diagnostic) -> Diagnostic:
    if not others:
        return first
    if gpus[0] in first.message:
        return first._replace(notes=(*first.notes, f"the same on {', '.join(gpus[1:])}"))
    return first._replace(notes=tuple(_GPU.sub(", ".join(gpus), note) for note in first.notes))


def did_you_mean(word: str) -> str:
    """Help that suggests a word."""
    return f"did you mean {word!r}?"


def choose(word: str, known: Sequence[str]) -> str:
    """Help for a word that is not one of a few: the nearest one, or all of them."""
    if meant := nearest(word, known):
        return did_you_mean(meant)
    return f"write {known[0]}" if len(known) == 1 else f"write one of {', '.join(known)}"


def unknown_state(layout: str, state: str, states: Sequence[str]) -> tuple[str, str | None]:
    """Message and hint for a state that a layout does not have; `states` are its states, `awake` among them."""
    if len(states) == 1:
        return f"layout {layout!r} has no states", None
    return f"there is no state {shorten(state)!r}", choose(state, states[:LISTED])


def not_awake(layout: str, state: str) -> tuple[str, str]:
    """Message and hint for a change of a held layout that is in a state without some of its memory."""
    return f"layout {layout!r} is in state {state!r}", f"'memtopo switch {layout} awake' first"


def known_names(known: Sequence[str], none: str) -> str:
    """Help that lists the first of the known names, or `none` if there are none."""
    return f"known are {', '.join(known[:LISTED])}{' …' * (len(known) > LISTED)}" if known else none


def unknown(path: Path, known: Sequence[str]) -> Diagnostic:
    """Diagnostic of a key that is not one of the `known` keys."""
    key = str(path[-1])
    meant = intended(key, known) or _meant_elsewhere(key, known)
    help = did_you_mean(meant) if meant else f"known are {', '.join(known)}"
    if key.partition(":")[0] in known:
        help = without_space(key) or help
    only = only_near(key, known) if meant else None
    edit = Edit(path, "key", key, only) if only else None
    return Diagnostic("MT101", f"unknown key {shorten(key)!r}", path, "key", help=help, edit=edit)


_ELSEWHERE: Mapping[str, Sequence[str]] = {
    "location": ("device", "gpu", "node", "numa"),
    "size": ("bytes", "length", "capacity"),
    "count": ("n", "number", "num", "copies", "replicas"),
    "handles": ("shareable", "shared", "handle_types", "requestedhandletypes", "exportable"),
    "align": ("alignment",),
    "drop": ("discard", "release", "free", "unmap"),
    "offload": ("backup", "swap", "save", "sleep"),
    "via": ("type", "handle", "handle_type"),
    "from": ("source", "import"),
    "memtopo": ("version", "apiversion", "schema"),
    "accessed_by": ("access", "peers"),
}
"""Keys, each with words that CUDA, libraries and other tools have for it."""


def _meant_elsewhere(key: str, known: Sequence[str]) -> str | None:
    """Known key that has another name elsewhere; None for any other word."""
    plain = key.lower().replace("-", "_")
    return next((word for word, others in _ELSEWHERE.items() if word in known and plain in others), None)


def without_space(key: object) -> str | None:
    """Help for a key that has its value, too, since there is no space after the colon: `gpu0:rw`; None for others."""
    name, colon, value = str(key).rpartition(":")
    if not (name and colon and value) or (name == "host" and value.isdecimal()):  # host:0 is a device
        return None
    return f"write {shorten(f'{name}: {value.strip()}')!r}, with a space after the colon"


def intended(key: str, known: Sequence[str]) -> str | None:
    """Return the one of the `known` keys that an unknown key was probably meant to be, or None."""
    meant = nearest(key, known)
    if meant and meant[0] not in key[:2].lower() and key[0].lower() not in meant[:2]:
        return None  # another word of similar letters: 'round' for 'count'
    return meant


def bad_name(name: object, path: Path, at: At = "key") -> Diagnostic:
    """Diagnostic of a name with characters that names must not have."""
    message = f"{shorten(name)!r} is not a name" if isinstance(name, str) else "expected a name"
    help = "a name begins with a letter and continues with letters, digits, _ and -"
    near = re.sub("[ /.:]+", "-", name.strip()) if isinstance(name, str) else ""
    if re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]{0,63}", near):
        help = f"write {near}: {help}"
    return Diagnostic("MT104", message, path, at, help=help)


AllowedKeys = Callable[[tuple[str | int, ...]], Sequence[str]]
"""Function that returns the keys that are allowed at a location in a section."""

_SHAPES = {
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "list_type": "a list",
    "string_type": "text",
    "access": "devices with their access, or a list of parts",
}


def diagnose(error: ValidationError, within: Path, known: AllowedKeys, form: str = "") -> list[Diagnostic]:
    """Return the first diagnostics of a section.

    `known` returns the keys that are allowed at a location in it; `form` is an entry of it as a spec writes it.
    """
    every = error.errors(include_url=False)
    misspelled = set(_intended(every, known))  # keys that are missing under a misspelled name, an error of its own
    found = (each for each in every if each["type"] != "missing" or each["loc"] not in misspelled)
    return first(_diagnostic(each, _path(within, each), known, form) for each in found)


def _path(within: Path, error: Any) -> Path:
    """Path of an error, without pydantic's own marks for a rejected key and for the form of an access entry."""
    loc: tuple[str | int, ...] = error["loc"]
    if loc[-1] == "[key]" and error["type"] == "value_error":
        loc = loc[:-1]
    if within[-1:] == ("access",) and len(loc) > 1:
        loc = (loc[0], *loc[2:])
    return (*within, *loc)


def _intended(found: Sequence[Any], known: AllowedKeys) -> Iterator[tuple[object, ...]]:
    """Locations of the keys that unknown keys were probably meant to be; at most `COMPARED` words are compared."""
    near: dict[tuple[str, ...], str | None] = {}
    for error in found:
        if error["type"] == "extra_forbidden":
            *entry, key = error["loc"]
            keys = known(error["loc"])
            if (case := (key, *keys)) not in near and len(near) < COMPARED:
                near[case] = nearest(str(key), keys) or _meant_elsewhere(str(key), keys)
            yield (*entry, near.get(case))


def _diagnostic(error: Any, path: Path, known: AllowedKeys, form: str) -> Diagnostic:
    kind = error["type"]
    if kind == "extra_forbidden":
        return unknown(path, known(error["loc"]))
    if kind == "missing":
        # An entry of a list by its number, which is counted from 1 since `kv.0` is a range.
        *above, last = path[1:-1]
        entry = f"entry {last + 1} of {'.'.join(map(str, above))!r}" if isinstance(last, int) else repr(str(last))
        return Diagnostic("MT102", f"{entry} needs {path[-1]!r}", path, help=f"add '{path[-1]}: …'")
    cause = error.get("ctx", {}).get("error")
    if isinstance(cause, InvalidValue):
        written = error["input"]
        edit = Edit(path, cause.at, written, cause.meant) if cause.meant and isinstance(written, str) else None
        help = without_space(path[-1]) if written == "" and not cause.help else cause.help
        return Diagnostic(cause.code, cause.message, path, cause.at, help=help, edit=edit)
    if kind in _SHAPES:
        help = None
        if form and len(error["loc"]) == 1:
            help = f"write '{path[-1]}: {_with_value(form.partition(': ')[2], error['input'])}'"
        if help is None and path[0] == "access" and re.fullmatch(_PLACES["location"], str(error["input"])):
            help = f"write '{path[1]}: {{{error['input']}: rw}}', with each device"
        if help is None and kind == "dict_type" and _named(error["input"]):
            value = _PLACED.get(str(path[-1]), "…")
            help = f"write '{path[-1]}: {{{', '.join(f'{each}: {value}' for each in error['input'])}}}'"
        if help is None and kind.startswith("model") and (keys := known((*error["loc"], ""))):
            help = f"its keys are {', '.join(keys[:LISTED])}"
        return Diagnostic("MT103", f"expected {_SHAPES[kind]}, found {_found(error['input'])}", path, help=help)
    return Diagnostic("MT103", str(error["msg"]).lower(), path)


_PLACES = {
    "size": r"[0-9.]+ ?[A-Za-z]+",
    "location": r"gpu[0-9]+|host(?::[0-9]+)?",
    "gpu0": "rw?",
}
"""Keys of the forms of entries, with the values that may be written in place of the entry."""


_PLACED = {"offload": "host"}
"""Fields that are mappings, with a value that a list of their keys has been given without."""

_EXAMPLE = "hot"
"""Name in forms of entries that refer to another one."""


def _with_value(form: str, value: object) -> str:
    """Form of an entry with a value that was written in its place: `{size: 4MiB}` for `4MiB`."""
    for key, values in _PLACES.items():
        if isinstance(value, str) and re.fullmatch(values, value):
            return re.sub(rf"\b{key}: [^,}}]+", f"{key}: {_valid(value)}", form)
    if isinstance(value, str) and re.fullmatch("gpu[0-9]+", value):
        return form.replace("gpu0:", f"{value}:")
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z][\w-]*(?:\.[0-9:]+)?", value):
        return form.replace(_EXAMPLE, value)
    if isinstance(value, list) and value and all(isinstance(each, str) for each in value):
        return re.sub(r"\[[^\]]*\]", f"[{', '.join(value)}]", form)
    return form


def _valid(value: str) -> str:
    """A size in its valid form; any other value as it is."""
    try:
        return str(parse_size(value))
    except NotASize as error:
        return error.meant or value


def _named(value: object) -> bool:
    """Return true for a list that begins with text, which may have been meant as a key."""
    return isinstance(value, list) and bool(value) and isinstance(value[0], str)


def _found(value: object) -> str:
    if isinstance(value, str):
        return f"{shorten(value)!r}" if value else "nothing"
    return "a list" if isinstance(value, list) else "a mapping"
