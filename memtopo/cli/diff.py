"""`memtopo diff`: how a spec differs from another one, from a held layout or from a record."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from memtopo.cli import options
from memtopo.cli.held import connect_to
from memtopo.cli.options import AsJson, At, MachineNames, Set, argument, option, settings
from memtopo.cli.plan import differences
from memtopo.cli.results import pages, show
from memtopo.cli.specs import load, loaded_on, print_diagnostics, valid
from memtopo.common.errors import Exit, UsageError
from memtopo.driver.trace_files import is_record
from memtopo.drivers.target import recorded
from memtopo.language.names import NAME
from memtopo.output.diagram.build import build_diagram
from memtopo.rules.validation import diagnose_processes
from memtopo.session.composition import Composition
from memtopo.sharing.errors import ExchangeError
from memtopo.sharing.held import held_source

_HELD = "A spec, or the name of a held layout."
Before = Annotated[str, argument("BEFORE", _HELD)]
SpecOrRecord = Annotated[str, argument("AFTER", "The spec to change to, or a record.")]
_WITHIN = "With a record: share of its bytes by which memory of one kind at one location may differ."
Within = Annotated[str, option("--within", _WITHIN, "SHARE")]


def _diff_record(loaded: Composition, record: str, at: str | None, within: str, *, as_json: bool) -> int:
    """Show how the memory in a record differs from a spec."""
    from memtopo.records.comparison import compare
    from memtopo.records.record import PEAK, moment, read_record

    try:
        share = float(within.removesuffix("%")) / 100 if within.endswith("%") else float("nan")
    except ValueError:
        share = float("nan")
    if not 0 <= share <= 1:
        raise UsageError(f"--within {within!r} is no share", hint="write --within 5%")
    recorded = moment(read_record([record]), at or PEAK)
    found = compare(loaded.document, loaded.plan, loaded.geometry, recorded, record, share)
    show(found, lambda: pages("records").comparison_page(found), as_json=as_json, marker="comparison")
    return Exit.INVALID if found.differences else Exit.OK


def _loaded(
    before: str, after: str, machine: list[str] | None, given: options.Settings
) -> tuple[Composition, Composition]:
    """Both specs on one machine: that of the held layout, if the first one names one. Raises `MemtopoError`."""
    if before == "-" or Path(before).exists() or not NAME.fullmatch(before):
        first = load(before, machine, given, dry=True)
        return first, load(after, machine, given, on=first.target)
    with connect_to(before, None, ()) as client:
        line, source = client.status().machine, held_source(client)
    if source is None:
        raise ExchangeError("source", f"layout {before!r} does not send its spec", hint="compare two files")
    document, record = source
    found = recorded(line.name, record)
    held = valid(Composition.of(replace(document, name=before), found, before))
    return held, loaded_on(found, given.read(after), after)


def diff_command(
    before: Before,
    after: SpecOrRecord,
    machine: MachineNames = None,
    given: Set = None,
    at: At = None,
    within: Within = "0%",
    as_json: AsJson = False,
) -> int:
    """Show how a spec differs from another one, or from a record.

    Addresses, handles and bytes of what both have stay. The exit status is 1 if anything differs.
    """
    if is_record(after):
        return _diff_record(load(before, machine, settings(given), dry=True), after, at, within, as_json=as_json)
    both = _loaded(before, after, machine, settings(given))
    valid(both[1].with_errors(diagnose_processes(both[0].geometry, both[1].geometry)))
    for loaded in both:
        print_diagnostics(loaded)
    target = both[0].target
    found = differences(*both, both[0].document.file)
    if not found.empty:
        pictures = [build_diagram(each.geometry, target.machines) for each in both]
        found = replace(found, picture_before=pictures[0], picture_after=pictures[1])
    show(found, lambda: pages("plan").difference(found, target.line), as_json=as_json, marker="difference")
    return Exit.OK if found.empty else Exit.INVALID
