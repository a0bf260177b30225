"""Replacement of the parameters in a spec's values.

A value that is a `$name`, or an arithmetic with one, is replaced by its text, which the field types. Keys and parts of
longer texts are not replaced. A value that cannot be replaced is left out, with a diagnostic.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from memtopo.common.units import shorten
from memtopo.diagnostics import messages
from memtopo.diagnostics.model import At, Diagnostic, InvalidValue, Label, Path
from memtopo.language.limits import PARAMETERS, DiagnosticList
from memtopo.language.parameters import LeftOut, Parameters, resolve, uses

MOST_NOTED = 3
"""Replaced values that the notes of one diagnostic name."""

_KEY_HELP = "write the key itself: parameters are for values, such as 'count: $pages * 2'"
_TEXT_HELP = "a parameter is a whole value: declare the whole text, such as 'head: page.0:4', and write $head"
_ARITHMETIC = re.compile(r"\s*[$(0-9]")
_NOTHING = object()
_OF_FORM = ("MT105", "MT106", "MT107")


@dataclass(frozen=True, slots=True)
class Substituted:
    """Values of a spec without parameters, and the diagnostics of what could not be replaced.

    `left_out` has the paths of values that are missing, `written` the text of each value that was replaced.
    """

    root: dict[str, Any]
    parameters: Parameters = field(default_factory=Parameters)
    diagnostics: tuple[Diagnostic, ...] = ()
    left_out: frozenset[Path] = frozenset()
    written: Mapping[Path, str] = field(default_factory=dict)

    def noted(self, found: Iterable[Diagnostic]) -> list[Diagnostic]:
        """Return diagnostics with notes on the parameters of the values that they are about.

        One of the form of a value is where a parameter declares it, with labels where it is used.
        """
        given = self._moved(found) if self.written else list(found)
        if not self.written or not given:
            return given
        texts = self._texts({each.path for each in given})
        return [each._replace(notes=(*each.notes, *self._notes(texts.get(each.path, ())))) for each in given]

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

    def _notes(self, texts: Iterable[str]) -> Iterator[str]:
        for text in texts:
            described = self.parameters.described(text)
            whole = text.strip().removeprefix("$").isidentifier()
            yield described if whole else f"{shorten(text)} is {self.parameters.replaced(text)}: {described}"


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
        values = {name: each.value for name, each in self._parameters.values.items()}
        return {**fixed, **replaced, **({PARAMETERS: values} if values else {})}

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
        if not _ARITHMETIC.match(given) or not (names or given.lstrip().startswith("$")):
            return _NOTHING if self._refused(given, path, "value") else given
        if given not in self._known:
            self._known[given] = self._result(given)
        found = self._known[given]
        if isinstance(found, str):
            self.written[path] = given
            return found
        if found is not None:
            code, message, help = found.code, found.message, found.help
            notes = tuple(filter(None, [self._parameters.described(given)]))
            self.diagnostics.add(lambda: Diagnostic(code, message, path, notes=notes, help=help))
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
        self.diagnostics.add(lambda: Diagnostic(code, message, path, at, help=help))
        return True
