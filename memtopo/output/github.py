"""Validation results as commands to the runner of GitHub Actions, which annotates the lines in the diff."""

from __future__ import annotations

from memtopo.common.errors import MemtopoError
from memtopo.common.text import printable
from memtopo.diagnostics.codes import CODES
from memtopo.diagnostics.model import Span
from memtopo.language.located import Located
from memtopo.output import validation
from memtopo.rules.files import Checked

_DATA = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
_PROPERTY = _DATA | str.maketrans({":": "%3A", ",": "%2C"})


def lines(checked: Checked) -> list[str]:
    """One command for each diagnostic, errors first: the runner shows ten errors and ten warnings of a step."""
    return [
        _annotation(each) for each in sorted(validation.all_located(checked), key=lambda each: each.diagnostic.severity)
    ]


def failure(error: MemtopoError) -> list[str]:
    """The command for a validation that could not be made."""
    return [_command("error", {"title": "memtopo"}, validation.error_message(error))]


def _annotation(found: Located) -> str:
    code = found.diagnostic.code
    properties = {
        "file": validation.repository_path(found.file),
        **_position(found.span),
        "title": f"{code}: {CODES[code].title}",
    }
    return _command(found.diagnostic.severity, properties, validation.full_message(found.diagnostic))


def _position(span: Span | None) -> dict[str, str]:
    if span is None:
        return {}
    lines = {"line": str(span.line), "endLine": str(span.end_line)}
    # The runner refuses columns of an annotation that spans several lines.
    columns = {"col": str(span.column), "endColumn": str(span.end_column)} if span.line == span.end_line else {}
    return lines | columns


def _command(kind: str, properties: dict[str, str], message: str) -> str:
    listed = ",".join(f"{name}={printable(value).translate(_PROPERTY)}" for name, value in properties.items())
    shown = "\n".join(map(printable, message.split("\n")))
    return f"::{kind} {listed}::{shown.translate(_DATA)}"
