"""`memtopo diff`: what a change from one spec to another undoes, does and keeps. Exit 1 if anything differs."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from memtopo import planner
from memtopo.cli.held import connect_to
from memtopo.cli.options import AsJson, MachineNames
from memtopo.cli.settings import Set, Settings, settings
from memtopo.cli.specs import Loaded, load, loaded_on
from memtopo.drivers.target import recorded
from memtopo.language.names import NAME
from memtopo.output import json, plain
from memtopo.output.diagram.build import build_diagram
from memtopo.plans.difference import difference
from memtopo.rules.change import diagnose_processes
from memtopo.rules.validation import validate
from memtopo.sharing.errors import ExchangeError
from memtopo.sharing.sources import held_source

Before = Annotated[
    str, typer.Argument(metavar="BEFORE", help="A spec, or the name of a held layout.", show_default=False)
]
After = Annotated[str, typer.Argument(metavar="AFTER", help="The spec to change to.", show_default=False)]

DIFFERENT = 1


def _loaded(before: str, after: str, machine: list[str] | None, given: Settings) -> tuple[Loaded, Loaded]:
    """Both specs on one machine: that of the held layout, if the first one names one. Raises `MemtopoError`."""
    if before == "-" or Path(before).exists() or not NAME.fullmatch(before):
        return load(before, machine, given), load(after, machine, given)
    with connect_to(before, None, ()) as client:
        line, source = client.status().machine, held_source(client)
    if source is None:
        raise ExchangeError("source", f"layout {before!r} does not send its spec", hint="compare two files")
    document, record = source
    found = recorded(line.name, record)
    return Loaded(validate(replace(document, name=before), record), found, before), loaded_on(found, after, given)


def diff_command(
    before: Before, after: After, machine: MachineNames = None, given: Set = None, as_json: AsJson = False
) -> int:
    """Show what a change from one spec to another would do.

    Addresses, handles and bytes of what both have stay. The exit status is 1 if anything differs.
    """
    both = _loaded(before, after, machine, settings(given))
    for loaded in both:
        if loaded.validated.geometry is None:
            return loaded.refuse(as_json=as_json)
    geometries = [loaded.validated.geometry for loaded in both if loaded.validated.geometry]
    both = both[0], both[1].with_errors(diagnose_processes(geometries[0], geometries[1]))
    if both[1].validated.geometry is None:
        return both[1].refuse(as_json=as_json)
    for loaded in both:
        loaded.print_diagnostics(sys.stderr)
    target = both[0].target
    steps = [planner.plan(geometry, target.machines).steps_by_process for geometry in geometries]
    names = both[0].document.name, both[1].document.name
    values = both[0].document.values, both[1].document.values
    found = difference(steps[0], steps[1], names, values, (geometries[0], geometries[1]))
    if not found.empty:
        pictures = [build_diagram(geometry, target.machines) for geometry in geometries]
        found = replace(found, picture_before=pictures[0], picture_after=pictures[1])
    if as_json:
        plain.print_document(json.dumps(json.marked("difference", found)).splitlines())
    else:
        from memtopo.output import console, plan

        console.show(plan.difference(found, target.line))
    return 0 if found.empty else DIFFERENT
