"""`memtopo explain` and `memtopo schema`: diagnostic codes, and the JSON Schemas of specs and documents."""

from __future__ import annotations

import re
import sys
from typing import Annotated

import typer

from memtopo.cli import candidates
from memtopo.cli.options import AsJson
from memtopo.common.errors import UsageError
from memtopo.common.text import nearest
from memtopo.diagnostics import explanations, messages
from memtopo.diagnostics.codes import CODES
from memtopo.diagnostics.explanations import Explanation
from memtopo.output import explain as rendering
from memtopo.output import json, plain

_NUMBERED = re.compile(r"MT[0-9]{3}")
Codes = Annotated[
    list[str] | None,
    typer.Argument(metavar="CODE", help="MT301, …", show_default=False, autocompletion=candidates.codes),
]
All = Annotated[bool, typer.Option("--all", envvar="MEMTOPO_ALL", help="Explain every code.")]
Markdown = Annotated[bool, typer.Option("--markdown", envvar="MEMTOPO_MARKDOWN", help="Print as Markdown.")]
Kind = Annotated[
    str,
    typer.Argument(
        metavar="KIND",
        help="spec, machine, plan, report, diagnostics, …",
        show_default=False,
        autocompletion=candidates.schemas,
    ),
]


def explain_command(codes: Codes = None, all_: All = False, markdown: Markdown = False, as_json: AsJson = False) -> int:
    """Explain codes of diagnostics; without one, list them all."""
    requested = CODES if all_ else [_known(code) for code in codes or ()]
    found = [explanations.explanation(code) for code in requested]
    plain.print_lines(_markdown(found) if markdown else _json(found) if as_json else _text(found))
    return 0


def schema_command(kind: Kind) -> int:
    """Print the JSON Schema of specs or of memtopo's documents."""
    from memtopo.output import schemas

    if kind not in schemas.KINDS:
        raise UsageError(f"there is no schema {kind!r}", hint=messages.choose(kind, schemas.KINDS))
    plain.print_document(json.dumps(schemas.schema(kind)).splitlines())
    return 0


def _markdown(found: list[Explanation]) -> list[str]:
    whole = len(found) in (0, len(CODES))
    return rendering.page(map(explanations.explanation, CODES)) if whole else rendering.markdown(found)


def _json(found: list[Explanation]) -> list[str]:
    return json.dumps({"codes": found or rendering.code_list()}).splitlines()


def _text(found: list[Explanation]) -> list[str]:
    colour = plain.colour(sys.stdout)
    if not found:
        return rendering.table(colour=colour)
    return rendering.text(found, width=plain.width(sys.stdout), colour=colour)


def _known(code: str) -> str:
    if code.upper() in CODES:
        return code.upper()
    meant = None if _NUMBERED.fullmatch(code.upper()) else nearest(code.upper(), CODES)
    hint = f"did you mean {meant}? 'memtopo explain' lists them all" if meant else "'memtopo explain' lists them all"
    raise UsageError(f"there is no code {code!r}", hint=hint)
