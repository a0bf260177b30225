"""`memtopo schema`: print the JSON Schema of specs, for editors, or of a document that memtopo writes."""

from __future__ import annotations

from typing import Annotated

import typer

from memtopo.common.errors import UsageError
from memtopo.diagnostics import messages
from memtopo.output import json, plain

Kind = Annotated[
    str,
    typer.Argument(metavar="KIND", help="spec, machine, plan, report, diagnostics, …", show_default=False),
]


def command(kind: Kind) -> int:
    """Print the JSON Schema of specs or of memtopo's documents."""
    from memtopo.output import schemas

    if kind not in schemas.KINDS:
        raise UsageError(f"there is no schema {kind!r}", hint=messages.choose(kind, schemas.KINDS))
    plain.print_lines(json.dumps(schemas.schema(kind)).splitlines())
    return 0
