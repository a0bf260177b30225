"""Parser of a spec's text: from YAML events to values, with bounds on size and depth."""

from __future__ import annotations

import re

import yaml
from msgspec import Struct

from memtopo.common.text import printable
from memtopo.common.units import shorten
from memtopo.diagnostics.model import Diagnostic, Label, Path, TextSpan
from memtopo.language.document import Lines, Positions, Value
from memtopo.language.limits import DEEPEST, LARGEST_SCALAR, MOST_ENTRIES, DiagnosticList, ReadError, refused_character


class _Message(Struct, frozen=True):
    message: str
    help: str | None = None
    code: str = "MT005"


_QUOTES = "put the text in quotes"
_TABS = _Message("tabs are not allowed for indentation", "indent with spaces")
_ESCAPE = _Message("not an escape sequence of YAML", r"write '\\' for a backslash, or use single quotes")
_ANCHOR = _Message("anchors and aliases are not part of the language", _QUOTES, "MT006")
_TAG = _Message("tags are not part of the language", _QUOTES, "MT007")

# Parts of the messages of libyaml and PyYAML; the first one that matches is taken.
_CONTEXTS = {
    "an anchor": _ANCHOR,
    "an alias": _ANCHOR,
    "a tag": _TAG,
    "directive": _Message("directives ('%') are not part of the language", "remove this line"),
    "a block scalar": _Message("only a comment can follow '|' or '>' on the line", _QUOTES),
}
_PROBLEMS = {
    "undefined tag handle": _TAG,
    "exceeded maximum nesting depth": _Message(f"the text is deeper than {DEEPEST} levels", code="MT002"),
    "mapping values are not allowed": _Message(
        "':' is not expected here", "a key fits on one line; text with ': ' needs quotes"
    ),
    "sequence entries are not allowed": _Message("'- ' is not expected here", "a list starts on its own line"),
    "mapping keys are not allowed": _Message("'?' is not expected here", _QUOTES),
    "could not find expected ':'": _Message(
        "a key without ':' after it", "write 'key: value'; a space follows the ':'"
    ),
    "found unexpected end of stream": _Message("the text ends inside of quotes"),
    "found unexpected document": _Message("'---' and '...' cannot start a line inside quotes"),
    "unknown escape": _ESCAPE,
    "hexdecimal": _ESCAPE,
    "hexadecimal": _ESCAPE,
    "Unicode character escape": _ESCAPE,
    "',' or ']'": _Message("expected ',' or ']'"),
    "',' or '}'": _Message("expected ',' or '}'"),
    "unexpected ':'": _Message(
        "':' is not expected here", "in braces, a blank follows the ':' of a key; text with ':' needs quotes"
    ),
    "<block end>": _Message("unexpected text", "do the lines of this block have the same indentation?"),
    "expected key": _Message("expected a key", "do the entries of this mapping have the same indentation?"),
    "'-' indicator": _Message("expected '- '", "do the entries of this list have the same indentation?"),
    "node content": _Message("expected a value"),
    "<document start>": _Message("unexpected text", "are the lines above indented as they should be?"),
}
_OPENED = {
    "flow sequence": "'[' opens here",
    "flow mapping": "'{' opens here",
    "block mapping": "the mapping starts here",
    "block collection": "the list starts here",
    "block sequence": "the list starts here",
    "quoted scalar": "the quotes open here",
    "simple key": "the key starts here",
}


def yaml_diagnostic(error: Exception, text: str, lines: Lines) -> Diagnostic:
    """Return the diagnostic of an error that the YAML parser raised."""
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return Diagnostic("MT005", "the text is not YAML", span=lines.span(0, 0))
    context, problem = error.context or "", error.problem or ""
    start = error.problem_mark.index
    opened = None if error.context_mark is None else error.context_mark.index
    if "expected ':'" in problem and opened is not None:
        # The parser notices it only at the next token, which may be lines below the key at fault.
        start, opened = opened, None
    found = _message(context, problem, text[start : start + 1])
    what = next((text for part, text in _OPENED.items() if part in context), None)
    labels: tuple[Label, ...] = ()
    if what and opened is not None and opened != start:
        labels = (Label(what, (), span=lines.span(opened, opened + 1)),)
    span = lines.span(start, start if text[start : start + 1] in "\r\n" else start + 1)
    return Diagnostic(found.code, found.message, labels=labels, help=found.help, span=span)


def _message(context: str, problem: str, char: str) -> _Message:
    if "tab character" in problem:
        return _TABS
    if "cannot start any token" in problem:
        return _TABS if char == "\t" else _Message(f"{printable(char)!r} cannot start a value", _QUOTES)
    for part, message in _CONTEXTS.items():
        if context.endswith(part):
            return message
    for part, message in _PROBLEMS.items():
        if part in problem:
            return message
    return _Message(printable(shorten(problem, 200)) or "the text is not YAML")


_TEMPLATE = re.compile(r"\{\{ *\$?([A-Za-z]\w*) *\}\}")
"""Use of a parameter as templates write it."""

