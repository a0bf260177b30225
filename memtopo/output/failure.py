"""Pages of what was not built: a spec with errors, or an error outside of a spec."""

from __future__ import annotations

from collections.abc import Sequence

from memtopo.common.errors import MemtopoError
from memtopo.output.blocks import Cell, Page, Pairs, Section, Source, Table, Toned, columns
from memtopo.output.humanize import plural
from memtopo.output.json import DiagnosticsDocument, Fault


def diagnostics_page(found: DiagnosticsDocument, lines: Sequence[str], name: str) -> Page:
    """The diagnostics of a spec that was refused; `lines` show them in the text of the spec."""
    warnings = f" and {plural(found.warnings, 'warning')}" if found.warnings else ""
    verdict = Toned(f"invalid: {plural(found.errors, 'error')}{warnings}; nothing was built", "bad")
    machines = ", ".join(dict.fromkeys(each.machine for each in found.results if each.machine))
    table = Table(columns("place", "code", "message", "help"), [*map(_row, found.diagnostics)])
    sections = [Section("diagnostics", [table]), Section("in the spec", [Source(lines)])]
    return Page("apply", name, f"on {machines}" if machines else "", sections=sections, verdict=verdict)


def error_page(command: str, error: MemtopoError) -> Page:
    """An error without a result of a command."""
    pairs = [("error", error.message), *(("", line) for line in error.details)]
    pairs += [("hint", error.hint)] if error.hint else []
    verdict = Toned(f"failed, exit status {error.exit_code}", "bad")
    return Page(command, f"{command} failed", sections=[Section("error", [Pairs(pairs)])], verdict=verdict)


def _row(each: Fault) -> tuple[Cell, ...]:
    place = each.file if each.line is None else f"{each.file}:{each.line}:{each.column}"
    return place, Toned(each.code, "bad" if each.severity == "error" else "warn"), each.message, each.help or ""
