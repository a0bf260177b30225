"""The YAML parser's complaints in plain words, at the place where it made them."""

from __future__ import annotations

from typing import NamedTuple

import yaml

from memtopo.common.text import printable
from memtopo.common.units import shorten
from memtopo.diagnostics.model import Diagnostic, Label
from memtopo.language.positions import Lines


class _Words(NamedTuple):
    message: str
    help: str | None = None
    code: str = "MT005"


_QUOTES = "put the text in quotes"
_TABS = _Words("tabs are not allowed for indentation", "indent with spaces")
_ESCAPE = _Words("not an escape that YAML knows", r"write '\\' for a backslash, or use single quotes")
_ANCHOR = _Words("anchors and aliases are not part of the language", _QUOTES, "MT006")
_TAG = _Words("tags are not part of the language", _QUOTES, "MT007")

# A part of what libyaml or PyYAML says, and what it means. Of two that fit, the first is taken.
_CONTEXTS = {
    "an anchor": _ANCHOR,
    "an alias": _ANCHOR,
    "a tag": _TAG,
    "directive": _Words("directives ('%') are not part of the language", "remove this line"),
    "a block scalar": _Words("after '|' or '>', only a comment may stand on the line", _QUOTES),
}
_PROBLEMS = {
    "undefined tag handle": _TAG,
    "mapping values are not allowed": _Words(
        "':' is not expected here", "a key fits on one line; text with ': ' needs quotes"
    ),
    "sequence entries are not allowed": _Words("'- ' is not expected here", "a list starts on a line of its own"),
    "mapping keys are not allowed": _Words("'?' is not expected here", _QUOTES),
    "could not find expected ':'": _Words("a key without ':' after it", "write 'key: value'; a space follows the ':'"),
    "found unexpected end of stream": _Words("the text ends inside of quotes"),
    "found unexpected document": _Words("'---' and '...' may not start a line inside of quotes"),
    "unknown escape": _ESCAPE,
    "hexdecimal": _ESCAPE,
    "hexadecimal": _ESCAPE,
    "Unicode character escape": _ESCAPE,
    "',' or ']'": _Words("expected ',' or ']'"),
    "',' or '}'": _Words("expected ',' or '}'"),
    "unexpected ':'": _Words("':' is not expected here", "put the text in quotes"),
    "<block end>": _Words("nothing more is expected here", "are the lines of this block indented alike?"),
    "expected key": _Words("expected a key", "are the entries of this mapping indented alike?"),
    "'-' indicator": _Words("expected '- '", "are the entries of this list indented alike?"),
    "node content": _Words("expected a value"),
    "<document start>": _Words("nothing more is expected here", "are the lines above indented as they should be?"),
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


def in_words(error: Exception, text: str, lines: Lines) -> Diagnostic:
    """What the parser found wrong, and where."""
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return Diagnostic("MT005", "the text is not YAML", span=lines.span(0, 0))
    context, problem = error.context or "", error.problem or ""
    start = error.problem_mark.index
    opened = None if error.context_mark is None else error.context_mark.index
    if "expected ':'" in problem and opened is not None:
        # It is noticed only at the next token, which may stand lines below the key that is at fault.
        start, opened = opened, None
    words = _words(context, problem, text[start : start + 1])
    labels = () if opened is None else _labels(context, lines, opened, start)
    span = lines.span(start, start if text[start : start + 1] in "\r\n" else start + 1)
    return Diagnostic(words.code, words.message, labels=labels, help=words.help, span=span)


def _words(context: str, problem: str, char: str) -> _Words:
    if "tab character" in problem:
        return _TABS
    if "cannot start any token" in problem:
        return _TABS if char == "\t" else _Words(f"{printable(char)!r} cannot start a value", _QUOTES)
    for part, words in _CONTEXTS.items():
        if context.endswith(part):
            return words
    for part, words in _PROBLEMS.items():
        if part in problem:
            return words
    return _Words(printable(shorten(problem, 200)) or "the text is not YAML")


def _labels(context: str, lines: Lines, opened: int, start: int) -> tuple[Label, ...]:
    for part, words in _OPENED.items():
        if part in context and opened != start:
            return (Label(words, (), span=lines.span(opened, opened + 1)),)
    return ()
