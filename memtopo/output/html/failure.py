"""Pages of what was not built: a spec with errors, or an error outside of a spec."""

from __future__ import annotations

from collections.abc import Sequence

from memtopo.common.errors import MemtopoError
from memtopo.output.html.document import (
    Column,
    Table,
    Tone,
    Toned,
    document,
    properties,
    section,
    source,
    tables,
    verdict,
)
from memtopo.output.humanize import plural
from memtopo.output.json import DiagnosticsDocument, Fault

_MOST, _MOST_LINES = 200, 3000
_COLUMNS = Column("place"), Column("code"), Column("message"), Column("help")


def diagnostics_page(name: str, found: DiagnosticsDocument, lines: Sequence[str]) -> str:
    """The diagnostics of a spec that was refused, as an HTML document; `lines` show them in the text of the spec."""
    words = f"invalid: {plural(found.errors, 'error')}; nothing was built"
    if found.warnings:
        words = f"invalid: {plural(found.errors, 'error')} and {plural(found.warnings, 'warning')}; nothing was built"
    machines = ", ".join(dict.fromkeys(each.machine for each in found.results if each.machine))
    table = Table.bounded("", _COLUMNS, [_row(each) for each in found.diagnostics], _MOST)
    body = [
        verdict(words, "bad"),
        section("Diagnostics", tables(table)),
        section("In the spec", source(lines, _MOST_LINES)),
    ]
    return document(name, "memtopo apply", f"on {machines}" if machines else "", body)


def error_page(command: str, error: MemtopoError) -> str:
    """An error without a result of a command, as an HTML document."""
    pairs = [("error", error.message), *(("", line) for line in error.details), ("hint", error.hint)]
    body = [
        verdict(f"failed, exit status {error.exit_code}", "bad"),
        section("Error", properties(pairs)),
    ]
    return document(f"{command} failed", f"memtopo {command}", "", body)


def _row(each: Fault) -> Sequence[str | Toned]:
    tone: Tone = "bad" if each.severity == "error" else "warn"
    return _place(each.file, each.line, each.column), Toned(each.code, tone), each.message, each.help or ""


def _place(file: str, line: int | None, column: int | None) -> str:
    return file if line is None else f"{file}:{line}:{column}"
