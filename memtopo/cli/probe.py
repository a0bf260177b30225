"""`memtopo probe`: what the machine has, what it advertises, and what a trial showed to work."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from memtopo import machine as machines
from memtopo import probe, target
from memtopo.cli.options import AsJson, MachineName
from memtopo.cli.signals import Interrupted, Stopper
from memtopo.cli.writing import save
from memtopo.driver.types import DriverError
from memtopo.errors import MemtopoError
from memtopo.facts import anonymous
from memtopo.machine import Machine
from memtopo.render import plain
from memtopo.target import Target

Output = Annotated[
    str | None,
    typer.Option("--output", "-o", envvar="MEMTOPO_OUTPUT", metavar="FILE", help="Record the machine in a file."),
]
Identify = Annotated[
    bool,
    typer.Option("--identify", envvar="MEMTOPO_IDENTIFY", help="Keep UUIDs, bus ids and the host's name."),
]


class Stays(MemtopoError):
    """A trial left something behind."""

    exit_code = 5


def command(
    machine: MachineName = "local",
    output: Output = None,
    identify: Identify = False,
    as_json: AsJson = False,
) -> int:
    """Read the machine's facts and try what it advertises.

    A trial creates one granule and releases it. What is recorded with -o is a machine for --machine.
    """
    facts = _tried(found := target.resolve(machine))
    kept = facts if identify else anonymous(facts)
    if output is not None:
        save(output, machines.dump(kept))
    if as_json:
        plain.print_lines(machines.dump(kept).splitlines())
    else:
        from memtopo.render import probe as rendering  # rich is slow to import
        from memtopo.render import terminal

        terminal.show(rendering.probe_text(kept, found.name, simulated=found.simulated))
    return 0


def _tried(found: Target) -> Machine:
    now = datetime.now(UTC).strftime("%Y-%m-%d") if not found.simulated else found.machine.recorded
    with Stopper(ending=True) as stopper:
        try:
            facts = probe.probe(found.open(), found.machine, recorded=now)
        except DriverError as error:
            raise Stays(f"memory of a trial could not be released: {error.message}") from error
    if stopper.signal():
        raise Interrupted(stopper.signal())
    return facts
