"""A check as commands to GitHub's runner, which marks the lines in the diff."""

from __future__ import annotations

from collections.abc import Iterable

from memtopo.common.errors import MemtopoError
from memtopo.common.text import printable
from memtopo.diagnostics.codes import CODES
from memtopo.output import validation
from memtopo.output.validation import Placed
from memtopo.rules.files import Checked

_DATA = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
_PROPERTY = _DATA | str.maketrans({":": "%3A", ",": "%2C"})


def lines(checked: Checked) -> list[str]:
    """One command for each fault: errors first, since of one step only ten errors and ten warnings are shown."""
    return [_fault(fault) for fault in sorted(validation.places(checked), key=lambda fault: fault.diagnostic.severity)]


def failure(error: MemtopoError) -> list[str]:
    """The command of a check that could not be made."""
    return [_command("error", {"title": "memtopo"}, validation.error_prose(error))]


def quoted(text: Iterable[str], token: str) -> list[str]:
    """Lines that the runner only shows: until it reads `token` again, it takes no command from a spec's text."""
    return [f"::stop-commands::{token}", *text, f"::{token}::"]


def _fault(fault: Placed) -> str:
    code = fault.diagnostic.code
    properties = {"file": validation.from_top(fault.file), **_place(fault), "title": f"{code}: {CODES[code].title}"}
    return _command(fault.diagnostic.severity, properties, validation.prose(fault.diagnostic))


def _place(fault: Placed) -> dict[str, str]:
    span = fault.span
    if span is None:
        return {}
    lines = {"line": str(span.line), "endLine": str(span.end_line)}
    # The runner refuses columns where a mark goes over several lines.
    columns = {"col": str(span.column), "endColumn": str(span.end_column)} if span.line == span.end_line else {}
    return lines | columns


def _command(kind: str, properties: dict[str, str], message: str) -> str:
    told = ",".join(f"{name}={printable(value).translate(_PROPERTY)}" for name, value in properties.items())
    shown = "\n".join(map(printable, message.split("\n")))
    return f"::{kind} {told}::{shown.translate(_DATA)}"
