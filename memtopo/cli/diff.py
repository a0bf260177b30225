"""`memtopo diff`: what a change from one spec to another undoes, does and keeps. Exit 1 if anything differs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from memtopo.cli.change import differences
from memtopo.cli.held import connect_to
from memtopo.cli.options import AsJson, MachineNames
from memtopo.cli.settings import Set, Settings, settings
from memtopo.cli.specs import load, loaded_on, print_diagnostics, valid
from memtopo.drivers.target import recorded
from memtopo.language.names import NAME
from memtopo.output import json, plain
from memtopo.output.diagram.build import build_diagram
from memtopo.rules.change import diagnose_processes
from memtopo.session.composition import Composition
from memtopo.sharing.errors import ExchangeError
from memtopo.sharing.sources import held_source

Before = Annotated[
    str, typer.Argument(metavar="BEFORE", help="A spec, or the name of a held layout.", show_default=False)
]
After = Annotated[str, typer.Argument(metavar="AFTER", help="The spec to change to.", show_default=False)]

DIFFERENT = 1


def _loaded(before: str, after: str, machine: list[str] | None, given: Settings) -> tuple[Composition, Composition]:
    """Both specs on one machine: that of the held layout, if the first one names one. Raises `MemtopoError`."""
    if before == "-" or Path(before).exists() or not NAME.fullmatch(before):
        return load(before, machine, given), load(after, machine, given)
    with connect_to(before, None, ()) as client:
        line, source = client.status().machine, held_source(client)
    if source is None:
        raise ExchangeError("source", f"layout {before!r} does not send its spec", hint="compare two files")
    document, record = source
    found = recorded(line.name, record)
    held = valid(Composition.of(replace(document, name=before), found, before))
    return held, loaded_on(found, given.read(after), after)


def diff_command(
    before: Before, after: After, machine: MachineNames = None, given: Set = None, as_json: AsJson = False
) -> int:
    """Show what a change from one spec to another would do.

    Addresses, handles and bytes of what both have stay. The exit status is 1 if anything differs.
    """
    both = _loaded(before, after, machine, settings(given))
    valid(both[1].with_errors(diagnose_processes(both[0].geometry, both[1].geometry)))
    for loaded in both:
        print_diagnostics(loaded)
    target = both[0].target
    found = differences(*both, both[0].document.name)
    if not found.empty:
        pictures = [build_diagram(each.geometry, target.machines) for each in both]
        found = replace(found, picture_before=pictures[0], picture_after=pictures[1])
    if as_json:
        plain.print_document(json.dumps(json.marked("difference", found)).splitlines())
    else:
        from memtopo.output import console
        from memtopo.output import difference as page

        console.show(page.renderable(found, target.line))
    return 0 if found.empty else DIFFERENT
