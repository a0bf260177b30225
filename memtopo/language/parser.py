"""From YAML's events to values: a bounded walk, which builds nothing before it was looked at."""

from __future__ import annotations

import re

import yaml
from yaml.events import (
    AliasEvent,
    CollectionStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
    StreamEndEvent,
)

from memtopo.common.text import printable
from memtopo.common.units import shorten
from memtopo.diagnostics.model import Diagnostic, Label, Path, Span
from memtopo.language.characters import named, refused_character
from memtopo.language.document import Value
from memtopo.language.limits import DEEPEST, LARGEST_SCALAR, MOST_ENTRIES, Faults, Refused
from memtopo.language.positions import Lines, Places
from memtopo.language.yaml_errors import in_words

_MERGE_HELP = "write the keys out here; for many entries that are alike, use count"
_TAG_HELP = "leave it out: what a value is follows from the field that it stands in"
_ANCHOR_HELP = "write the value out where it is used"


class Walk:
    """One walk through a text. Faults that leave the rest readable are gathered; others raise `Refused`."""

    def __init__(self, text: str, lines: Lines) -> None:
        self.places = Places()
        self.faults = Faults()
        self.left_out: set[Path] = set()
        self._text = text
        self._lines = lines
        self._path: list[str | int] = []
        self._end = 0
        self._entries = 0

    def document(self) -> dict[str, Value]:
        """The values of the one mapping that a spec is."""
        check_start(self._text, self._lines)
        # libyaml's parser behind PyYAML's loader; where PyYAML came without it, the loader in pure Python.
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        try:
            self._next = loader(self._text).get_event
            return self._document()
        except (yaml.YAMLError, ValueError) as error:
            raise Refused(in_words(error, self._text, self._lines)) from error

    def _document(self) -> dict[str, Value]:
        self._next()
        if isinstance(self._next(), StreamEndEvent):
            raise Refused(nothing(self._text, self._lines))
        event = self._next()
        if not isinstance(event, MappingStartEvent):
            raise Refused(no_mapping(event, self._lines))
        self._common(event)
        self.places.add(event.start_mark.index, event.start_mark.index, event.start_mark.index, 0)
        root = self._mapping()
        self.places.close(0, self._end)
        end = self._next()
        check_end(self._text, end.end_mark.index, self._lines, explicit=end.explicit)
        self._next()
        return root

    def _mapping(self) -> dict[str, Value]:
        found: dict[str, Value] = {}
        while not isinstance(event := self._next(), MappingEndEvent):
            entry = len(self.places)
            start, end = event.start_mark.index, event.end_mark.index
            key = self._key(event, found)
            if key is None:
                self._skip(self._next(), entry)
            elif (value := self._value(self._next(), key, start, end)) is not None:
                found[key] = value
            else:
                self.places.forget(entry)
                self.left_out.add((*self._path, key))
        self._close(event)
        return found

    def _list(self) -> list[Value]:
        found: list[Value] = []
        while not isinstance(event := self._next(), SequenceEndEvent):
            entry = len(self.places)
            start = event.start_mark.index
            value = self._value(event, len(found), start, start)
            if value is None:
                self.places.forget(entry)
                self.left_out.add(tuple(self._path))
            else:
                found.append(value)
        self._close(event)
        return found

    def _close(self, event: Event) -> None:
        # A bracket has a width. Without one, a collection ends only where the next thing begins, after all comments.
        if event.start_mark.index != event.end_mark.index:
            self._end = event.end_mark.index

    def _key(self, event: Event, found: dict[str, Value]) -> str | None:
        """The text of a key, or None where its entry is to be left out."""
        if not isinstance(event, ScalarEvent):
            self._fault("MT103", "a key is text, and not a mapping, a list or an alias", event)
            self._skip(event, len(self.places))
            return None
        key = self._scalar(event)
        if key == "<<" and not event.style:
            self.left_out.add((*self._path, key))
            self._fault("MT008", "the merge key '<<' is not part of the language", event, help=_MERGE_HELP)
        elif key == "":
            self._fault("MT103", "a key is missing before ':'", event)
        elif key is not None and key in found:
            path = (*self._path, key)
            self._fault("MT009", f"key {_shown(key)} is given twice", event, path, first=path)
        else:
            return key
        return None

    def _value(self, event: Event, step: str | int, key: int, key_end: int) -> Value | None:
        """A value and all that is in it, or None where it is to be left out."""
        self._entries += 1
        if self._entries > MOST_ENTRIES:
            raise self._too(f"the text has more than {MOST_ENTRIES:,} entries", event)
        if isinstance(event, ScalarEvent):
            self.places.add(key, key_end, event.start_mark.index, event.end_mark.index)
            return self._scalar(event)
        if isinstance(event, CollectionStartEvent):
            return self._collection(event, step, key, key_end)
        anchor = getattr(event, "anchor", "")
        self._fault("MT006", f"alias {_shown('*' + anchor)} is refused", event, (*self._path, step), help=_ANCHOR_HELP)
        return None

    def _skip(self, event: Event, entry: int) -> None:
        """Read past what belongs to a refused entry, and judge nothing in it but its size."""
        faults, self.faults = self.faults, Faults(0)
        self._value(event, "?", 0, 0)
        self.faults = faults
        self.places.forget(entry)

    def _collection(self, event: CollectionStartEvent, step: str | int, key: int, key_end: int) -> Value:
        self._common(event)
        self._path.append(step)
        if len(self._path) >= DEEPEST:
            raise self._too(f"the text is deeper than {DEEPEST} levels", event)
        entry = len(self.places)
        self.places.add(key, key_end, event.start_mark.index, 0)
        self._end = event.end_mark.index
        value: Value = self._mapping() if isinstance(event, MappingStartEvent) else self._list()
        self.places.close(entry, self._end)
        self._path.pop()
        return value

    def _scalar(self, event: ScalarEvent) -> str | None:
        value: str = event.value
        self._end = event.end_mark.index
        if event.anchor is not None or event.tag is not None:
            self._common(event)
        if len(value) > LARGEST_SCALAR:
            raise self._too(f"a text of {len(value):,} characters; {LARGEST_SCALAR:,} may be", event)
        if value.isprintable() or not (character := refused_character(value)):
            return value
        self._fault("MT004", f"{named(character)} may not stand in a key or value", event)
        return None

    def _common(self, event: NodeEvent) -> None:
        if event.anchor is not None:
            self._fault("MT006", f"anchor {_shown('&' + event.anchor)} is refused", event, help=_ANCHOR_HELP)
        if (tag := getattr(event, "tag", None)) is not None:
            self._fault("MT007", f"tag {_shown(tag)} is refused", event, help=_TAG_HELP)

    def _fault(
        self,
        code: str,
        message: str,
        event: Event,
        path: Path | None = None,
        *,
        first: Path | None = None,
        help: str | None = None,
    ) -> None:
        if self.faults.full():
            return
        labels = () if first is None else (Label("first given here", first, "key"),)
        path = tuple(self._path) if path is None else path
        self.faults.add(Diagnostic(code, message, path, "value", labels, help=help, span=self._span(event)))

    def _too(self, message: str, event: Event) -> Refused:
        return Refused(Diagnostic("MT002", message, span=self._span(event)))

    def _span(self, event: Event) -> Span:
        return self._lines.span(event.start_mark.index, event.end_mark.index)


