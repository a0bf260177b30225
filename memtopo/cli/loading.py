"""What every command that takes a spec begins with: the text, the machine, and all faults at once."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TextIO

from memtopo import source, target
from memtopo.diagnostics import Path
from memtopo.errors import UsageError
from memtopo.geometry import Geometry
from memtopo.render import diagnostics, json, plain
from memtopo.report import MachineLine
from memtopo.source import Document
from memtopo.target import Target
from memtopo.validation import Validated, validate

INVALID = 1


def load(spec: str, machine: str) -> tuple[Validated, Target]:
    """Read a spec and a machine, and hold one against the other.

    Raises `Unavailable` where there is no machine, `UsageError` where nothing is named.
    """
    if not spec:
        raise UsageError("SPEC is empty", hint="name a file, or - for standard input")
    found = target.resolve(machine)
    document = source.read_stdin() if spec == "-" else source.read_file(spec)
    return validate(document, found.machine), found


def refuse(validated: Validated, *, as_json: bool) -> int:
    """Say why a spec is not carried out: to stderr, and with `--json` as the document on stdout."""
    show_faults(validated, sys.stderr)
    if as_json:
        plain.print_lines(json.dumps(json.faults(validated.diagnostics, validated.document)).splitlines())
    return INVALID


def show_faults(validated: Validated, stream: TextIO) -> None:
    """Write the diagnostics of a spec with their source lines, if there are any."""
    faults, document = validated.diagnostics, validated.document
    lines = diagnostics.text(faults, document, width=plain.width(stream), colour=plain.colour(stream))
    plain.print_lines(lines, stream)


def machine_line(found: Target) -> MachineLine:
    """A target in one line of a report."""
    facts = found.machine
    driver = facts.driver.release or f"CUDA {facts.driver.cuda}"
    return MachineLine(found.name, found.simulated, tuple(device.name for device in facts.devices), driver)


def places(document: Document) -> Callable[[Path], str | None]:
    """How a path of a document reads as `file:line:column`."""

    def place(path: Path) -> str | None:
        span = document.span(path, "key") if path else None
        return f"{document.name}:{span.line}:{span.column}" if span else None

    return place


def geometry_of(validated: Validated) -> Geometry:
    """The geometry of a spec without errors."""
    assert validated.geometry is not None
    return validated.geometry