_MERGE_HELP = "write the keys out here; for many equal entries, use count"
_TAG_HELP = "omit it: the type of a value follows from its field"
_ANCHOR_HELP = "write the value out where it is used"


class Parser:
    """Parser of one text. Errors after which parsing can continue are collected; others raise `ReadError`."""

    def __init__(self, text: str, lines: Lines) -> None:
        self.positions = Positions()
        self.diagnostics = DiagnosticList()
        self.left_out: set[Path] = set()
        self._text = text
        self._lines = lines
        self._path: list[str | int] = []
        self._end = 0
        self._entries = 0

    def document(self) -> dict[str, Value]:
        """Parse the document. Raises `ReadError`."""
        check_start(self._text, self._lines)
        # PyYAML's loader on top of libyaml or, in a build without libyaml, the one in pure Python.
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        try:
            self._next = loader(self._text).get_event
            return self._document()
        except (yaml.YAMLError, ValueError) as error:
            raise ReadError(yaml_diagnostic(error, self._text, self._lines)) from error

    def _document(self) -> dict[str, Value]:
        self._next()
        if isinstance(self._next(), yaml.StreamEndEvent):
            what = "has only comments and blank lines" if "#" in self._text else "is empty"
            help = "'memtopo init' writes a first spec"
            message = f"the file {what}; expected a mapping"
            raise ReadError(Diagnostic("MT010", message, help=help, span=self._lines.span(0, 0)))
        event = self._next()
        if not isinstance(event, yaml.MappingStartEvent):
            raise ReadError(_no_mapping(event, self._lines))
        self._refuse_properties(event)
        self.positions.add(event.start_mark.index, event.start_mark.index, event.start_mark.index, 0)
        root = self._mapping()
        self.positions.close(0, self._end)
        end = self._next()
        check_end(self._text, end.end_mark.index, self._lines, explicit=end.explicit)
        self._next()
        return root

    def _mapping(self) -> dict[str, Value]:
        found: dict[str, Value] = {}
        while not isinstance(event := self._next(), yaml.MappingEndEvent):
            key = self._key(event, found)
            if key is None:
                self._skip(self._next())
            elif (value := self._value(self._next(), key, event.start_mark.index, event.end_mark.index)) is not None:
                found[key] = value
            else:
                self.left_out.add((*self._path, key))
        self._close(event)
        return found

    def _list(self) -> list[Value]:
        found: list[Value] = []
        while not isinstance(event := self._next(), yaml.SequenceEndEvent):
            start = event.start_mark.index
            value = self._value(event, len(found), start, start)
            if value is None:
                self.left_out.add(tuple(self._path))
            else:
                found.append(value)
        self._close(event)
        return found

    def _close(self, event: yaml.Event) -> None:
        # The end event of a block collection is empty and lies after all comments that follow the collection.
        if event.start_mark.index != event.end_mark.index:
            self._end = event.end_mark.index

    def _key(self, event: yaml.Event, found: dict[str, Value]) -> str | None:
        """Return the text of a key, or None if its entry is left out."""
        if not isinstance(event, yaml.ScalarEvent):
            start = event.start_mark.index
            if written := _TEMPLATE.match(self._text, start - 1):
                message = f"{shorten(written[0])!r} is no use of a parameter"
                span = self._lines.span(start - 1, written.end())
                raise ReadError(Diagnostic("MT005", message, help=f"write ${written[1]}", span=span))
            self._report("MT103", "keys are text; found a mapping, a list or an alias", event)
            self._skip(event)
            return None
        key = self._scalar(event)
        if key == "<<" and not event.style:
            self.left_out.add((*self._path, key))
            self._report("MT008", "the merge key '<<' is not part of the language", event, help=_MERGE_HELP)
        elif key == "":
            self._report("MT103", "a key is missing before ':'", event)
        elif key is not None and key in found:
            path = (*self._path, key)
            help = "write its values under one key, or choose another name"
            self._report("MT009", f"key {_shown(key)} is given twice", event, path, help=help)
            if not self._path:
                self.left_out.add((key, ""))
        else:
            return key
        return None

    def _value(self, event: yaml.Event, step: str | int, key: int, key_end: int) -> Value | None:
        """Return a value with all nested values, or None if it is left out."""
        self._entries += 1
        if self._entries > MOST_ENTRIES:
            raise self._too_large(f"the text has more than {MOST_ENTRIES:,} entries", event)
        if isinstance(event, yaml.ScalarEvent):
            if (value := self._scalar(event)) is not None:
                self.positions.add(key, key_end, event.start_mark.index, self._end)
            return value
        if isinstance(event, yaml.CollectionStartEvent):
            self._refuse_properties(event)
            self._path.append(step)
            if len(self._path) >= DEEPEST:
                raise self._too_large(f"the text is deeper than {DEEPEST} levels", event)
            entry = self.positions.add(key, key_end, event.start_mark.index, 0)
            self._end = event.end_mark.index
            collection: Value = self._mapping() if isinstance(event, yaml.MappingStartEvent) else self._list()
            self.positions.close(entry, self._end)
            self._path.pop()
            return collection
        anchor = getattr(event, "anchor", "")
        self._report("MT006", f"alias {_shown('*' + anchor)} is refused", event, (*self._path, step), help=_ANCHOR_HELP)
        return None

    def _skip(self, event: yaml.Event) -> None:
        """Skip the value of a rejected entry; only its size and depth are checked."""
        entry = len(self.positions)
        kept, self.diagnostics = self.diagnostics, DiagnosticList(0)
        self._value(event, "?", 0, 0)
        self.diagnostics = kept
        self.positions.forget(entry)

    def _scalar(self, event: yaml.ScalarEvent) -> str | None:
        value: str = event.value
        self._end = event.end_mark.index
        if event.anchor is not None or event.tag is not None:
            self._refuse_properties(event)
        if len(value) > LARGEST_SCALAR:
            raise self._too_large(f"a text of {len(value):,} characters; at most {LARGEST_SCALAR:,} are allowed", event)
        if value.isprintable() or not (character := refused_character(value)):
            return value
        self._report("MT004", f"{character} is not allowed in a key or value", event)
        return None

    def _refuse_properties(self, event: yaml.NodeEvent) -> None:
        if event.anchor is not None:
            self._report("MT006", f"anchor {_shown('&' + event.anchor)} is refused", event, help=_ANCHOR_HELP)
        if (tag := getattr(event, "tag", None)) is not None:
            self._report("MT007", f"tag {_shown(tag)} is refused", event, help=_TAG_HELP)

    def _report(
        self, code: str, message: str, event: yaml.Event, path: Path | None = None, help: str | None = None
    ) -> None:
        path = tuple(self._path) if path is None else path
        labels = (Label("first given here", path, "key"),) if code == "MT009" else ()
        self.diagnostics.add(Diagnostic(code, message, path, "value", labels, help=help, span=self._span(event)))

    def _too_large(self, message: str, event: yaml.Event) -> ReadError:
        return ReadError(Diagnostic("MT002", message, span=self._span(event)))

    def _span(self, event: yaml.Event) -> TextSpan:
        return self._lines.span(event.start_mark.index, event.end_mark.index)


