"""`memtopo diff`: how a spec differs from another one, from a held layout or from a record."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import Struct
from msgspec.structs import replace

from memtopo.cli import options
from memtopo.cli.held import connect_to
from memtopo.cli.options import AllowUid, AsJson, At, MachineNames, Set, argument, option, settings
from memtopo.cli.plan import differences, save_plan, saved_plan
from memtopo.cli.process import RefusedSpec
from memtopo.cli.results import pages, show
from memtopo.cli.specs import load, loaded_on, print_diagnostics, valid
from memtopo.common.errors import ExchangeError, Exit, UsageError
from memtopo.common.text import first_of, plural
from memtopo.driver.trace_files import is_record
from memtopo.drivers.target import recorded
from memtopo.language import read_file
from memtopo.language.names import NAME
from memtopo.machine import MachineLine
from memtopo.output import plain
from memtopo.output.diagram.build import build_diagram
from memtopo.output.validation import STDIN
from memtopo.plans.report import PlanDifference
from memtopo.rules import diagnose_processes
from memtopo.session.composition import Composition, InvalidOnMachine
from memtopo.session.saved import UnreadablePlan, is_saved
from memtopo.sharing.held import held_source

if TYPE_CHECKING:
    from memtopo.output.blocks import Page

_HELD = "A spec, or the name of a held layout; without AFTER, a saved plan or a folder of saved plans."
_AFTER = "The spec to change to, or a record; for a saved plan, by default the file from which it was made."
Summary = Annotated[bool, option("--summary", "Print the change of memory, and the entries that differ, alone.")]
_ACCEPT = "Save each plan that differs anew, with its own machine and settings."
_FORMATS = ("text", "json", "markdown")
_FORMAT = "text, json, or markdown: the summary with both pictures, for a comment."
_WITHIN = "With a record: percentage of its bytes by which memory of one kind at one location can differ."


class _Refused(Struct, frozen=True):
    """A saved plan that is not compared, and its first error or that of its spec."""

    plan: str
    error: str

    def page(self) -> Page:
        """Return the page that replaces that of the difference."""
        found: Page = pages("plan").refused(self.plan, self.error)
        return found


_Found = tuple[PlanDifference, MachineLine] | _Refused


def _diff_record(loaded: Composition, record: str, at: str | None, within: str, *, as_json: bool) -> int:
    """Show how the memory in a record differs from a spec."""
    from memtopo.records import moment_of
    from memtopo.records.comparison import compare

    try:
        share = float(within.removesuffix("%")) / 100 if within.endswith("%") else float("nan")
    except ValueError:
        share = float("nan")
    if not 0 <= share <= 1:
        raise UsageError(f"--within {within!r} is not a share", hint="write --within 5%")
    found = compare(loaded.document, loaded.plan, loaded.geometry, moment_of(record, at), record, share)
    show(found, lambda: pages("calls").comparison_page(found), as_json=as_json, marker="comparison")
    return Exit.INVALID if found.differences else Exit.OK


def _loaded(
    before: str,
    after: str,
    machine: list[str] | None,
    given: options.Settings,
    socket: str | None,
    allow_uids: Sequence[int],
) -> tuple[Composition, Composition]:
    """Both specs on one machine: that of the held layout, if the first one names one, and then what is held of both.

    Raises `MemtopoError`.
    """
    if before == "-" or Path(before).exists() or not NAME.fullmatch(before):
        first = load(before, machine, given, dry=True)
        return first, load(after, machine, given, on=first.target)
    with connect_to(before, socket, allow_uids) as client:
        line, source = client.status().machine, held_source(client)
    if source is None:
        raise ExchangeError("source", f"layout {before!r} does not send its spec", hint="compare two files")
    document, record = source
    found = recorded(line.name, record)
    held = valid(Composition.of(replace(document, name=before), found, before))
    return held.held_part, loaded_on(found, given.read(after), after).held_part


def diff_command(
    ctx: typer.Context,
    before: Annotated[str, argument("BEFORE", _HELD)],
    after: Annotated[str | None, argument("[AFTER]", _AFTER)] = None,
    machine: MachineNames = None,
    given: Set = None,
    socket: options.Socket = None,
    allow_uid: AllowUid = None,
    at: At = None,
    within: Annotated[str, option("--within", _WITHIN, "SHARE")] = "0%",
    summary: Summary = False,
    accept: Annotated[bool, option("--accept", _ACCEPT, variable="MEMTOPO_DIFF_ACCEPT")] = False,
    form: Annotated[str | None, options.format_option(_FORMAT, _FORMATS, "MEMTOPO_DIFF_FORMAT")] = None,
    every: options.Every = False,
    as_json: AsJson = False,
) -> int:
    """Show how a spec differs from another one, or from a record.

    Addresses, handles and bytes of what both have stay. The exit status is 1 if anything differs that is not accepted.
    """
    form = options.stdout_format(form, _FORMATS, as_json=as_json, hint="omit one of them") or "text"
    source = ctx.get_parameter_source("machine")
    # A job sets the variable for all commands.
    typed = machine if source is not None and source.name == "COMMANDLINE" else None
    if accept and (after is not None or typed):
        message = "--accept saves plans anew with their own specs and machines"
        raise UsageError(message, hint="omit AFTER and --machine, or use 'memtopo plan SPEC -o FILE'")
    if after is not None and is_record(after):
        if summary or form == "markdown":
            raise UsageError("a summary is of two specs, and not of a record", hint="omit --summary and --format")
        loaded = load(before, machine, settings(given), dry=True)
        return _diff_record(loaded, after, at, within, as_json=form == "json")
    if after is not None:
        found: list[_Found] = [_difference(*_loaded(before, after, machine, settings(given), socket, allow_uid or ()))]
    else:
        found = _of_plans(before, typed, settings(given), form, accept=accept)
    _print(found, form, summary=summary, every=every)
    refused = any(isinstance(each, _Refused) for each in found)
    return Exit.INVALID if refused or not (accept or all(map(_is_equal, found))) else Exit.OK


def _is_equal(found: _Found) -> bool:
    return not isinstance(found, _Refused) and found[0].empty


def _print(found: Sequence[_Found], form: str, *, summary: bool, every: bool) -> None:
    """Print differences in a format."""
    if form == "markdown":
        plain.print_lines(_comment(found, pictures=not summary))
        return
    page = pages("plan").in_short if summary else partial(pages("plan").difference, every=every)
    for number, each in enumerate(found):
        plain.print_lines([""] * bool(number))
        if isinstance(each, _Refused):
            show(each, each.page, as_json=False)
        else:
            show(each[0], partial(page, *each), as_json=form == "json", marker="difference")


_LISTED = 5
"""Number of files that a message lists."""


def _plans_in(name: str) -> list[str]:
    """Saved plans in a folder and below it, sorted; a plan stands for itself. Raises `UsageError` if there is none.

    Files of JSON that are none are named on stderr.
    """
    folder = Path(name).is_dir()
    files = sorted(map(str, Path(name).rglob("*.json"))) if folder else [name]
    found = [file for file in files if is_saved(file)]
    if not found and folder:
        raise UsageError(f"folder {name!r} contains no saved plan", hint="save one: memtopo plan SPEC -o FILE")
    if not found and not Path(name).exists():
        raise UsageError(f"{name!r} does not exist", hint="name a saved plan, or a folder of saved plans")
    if not found:
        raise UsageError(f"{name!r} is not a saved plan", hint="name a second spec: memtopo diff BEFORE AFTER")
    if others := sorted({*files} - {*found}):
        what = f"{plural(len(others), 'file')} without a saved plan {'is' if len(others) == 1 else 'are'} not compared"
        plain.print_message(f"{what}: {first_of(others, _LISTED)}")
    return found


class _Elsewhere(UsageError):
    """A saved plan was made of a file outside of the current folder, or of none."""


def _since(plan: str, machine: list[str] | None) -> tuple[Composition, Composition]:
    """The spec in a saved plan, and the file that it was made of, on one machine and with the settings of the plan.

    Raises `_Elsewhere` for a file outside of the current folder: a plan of others may name any.
    """
    first = load(plan, machine, settings(None), dry=True)
    name = first.document.name
    if name == STDIN:
        raise _Elsewhere(f"the plan {plan!r} was made from standard input", hint="compare them: memtopo diff PLAN SPEC")
    if not Path(name).resolve().is_relative_to(Path.cwd().resolve()):  # diagnostics quote what is read
        hint = "compare them: memtopo diff PLAN SPEC"
        raise _Elsewhere(f"the spec of {plan!r} is outside the current folder: {name!r}", hint=hint)
    return first, loaded_on(first.target, read_file(name, settings=first.document.settings), name)


def _of_plans(
    name: str, machine: list[str] | None, given: options.Settings, form: str, *, accept: bool
) -> list[_Found]:
    """Differences of a saved plan, or of all in a folder, from their specs. In JSON, there is one, and no refusal."""
    if form == "json" and Path(name).is_dir():
        raise UsageError("a folder of plans has no JSON", hint="name one of the plans")
    given.refuse_for_plan(name)
    return [_of_plan(plan, machine, accept=accept, refuse=form == "json") for plan in _plans_in(name)]


def _of_plan(plan: str, machine: list[str] | None, *, accept: bool, refuse: bool) -> _Found:
    """Difference of a saved plan from its spec, and its machine. If one is accepted, the plan is saved anew.

    The errors of one that is refused are printed, and the first is returned, or raised with `refuse`.
    """
    try:
        before, after = _since(plan, machine)
        other_processes = accept and any(diagnose_processes(before.geometry, after.geometry))
        found, line = _difference(after if other_processes else before, after)
    except RefusedSpec as error:
        if refuse:
            raise
        print_diagnostics(error.composition)
        return _Refused(plan, InvalidOnMachine(error.composition).message)
    except (UnreadablePlan, _Elsewhere) as error:
        if refuse:
            raise
        plain.print_error(error)
        return _Refused(plan, error.message)
    if accept and before.saved and (other_processes or not found.empty):
        kept = before.saved
        save_plan(plan, replace(saved_plan(after), machine=kept.machine, facts=kept.facts, nodes=kept.nodes))
    if other_processes:
        plain.print_message(f"{plan}: saved anew, because the spec has other processes than the plan")
    return found, line


def _difference(before: Composition, after: Composition) -> tuple[PlanDifference, MachineLine]:
    """Difference of two specs on a machine, with pictures of both if there is one. Raises `RefusedSpec`."""
    valid(after.with_errors(diagnose_processes(before.geometry, after.geometry)))
    print_diagnostics(before)
    print_diagnostics(after)
    target = before.target
    found = differences(before, after, before.document.file)
    if not found.empty:
        pictures = [build_diagram(each.geometry, target.machines) for each in (before, after)]
        found = replace(found, picture_before=pictures[0], picture_after=pictures[1])
    return found, target.line


_WITH_PICTURES, _LONGEST = 40_000, 60_000
"""Characters of Markdown with pictures, and of all; a comment may have 65,536."""


def _comment(found: Sequence[_Found], *, pictures: bool) -> list[str]:
    """Lines of Markdown: a summary of each difference, with pictures as long as there is room for them.

    Refused plans are first, so that at least one of them is shown. If all are equal, there is only one line.
    """
    if all(map(_is_equal, found)):
        return ["nothing differs"]
    text = ""
    ordered = sorted(found, key=lambda each: not isinstance(each, _Refused))
    for number, each in enumerate(ordered):
        whole, short = (_markdown(each, pictures=shown) for shown in (pictures, False))
        added = whole if len(text + whole) < _WITH_PICTURES else short
        if len(text + added) > _LONGEST:
            return [*text.splitlines(), f"{len(found) - number:,} more are not shown."]
        text += f"{added}\n\n"
    return text.removesuffix("\n").splitlines()


def _markdown(found: _Found, *, pictures: bool) -> str:
    if isinstance(found, _Refused):
        page = found.page()
    else:
        page = pages("plan").in_short(*found, pictures=pictures)
        page = replace(page, facts=[page.where])
    return "\n".join(pages("ci").page_lines(page))