def _shown(text: str) -> str:
    return repr(printable(shorten(text)))


# Possessive throughout: 32 MiB of blank lines must not be walked twice.
_BLANK = re.compile(r"(?:[ \t\r\n]++|#[^\n]*+)*+")
_ENDS = re.compile(r"(?:[ \t\r\n]++|#[^\n]*+|(?<=\n)\.\.\.(?=\s|\Z))*+")
_VERSION = re.compile(r"%YAML[ \t]++1\.[12][ \t]*+(?:#[^\n]*+)?\r?\n")
_CONFLICT = re.compile(r"^(?:<{7}|={7}|>{7}|\|{7})(?=[ \r\n]|\Z)", re.MULTILINE)
_CONFLICT_SIGNS = ("<<<<<<<", ">>>>>>>")


def check_start(text: str, lines: Lines) -> None:
    """Raise `Refused` for merge conflicts, and for directives, of which libyaml compares each with all others."""
    if any(sign in text for sign in _CONFLICT_SIGNS) and (match := _CONFLICT.search(text)):
        message = "a merge-conflict marker: two versions of this file were not merged"
        raise Refused(_fault("MT005", message, lines, *match.span(), help="keep one version, and remove the markers"))
    start = _past(_BLANK, text, 0)
    if match := _VERSION.match(text, start):
        start = _past(_BLANK, text, match.end())
    if text.startswith("%", start):
        raise Refused(_directive(text, start, lines))


def check_end(text: str, index: int, lines: Lines, *, explicit: bool) -> None:
    """Raise `Refused` where another document follows the first, which ended at `index`, if `explicit` with '...'."""
    index = _past(_ENDS, text, min(index, len(text)))
    if text.startswith("%", index):
        raise Refused(_directive(text, index, lines))
    if text.startswith("---", index) or (explicit and index < len(text)):
        message = "a second document starts here, and a spec is one"
        raise Refused(_fault("MT010", message, lines, index, index, help="put each spec into a file of its own"))


def nothing(text: str, lines: Lines) -> Diagnostic:
    """What to say of a text without a document."""
    what = "holds only comments and blank lines" if "#" in text else "is empty"
    return _fault("MT010", f"the file {what}; expected a mapping", lines, 0, 0)


def no_mapping(event: Event, lines: Lines) -> Diagnostic:
    """What to say where the document begins with something other than a mapping."""
    start, end = event.start_mark.index, event.end_mark.index
    if isinstance(event, AliasEvent):
        return _fault("MT006", "an alias is refused", lines, start, end)
    if isinstance(event, SequenceStartEvent):
        return _fault("MT010", "expected a mapping at the top of the file, found a list", lines, start, end)
    value = event.value if isinstance(event, ScalarEvent) else ""
    if not value:
        return _fault("MT010", "the document is empty; expected a mapping", lines, start, end)
    if ":" in value:
        return _fault("MT010", "expected a mapping; is a space missing after ':'?", lines, start, end)
    return _fault("MT010", "expected a mapping at the top of the file, found text", lines, start, end)


def _past(pattern: re.Pattern[str], text: str, index: int) -> int:
    match = pattern.match(text, index)
    return match.end() if match else index


def _directive(text: str, start: int, lines: Lines) -> Diagnostic:
    end = text.find("\n", start)
    end = end if end >= 0 else len(text)
    return _fault("MT005", "directives ('%') are not part of the language", lines, start, end, help="remove this line")


def _fault(code: str, message: str, lines: Lines, start: int, end: int, *, help: str | None = None) -> Diagnostic:
    return Diagnostic(code, message, span=lines.span(start, end), help=help)
