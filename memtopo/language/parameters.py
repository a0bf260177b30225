"""Parameters of a spec: the values that `params` declares, or that settings give in their place; their replacement.

A value that is a `$name`, or an arithmetic with one, is replaced by its text, which the field types. Keys and parts of
longer texts are not replaced. A value that cannot be replaced is left out, with a diagnostic.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from graphlib import CycleError, TopologicalSorter
from itertools import islice
from typing import Any

from msgspec import Struct, field

from memtopo.common.text import nearest
from memtopo.common.units import shorten
from memtopo.diagnostics import messages
from memtopo.diagnostics.model import At, Diagnostic, Edit, InvalidValue, Label, Path
from memtopo.language.arithmetic import PARAMETER_NAME, USE, evaluate
from memtopo.language.limits import LARGEST_SCALAR, MOST_PARAMETERS, PARAMETERS, DiagnosticList, refused_character

_NAME = re.compile(PARAMETER_NAME)
_WHOLE = re.compile(rf"\s*\$({PARAMETER_NAME})\s*")


class LeftOut(Exception):
    """A value uses a parameter that has no value, for which there is a diagnostic."""


class Parameters(Struct, frozen=True):
    """Parameters of a spec: their texts as `declared`, and the `values` of those without errors.

    `settings` are the texts that were given in place of declared ones. If `incomplete`, the section had an error, and
    nothing is known of names that are not in it.
    """

    declared: Mapping[str, object] = {}
    settings: Mapping[str, str] = {}
    values: Mapping[str, str] = {}
    incomplete: bool = False

    def replaced(self, text: str, *, suggest: bool = True) -> str:
        """Return the value of a text that is a `$name` or an arithmetic.

        Raises `InvalidValue`, and `LeftOut` if the reason for its lack of a value was reported already. The search for
        the name that is most similar to an undeclared one takes milliseconds; callers `suggest` it for the first ones.
        """
        if whole := _WHOLE.fullmatch(text):
            return self._text(whole[1], suggest=suggest)
        return str(evaluate(text, partial(self._text, suggest=suggest)))

    def origin(self, text: str) -> str | None:
        """Name of the parameter whose declaration has the value of a `$name`; None if it was set, or is computed."""
        while (whole := _WHOLE.fullmatch(text)) and whole[1] in self.declared and whole[1] not in self.settings:
            text = str(self.declared[whole[1]])
            if "$" not in text:
                return whole[1]
        return None

    def described(self, text: str) -> str:
        """List the parameters that a text uses, with their values: `$pages is 16, $page is 2MiB`."""
        names = [name for name in dict.fromkeys(uses(text)) if name in self.values][: messages.LISTED]
        return ", ".join(f"${name} is {self._shown(name)}" for name in names)

    def _shown(self, name: str) -> str:
        value = self.values[name]
        several = ", and only 'memtopo validate' accepts several values" if "," in value else ""
        return f"{shorten(value)}{f' as set{several}' if name in self.settings else ''}"

    def _text(self, name: str, *, suggest: bool) -> str:
        if name in self.values:
            return self.values[name]
        if self.incomplete or name in self.declared:
            raise LeftOut
        most = messages.COMPARED if suggest else messages.LISTED + 1
        known = [f"${each}" for each in islice(self.declared, most)]
        help = _help(f"${name}", known, f"declare it: 'params: {{{shorten(name)}: VALUE}}'", suggest=suggest)
        raise InvalidValue("MT901", f"parameter '${shorten(name)}' is not declared", help=help)


def resolve(section: object, settings: Mapping[str, str], *, unread: bool) -> tuple[Parameters, list[Diagnostic]]:
    """Return the parameters of a section `params`, with the diagnostics of those without a value.

    A setting takes precedence over the text in the section. `unread` says that a part of it was left out when the spec
    was read.
    """
    if wrong := _wrong_section(section):
        return Parameters(settings=settings, incomplete=True), [wrong]
    declared = section if isinstance(section, dict) else {}
    found = [] if unread else list(_undeclared(settings, declared))
    texts: dict[str, str] = {}
    for name, written in declared.items():
        text = settings.get(name, written)
        if wrong := _wrong_name(name) or _wrong_text(name, text):
            found.append(wrong)
        else:
            texts[name] = str(text)
    order, circles = _order(texts)
    values, wrong_values = _values(declared, settings, {name: texts[name] for name in order}, unread=unread)
    return Parameters(declared, settings, values, unread), messages.first([*found, *circles, *wrong_values])


def uses(text: str) -> list[str]:
    """Return the names of the parameters that a text uses."""
    return re.findall(USE, text) if "$" in text else []


def _wrong_section(section: object) -> Diagnostic | None:
    if isinstance(section, dict):
        if len(section) <= MOST_PARAMETERS:
            return None
        message = f"{len(section):,} parameters are more than the {MOST_PARAMETERS:,} allowed in one spec"
        return Diagnostic("MT109", message, (PARAMETERS,), "key")
    if section == "":
        return None
    help = "write 'params: {pages: 64}'"
    return Diagnostic("MT103", f"{PARAMETERS!r} is a mapping from names to values", (PARAMETERS,), help=help)


def _undeclared(settings: Mapping[str, str], declared: Mapping[str, object]) -> Iterator[Diagnostic]:
    undeclared = [name for name in settings if name not in declared]
    for index, name in enumerate(undeclared):
        help = _help(name, list(declared), "it declares none", suggest=index < messages.SUGGESTED)
        message = f"{shorten(name)!r} is set, but the spec does not declare this parameter"
        yield Diagnostic("MT901", message, (PARAMETERS,), "key", help=help)


def _help(name: str, known: Sequence[str], none: str, *, suggest: bool) -> str:
    meant = nearest(name, known) if suggest else None
    return f"did you mean {meant}?" if meant else messages.known_names(known, none)


def _wrong_name(name: str) -> Diagnostic | None:
    if _NAME.fullmatch(name):
        return None
    help = "a parameter's name begins with a letter and continues with letters, digits and _"
    if _NAME.fullmatch(name.removeprefix("$")):
        help = f"write {name.removeprefix('$')!r} here, and '{name}' where it is used"
    return Diagnostic("MT104", f"{shorten(name)!r} is not a parameter's name", (PARAMETERS, name), "key", help=help)


def _wrong_text(name: str, text: object) -> Diagnostic | None:
    path = (PARAMETERS, name)
    if not isinstance(text, str):
        what = "a list" if isinstance(text, list) else "a mapping"
        return Diagnostic("MT103", f"expected one value, found {what}", path, help="a parameter is text or a number")
    if not text:
        help = f"write a value here, or give one: --set {shorten(name)}=VALUE; in Python, params="
        return Diagnostic("MT905", f"parameter {shorten(name)!r} has no value", path, "key", help=help)
    if character := refused_character(text):
        return Diagnostic("MT004", f"{character} is not allowed in the value of a parameter", path)
    if len(text) > LARGEST_SCALAR:
        return Diagnostic("MT002", f"a text of {len(text):,} characters; at most {LARGEST_SCALAR:,} are allowed", path)
    return None


def _order(texts: Mapping[str, str]) -> tuple[list[str], list[Diagnostic]]:
    """Names of the parameters, each after the ones that it uses, without circles of parameters."""
    graph = {name: [each for each in uses(text) if each in texts] for name, text in texts.items()}
    found: list[Diagnostic] = []
    while True:
        try:
            return [name for name in TopologicalSorter(graph).static_order() if name in graph], found
        except CycleError as error:
            circle = error.args[1][::-1]
            most = messages.LISTED
            shown = " → ".join(circle if len(circle) <= most else [*circle[: most - 1], "…", circle[-1]])
            message = f"parameter {circle[0]!r} refers to itself: {shown}"
            found.append(Diagnostic("MT904", message, (PARAMETERS, circle[0])))
            for name in circle[1:]:
                del graph[name]


def _values(
    declared: Mapping[str, object], settings: Mapping[str, str], texts: Mapping[str, str], *, unread: bool
) -> tuple[dict[str, str], list[Diagnostic]]:
    """Values of texts, which are in the order of their dependencies."""
    values: dict[str, str] = {}
    found: list[Diagnostic] = []
    known = Parameters(declared, settings, values, unread)
    for name, text in texts.items():
        try:
            values[name] = known.replaced(text, suggest=len(found) < messages.SUGGESTED) if "$" in text else text
        except InvalidValue as wrong:
            notes = tuple(filter(None, [known.described(text)]))
            found.append(Diagnostic(wrong.code, wrong.message, (PARAMETERS, name), notes=notes, help=wrong.help))
        except LeftOut:
            continue
    return {name: values[name] for name in declared if name in values}, found


MOST_NOTED = 3
"""Replaced values that the notes of one diagnostic name."""

_KEY_HELP = "write the key itself: parameters can replace only values, such as 'count: $pages * 2'"
_TEXT_HELP = "a parameter is a whole value: declare the whole text, such as 'head: page.0:4', and write $head"
_ARITHMETIC = re.compile(r"\s*[$(0-9]")
_ANY_USE = re.compile(r"^\s*\$|\$[{(]")
_NOTHING = object()
_OF_FORM = ("MT105", "MT106", "MT107")


class Substituted(Struct, frozen=True):
    """Values of a spec without parameters, and the diagnostics of what could not be replaced.

    `left_out` has the paths of values that are missing, `written` the text of each value that was replaced.
    """

    root: dict[str, Any]
    parameters: Parameters = field(default_factory=Parameters)
    diagnostics: tuple[Diagnostic, ...] = ()
    left_out: frozenset[Path] = frozenset()
    written: Mapping[Path, str] = {}

    def noted(self, found: Iterable[Diagnostic]) -> list[Diagnostic]:
        """Return diagnostics with notes on the parameters of the values that they are about.

        One of the form of a value is where a parameter declares it, with labels where it is used.
        """
        given = self._moved(found) if self.written else list(found)
        if not self.written or not given:
            return given
        texts = self._texts({each.path for each in given})
        return [each._replace(notes=(*each.notes, *map(self._note, texts.get(each.path, ())))) for each in given]

    def _moved(self, given: Iterable[Diagnostic]) -> list[Diagnostic]:
        """Diagnostics of the form of a value at the parameter that declares it, one for all its uses."""
        found: dict[object, Diagnostic] = {}
        for number, each in enumerate(given):
            name = self.parameters.origin(self.written.get(each.path, "")) if each.code in _OF_FORM else None
            if name is None:
                found[number] = each
                continue
            path: Path = (PARAMETERS, name)
            labels = found[each.code, each.message, path].labels if (each.code, each.message, path) in found else ()
            used = (*labels, Label(f"${name} is used here", each.path))[:MOST_NOTED]
            edit = each.edit._replace(path=path) if each.edit else None
            found[each.code, each.message, path] = each._replace(path=path, labels=used, edit=edit)
        return [*found.values()]

    def _texts(self, paths: Collection[Path]) -> dict[Path, list[str]]:
        """The first texts that were replaced at or below each of these paths of entries."""
        found: dict[Path, list[str]] = {}
        for path, text in self.written.items():
            for above in (path[:depth] for depth in range(2, len(path) + 1)):
                if above in paths and len(texts := found.setdefault(above, [])) < MOST_NOTED and text not in texts:
                    texts.append(text)
        return found

    def _note(self, text: str) -> str:
        described, whole = self.parameters.described(text), text.strip().removeprefix("$").isidentifier()
        return described if whole else f"{shorten(text)} is {self.parameters.replaced(text)}: {described}"


def substitute(root: dict[str, Any], settings: Mapping[str, str], left_out: frozenset[Path]) -> Substituted:
    """Replace the parameters in the values of a spec, which are not modified.

    `left_out` has the paths of the entries that were rejected, with diagnostics, when the spec was read.
    """
    unread = any(path[:1] in ((PARAMETERS,), ("<<",)) for path in left_out)
    parameters, found = resolve(root.get(PARAMETERS, ""), settings, unread=unread)
    values = _Values(parameters)
    replaced = values.document(root)
    if not left_out and not found and not values.left_out:
        found += messages.first(_unused(parameters, values.used))
    diagnostics = (*found, *values.diagnostics.collected())
    return Substituted(replaced, parameters, diagnostics, frozenset(values.left_out), values.written)


def _unused(parameters: Parameters, used: Collection[str]) -> Iterator[Diagnostic]:
    """MT907 for parameters that neither a value nor another parameter uses."""
    texts = {name: f"{text} {parameters.settings.get(name, '')}" for name, text in parameters.declared.items()}
    by_others = {each for name, text in texts.items() for each in uses(text) if each != name}
    for name in parameters.declared:
        if name not in used and name not in by_others:
            help = f"write ${name} where it belongs, or remove it"
            yield Diagnostic("MT907", f"parameter {shorten(name)!r} is not used", (PARAMETERS, name), "key", help=help)


class _Values:
    """Replacement in the values of one document. Containers without parameters are kept, the others copied."""

    def __init__(self, parameters: Parameters) -> None:
        self.diagnostics = DiagnosticList()
        self.left_out: set[Path] = set()
        self.written: dict[Path, str] = {}
        self.used: set[str] = set()
        self._parameters = parameters
        self._known: dict[str, str | InvalidValue | None] = {}
        self._invalid = 0

    def document(self, root: dict[str, Any]) -> dict[str, Any]:
        """Replace in all but the version and the parameters themselves, which have the values in effect."""
        fixed = {key: root[key] for key in ("memtopo", PARAMETERS) if key in root}
        replaced = self._mapping({key: value for key, value in root.items() if key not in fixed}, ())
        values = self._parameters.values
        return {**fixed, **replaced, **({PARAMETERS: dict(values)} if values else {})}

    def _mapping(self, given: dict[str, Any], path: Path) -> dict[str, Any]:
        changed: dict[str, Any] = {}
        for key, value in given.items():
            if "$" in key and self._refused(key, (*path, key), "key"):
                changed[key] = _NOTHING
            elif (replaced := self._value(value, path, key)) is not value:
                changed[key] = replaced
        if not changed:
            return given
        self.left_out.update((*path, key) for key, value in changed.items() if value is _NOTHING)
        return {key: value for key, value in (given | changed).items() if value is not _NOTHING}

    def _value(self, given: Any, path: Path, step: str | int) -> Any:
        if isinstance(given, str):
            return self._text(given, (*path, step)) if "$" in given else given
        if isinstance(given, dict):
            return self._mapping(given, (*path, step))
        values = [self._value(each, (*path, step), index) for index, each in enumerate(given)]
        if any(value is _NOTHING for value in values):
            return _NOTHING
        return given if all(new is old for new, old in zip(values, given, strict=True)) else values

    def _text(self, given: str, path: Path) -> object:
        """Return the value of a text that may use parameters, or `_NOTHING` if it has none."""
        names = uses(given)
        self.used.update(names)
        if not _ARITHMETIC.match(given) or not (names or _ANY_USE.search(given)):
            return _NOTHING if self._refused(given, path, "value") else given
        if given not in self._known:
            self._known[given] = self._result(given)
        found = self._known[given]
        if isinstance(found, str):
            self.written[path] = given
            return found
        if found is not None:
            notes = tuple(filter(None, [self._parameters.described(given)]))
            edit = Edit(path, "value", given, found.meant) if found.meant else None
            self.diagnostics.add(Diagnostic(found.code, found.message, path, notes=notes, help=found.help, edit=edit))
        return _NOTHING

    def _result(self, text: str) -> str | InvalidValue | None:
        """Value of a text, the reason why it has none, or None if that was reported already."""
        try:
            return self._parameters.replaced(text, suggest=self._invalid < messages.SUGGESTED)
        except InvalidValue as wrong:
            self._invalid += 1
            return wrong
        except LeftOut:
            return None

    def _refused(self, given: str, path: Path, at: At) -> bool:
        """Report a parameter that is used in a key or in a part of a text. Return false if there is none."""
        named = [name for name in uses(given) if name in self._parameters.declared]
        if not named:
            return False
        self.used.update(named)
        code, place = ("MT104", "a key") if at == "key" else ("MT906", "a part of a longer text")
        message = f"{shorten(given)!r}: parameter '${named[0]}' cannot be {place}"
        help = _KEY_HELP if at == "key" else _TEXT_HELP
        if at == "key" and "access" in path:
            help = f"name the device: 'devices: {{mine: ${named[0]}}}', and write 'mine' here"
        self.diagnostics.add(Diagnostic(code, message, path, at, help=help))
        return True
