"""`memtopo machines`: the recorded machines that come with memtopo, and what one of them is."""

from __future__ import annotations

from typing import Annotated

import typer

from memtopo import machine as machines
from memtopo.cli.options import AsJson
from memtopo.machine import Machine
from memtopo.render import json, plain

Name = Annotated[str | None, typer.Argument(metavar="[NAME|FILE]", help="Show this one whole.", show_default=False)]


def command(name: Name = None, as_json: AsJson = False) -> int:
    """List the recorded machines, or show one."""
    if name is None:
        known = {each: machines.load(each) for each in machines.shipped()}
        plain.print_lines(json.dumps(known).splitlines() if as_json else [_line(*item) for item in known.items()])
        return 0
    facts = machines.load(name)
    if as_json:
        plain.print_lines(machines.dump(facts).splitlines())
    else:
        from memtopo.render import probe, terminal  # rich is slow to import

        terminal.show(probe.probe_text(facts, name, simulated=True))
    return 0


def _line(name: str, facts: Machine) -> str:
    gpus = f"{len(facts.devices)} × {facts.devices[0].name}" if facts.devices else "no GPU"
    return f"{name:<10} {gpus:<30} driver {facts.driver.release or facts.driver.cuda:<14} recorded {facts.recorded}"
