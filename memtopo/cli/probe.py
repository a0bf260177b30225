"""`memtopo probe`: what the machine has, what it advertises, and what a trial showed to work."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from memtopo import machine as machines
from memtopo import probe, target
from memtopo.cli.options import AsJson, MachineName
from memtopo.errors import Unavailable
from memtopo.facts import anonymous
from memtopo.machine import Machine
from memtopo.render import plain

Output = Annotated[
    str | None,
    typer.Option("--output", "-o", envvar="MEMTOPO_OUTPUT", metavar="FILE", help="Record the machine in a file."),
]
Identify = Annotated[
    bool,
    typer.Option("--identify", envvar="MEMTOPO_IDENTIFY", help="Keep UUIDs, bus ids and the host's name."),
]


def command(
    machine: MachineName = "local",
    output: Output = None,
    identify: Identify = False,
    as_json: AsJson = False,
) -> int:
    """Read the machine's facts, and try what it advertises: one granule created and released each time."""
    found = target.resolve(machine)
    now = datetime.now(UTC).strftime("%Y-%m-%d") if not found.simulated else found.machine.recorded
    facts = probe.probe(found.open(), found.machine, recorded=now)
    kept = facts if identify else anonymous(facts)
    if output:
        _write(output, kept)
    if as_json:
        plain.print_lines(machines.dump(kept).splitlines())
    else:
        from memtopo.render import probe as rendering  # rich is slow to import
        from memtopo.render import terminal

        terminal.show(rendering.probe_text(kept, found.name, simulated=found.simulated))
    return 0


def _write(output: str, facts: Machine) -> None:
    try:
        Path(output).write_text(machines.dump(facts), encoding="utf-8")
    except OSError as error:
        raise Unavailable(f"{output!r} cannot be written: {(error.strerror or 'error').lower()}") from error
