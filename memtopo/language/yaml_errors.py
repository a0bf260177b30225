"""Diagnostics of the YAML parser's errors, at their positions."""

from __future__ import annotations

from typing import NamedTuple

import yaml

from memtopo.common.text import printable
from memtopo.common.units import shorten
from memtopo.diagnostics.model import Diagnostic, Label
from memtopo.language.positions import Lines


class _Message(NamedTuple):
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
    "a block scalar": _Message("after '|' or '>', only a comment may follow on the line", _QUOTES),
}
_PROBLEMS = {
    "undefined tag handle": _TAG,
    "mapping values are not allowed": _Message(
        "':' is not expected here", "a key fits on one line; text with ': ' needs quotes"
    ),
    "sequence entries are not allowed": _Message("'- ' is not expected here", "a list starts on its own line"),
    "mapping keys are not allowed": _Message("'?' is not expected here", _QUOTES),
    "could not find expected ':'": _Message(
        "a key without ':' after it", "write 'key: value'; a space follows the ':'"
    ),
    "found unexpected end of stream": _Message("the text ends inside of quotes"),
    "found unexpected document": _Message("'---' and '...' may not start a line inside of quotes"),
    "unknown escape": _ESCAPE,
    "hexdecimal": _ESCAPE,
    "hexadecimal": _ESCAPE,
    "Unicode character escape": _ESCAPE,
    "',' or ']'": _Message("expected ',' or ']'"),
    "',' or '}'": _Message("expected ',' or '}'"),
    "unexpected ':'": _Message(
        "':' is not expected here", "in braces, a blank follows the ':' of a key; text with ':' needs quotes"
    ),
    "<block end>": _Message("nothing more is expected here", "are the lines of this block indented alike?"),
    "expected key": _Message("expected a key", "are the entries of this mapping indented alike?"),
    "'-' indicator": _Message("expected '- '", "are the entries of this list indented alike?"),
    "node content": _Message("expected a value"),
    "<document start>": _Message("nothing more is expected here", "are the lines above indented as they should be?"),
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
    labels = () if opened is None else _labels(context, lines, opened, start)
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


def _labels(context: str, lines: Lines, opened: int, start: int) -> tuple[Label, ...]:
    for part, text in _OPENED.items():
        if part in context and opened != start:
            return (Label(text, (), span=lines.span(opened, opened + 1)),)
    return ()