def _shown(text: str) -> str:
    return repr(printable(shorten(text)))


# Possessive quantifiers throughout, so that 32 MiB of blank lines are scanned only once.
_BLANK = re.compile(r"(?:[ \t\r\n]++|#[^\n]*+)*+")
_ENDS = re.compile(r"(?:[ \t\r\n]++|#[^\n]*+|(?<=\n)\.\.\.(?=\s|\Z))*+")
_VERSION = re.compile(r"%YAML[ \t]++1\.[12][ \t]*+(?:#[^\n]*+)?\r?\n")
_CONFLICT = r"(?m)^(?:<{7}|={7}|>{7}|\|{7})(?=[ \r\n]|\Z)"


def check_start(text: str, lines: Lines) -> None:
    """Raise `ReadError` for merge conflicts, and for directives, since libyaml compares each with all others."""
    if any(sign in text for sign in ("<<<<<<<", ">>>>>>>")) and (match := re.search(_CONFLICT, text)):
        message = "a merge-conflict marker: two versions of this file were not merged"
        help = "keep one version, and remove the markers"
        raise ReadError(Diagnostic("MT005", message, help=help, span=lines.span(*match.span())))
    start = _past(_BLANK, text, 0)
    if match := _VERSION.match(text, start):
        start = _past(_BLANK, text, match.end())
    if text.startswith("%", start):
        raise ReadError(_directive(text, start, lines))


def check_end(text: str, index: int, lines: Lines, *, explicit: bool) -> None:
    """Raise `ReadError` if another document follows the first, which ended at `index`, with '...' if `explicit`."""
    index = _past(_ENDS, text, min(index, len(text)))
    if text.startswith("%", index):
        raise ReadError(_directive(text, index, lines))
    if text.startswith("---", index) or (explicit and index < len(text)):
        message = "a second document starts here; a spec is a single document"
        help = "put each spec into its own file"
        raise ReadError(Diagnostic("MT010", message, help=help, span=lines.span(index, index)))


def _no_mapping(event: yaml.Event, lines: Lines) -> Diagnostic:
    code, message = "MT010", "expected a mapping at the top of the file, found text"
    if isinstance(event, yaml.AliasEvent):
        code, message = "MT006", "an alias is refused"
    elif isinstance(event, yaml.SequenceStartEvent):
        message = "expected a mapping at the top of the file, found a list"
    elif not isinstance(event, yaml.ScalarEvent) or not event.value:
        message = "the document is empty; expected a mapping"
    elif ":" in event.value:
        message = "expected a mapping; is a space missing after ':'?"
    return Diagnostic(code, message, span=lines.span(event.start_mark.index, event.end_mark.index))


def _past(pattern: re.Pattern[str], text: str, index: int) -> int:
    match = pattern.match(text, index)
    return match.end() if match else index


def _directive(text: str, start: int, lines: Lines) -> Diagnostic:
    end = text.find("\n", start)
    span = lines.span(start, end if end >= 0 else len(text))
    return Diagnostic("MT005", "directives ('%') are not part of the language", help="remove this line", span=span)
