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
from memtopo.diagnostics.facts import Fact, facts
from memtopo.output import explain as rendering
from memtopo.output import json, plain

_NUMBERED = re.compile(r"MT[0-9]{3}")
_FACT = re.compile(r"(?:fact-?)?([0-9]{1,4})", re.IGNORECASE)
_SPACED = re.compile(r"\bfact ([0-9])", re.IGNORECASE)
Codes = Annotated[
    list[str] | None,
    typer.Argument(metavar="CODE", help="MT301, fact-15, …", show_default=False, autocompletion=candidates.explained),
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
    """Explain codes of diagnostics or driver facts; list the codes."""
    named = _SPACED.sub(r"fact-\1", " ".join(codes or ())).split()
    found: list[Explanation | Fact] = [_known(code) for code in (CODES if all_ else named)]
    lines = _markdown(found) if markdown else _json(found) if as_json else _text(found)
    plain.print_lines(lines, styled=True)
    return 0


def schema_command(kind: Kind) -> int:
    """Print the JSON Schema of specs or of memtopo's documents."""
    from memtopo.output import schemas

    if kind not in schemas.KINDS:
        raise UsageError(f"there is no schema {kind!r}", hint=messages.choose(kind, schemas.KINDS))
    plain.print_document(json.dumps(schemas.schema(kind)).splitlines())
    return 0


def _markdown(found: list[Explanation | Fact]) -> list[str]:
    whole = len(found) in (0, len(CODES))
    return rendering.page(map(explanations.explanation, CODES)) if whole else rendering.markdown(found)


def _json(found: list[Explanation | Fact]) -> list[str]:
    codes = [each for each in found if isinstance(each, Explanation)]
    cited = [each for each in found if isinstance(each, Fact)]
    document = {"codes": codes if found else rendering.code_list()} | ({"facts": cited} if cited else {})
    return json.dumps(document).splitlines()


def _text(found: list[Explanation | Fact]) -> list[str]:
    colour = plain.colour(sys.stdout)
    if not found:
        return rendering.table(colour=colour)
    return rendering.text(found, width=plain.width(sys.stdout), colour=colour)


def _known(code: str) -> Explanation | Fact:
    if code.upper() in CODES:
        return explanations.explanation(code.upper())
    if match := _FACT.fullmatch(code):
        return _fact(int(match[1]))
    meant = None if _NUMBERED.fullmatch(code.upper()) else nearest(code.upper(), CODES)
    hint = f"did you mean {meant}? 'memtopo explain' lists them all" if meant else "'memtopo explain' lists them all"
    raise UsageError(f"there is no code {code!r}", hint=hint)


def _fact(number: int) -> Fact:
    known = facts()
    if number not in known:
        raise UsageError(f"there is no fact {number}", hint=f"facts are fact-1 to fact-{max(known)}")
    return known[number]
