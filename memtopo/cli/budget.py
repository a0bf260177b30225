"""`memtopo budget`: the memory of several layouts that share a machine."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Annotated

from memtopo.cli import options
from memtopo.cli.options import AsJson, At, MachineNames, Set, Settings, argument, one_target, option, settings
from memtopo.cli.results import of_memtopo, pages, show
from memtopo.common.errors import Exit, UsageError
from memtopo.common.units import by_key, parse_size, parsed
from memtopo.diagnostics.messages import merged_by_gpu
from memtopo.diagnostics.model import Diagnostic
from memtopo.driver.trace_files import is_record
from memtopo.language import Document
from memtopo.output import diagnostics, formats, plain
from memtopo.output.formats import format_named
from memtopo.output.validation import merged
from memtopo.rules.files import Checked, CheckedFile, Result, collect, read
from memtopo.session import saved
from memtopo.session.budget import budget, errors
from memtopo.session.composition import Composition
from memtopo.session.machines import with_needed_trials

_SPECS = "Specs, saved plans or records, one for each layout; can be repeated. - reads standard input."
_CONTEXT = "Memory of the context, with workspaces, of each process on each of its GPUs."
_ELASTIC = "Count elastic memory as its max, the worst case, or as its min, with the rest shared."
_FORMAT = "text, or the errors as concise, json, sarif, junit, github, gitlab or markdown."
Form = Annotated[
    str | None, options.format_option(_FORMAT, formats.FORMATS, "MEMTOPO_BUDGET_FORMAT", show_default="text")
]


def budget_command(
    specs: Annotated[list[str], argument("SPEC", _SPECS)],
    machine: MachineNames = None,
    given: Set = None,
    context: Annotated[str, option("--context", _CONTEXT, "SIZE")] = "512MiB",
    elastic: Annotated[str, option("--elastic", _ELASTIC, "max|min")] = "max",
    at: At = None,
    form: Form = None,
    as_json: AsJson = False,
) -> int:
    """Show whether layouts fit on a machine together.

    That is the memory of each in each of its states, which of these fit together, and what their switches need.
    The exit status is 1 if not all of them can be awake at once.
    """
    stdout = options.stdout_format(form, formats.FORMATS, as_json=as_json, hint="--json prints the whole budget")
    written, size = format_named(stdout or "text"), parsed(parse_size, context, "--context")
    if size.in_granules:
        raise UsageError(f"--context {context!r} is in granules", hint="write --context 512MiB")
    if elastic not in ("max", "min"):
        raise UsageError(f"elastic memory counts as its max or its min, not {elastic!r}", hint="write --elastic min")
    target = one_target(machine)
    if target.nodes:
        raise UsageError("a budget covers one machine", hint="name one: --machine h200x4")
    documents = _documents(specs, settings(given, at))
    compositions = [Composition.of(each, with_needed_trials(target, each)) for each in documents]
    checked = _checked(compositions)
    if not all(each.valid for each in compositions):
        return _print(checked, written)
    if several := next((each for each in compositions if each.geometry.nodes), None):
        raise UsageError(f"the processes of {several.document.name!r} are on nodes, but a budget covers one machine")
    found = budget(compositions, size.amount, least=elastic == "min")
    lacks = by_key((name, diagnostic) for name, diagnostic in errors(found))
    checked = _checked(compositions, [merged_by_gpu(lacks.get(each.name, ())) for each in found.layouts])
    if written not in ("text", "json"):
        return _print(checked, written)
    if written == "text":
        _print_diagnostics(checked)
    show(found, lambda: pages("budget").page(found), as_json=written == "json", marker="budget")
    return Exit.OK if found.fits else Exit.INVALID


def _documents(specs: Sequence[str], given: Settings) -> Iterator[Document]:
    """Read specs, and those of saved plans and records.

    A value is of the specs that declare its parameter; a saved plan has the values with which it was made.
    """
    found: list[Document] = []
    for spec in specs:
        if is_record(spec):
            from memtopo.records.spec import document

            found.append(document(spec, given.at))
        else:
            found += [saved.spec_in(each) if of_memtopo(each) else each for each in map(read, collect([spec]))]
    specs_of_files = [each for each in found if not each.plan]
    if found and not specs_of_files:
        given.refuse_for_plan(specs[0])
    declared = {name for each in specs_of_files for name in each.declared}
    for each in found:
        if each.plan:
            yield each
            continue
        own = {name: value for name, value in given.typed.items() if name in each.declared or name not in declared}
        yield given._replace(typed=own).applied(each)


def _checked(compositions: Sequence[Composition], more: Sequence[Sequence[Diagnostic]] = ()) -> Checked:
    """Results of validation, each text of a file once, with `more` diagnostics of each layout."""
    name = compositions[0].target.name
    found: dict[tuple[str, str], tuple[Composition, dict[Diagnostic, None]]] = {}
    for index, each in enumerate(compositions):
        reported = dict.fromkeys(each.diagnostics)
        text = each.document.name, each.document.text  # a saved plan may have an earlier one
        known = found.setdefault(text, (each, reported))[1]
        known |= reported | dict.fromkeys(more[index] if more else ())
    files = []
    for each, known in found.values():
        # An error that a comment ignores is reported here.
        ignored = sum(diagnostic.severity == "warning" for diagnostic in each.validated.ignored)
        files.append(CheckedFile(each.document, (Result(each.document, name, tuple(known), ignored),)))
    return Checked((name,), tuple(files))


def _print(checked: Checked, form: formats.Format) -> int:
    """Print results in a format, and return the exit status."""
    stdout = sys.stdout
    lines = formats.formatted(form, checked, width=plain.width(stdout), colour=plain.colour(stdout))
    plain.print_document(lines)
    return Exit.OK if checked.ok else Exit.INVALID


def _print_diagnostics(checked: Checked) -> None:
    """Print diagnostics with their source lines: they are results of a budget."""
    width, colour = plain.width(sys.stdout), plain.colour(sys.stdout)
    for file in checked.files:
        if found := merged(file):
            plain.print_lines(diagnostics.text(found, file.document, width=width, colour=colour), styled=True)
