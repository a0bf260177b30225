"""`memtopo machines`: list the recorded machines that come with memtopo, or show one."""

from __future__ import annotations

from typing import Annotated

import typer

from memtopo import machine as machines
from memtopo.cli import candidates
from memtopo.cli.options import AsJson
from memtopo.common.errors import UsageError
from memtopo.machine import Machine
from memtopo.output import json, plain

Name = Annotated[
    str | None,
    typer.Argument(
        metavar="NAME|FILE",
        help="Show only this machine.",
        show_default=False,
        autocompletion=candidates.recorded_machines,
    ),
]


def machines_command(name: Name = None, as_json: AsJson = False) -> int:
    """List the recorded machines, or show one."""
    if name is None:
        _list({each: machines.load(each) for each in machines.shipped()}, as_json=as_json)
        return 0
    if name == "local":
        raise UsageError("local is not a recorded machine", hint="'memtopo probe' shows this computer")
    machine = machines.load(name)
    if as_json:
        plain.print_document(machines.dump(machine).splitlines())
    else:
        from memtopo.output import console, probe

        console.show(probe.machine_page(machine, name))
    return 0


def _list(known: dict[str, Machine], *, as_json: bool) -> None:
    if as_json:
        plain.print_document(json.dumps(known).splitlines())
        return
    from memtopo.output import console
    from memtopo.output.blocks import Table, columns

    heads = columns("machine", "GPUs", "driver", "recorded")
    console.show(Table(heads, [_row(*item) for item in known.items()]))


def _row(name: str, machine: Machine) -> tuple[str, ...]:
    from memtopo.output import humanize

    devices = humanize.devices(device.name for device in machine.devices)
    return name, devices, machine.driver.name, machine.recorded or "not known"
