"""`memtopo validate`: validate specs on machines, and write reports. Needs no GPU for recorded machines."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path, PurePath
from typing import Annotated

from msgspec import Struct, field
from msgspec.structs import replace

from memtopo.cli import options
from memtopo.cli.options import Settings, settings
from memtopo.cli.results import append, of_memtopo, require_replaceable, write
from memtopo.common.errors import Exit, MemtopoError, NotWritten, Unavailable, UsageError
from memtopo.common.text import plural, printable
from memtopo.diagnostics.model import Diagnostic
from memtopo.drivers import target
from memtopo.drivers.target import Target
from memtopo.language import Document
from memtopo.machine import Machines
from memtopo.output import formats, plain
from memtopo.output.formats import Format, format_named
from memtopo.rules import NOT_CHECKED, Selection, files, selection
from memtopo.rules.files import NOTHING, Beside, Checked, CheckedFile, Correction, SpecPath, Variant, collect
from memtopo.session.machines import own_targets, with_needed_trials
from memtopo.spec import MACHINES


def _codes() -> options.Values:
    """Codes of diagnostics with their titles."""
    from memtopo.diagnostics import CODES, explanations

    return [(name, explanations.explanation(name).title) for name in CODES]


def _reports() -> options.Values:
    return [(f"{name}=", "a report in a file") for name in formats.FORMATS]


_SPECS = "Specs, folders, or quoted patterns such as 'layouts/**/*.yaml'; - reads standard input."
_FORMAT = "text, concise, json, sarif, junit, github, gitlab or markdown; in GitHub Actions text and github."
_REPORT = "A report in a file; can be repeated."
ReportFile = Annotated[list[str] | None, options.option("--report", _REPORT, "FORM=FILE", autocompletion=_reports)]
_SELECT = "Report only these: MT301, or MT3 for all."
Ignore = Annotated[list[str] | None, options.option("--ignore", "Do not report these.", "CODE", autocompletion=_codes)]


def validate_command(
    specs: Annotated[list[str], options.argument("SPEC", _SPECS)],
    machine: options.MachineNames = None,
    given: options.SetMany = None,
    form: Annotated[str | None, options.format_option(_FORMAT, formats.FORMATS, show_default="text")] = None,
    report: ReportFile = None,
    select: Annotated[list[str] | None, options.option("--select", _SELECT, "CODE", autocompletion=_codes)] = None,
    ignore: Ignore = None,
    strict: Annotated[bool, options.option("--strict", "Also exit with 1 for warnings.")] = False,
    fix: Annotated[bool, options.option("--fix", "Correct in place errors that have exactly one correction.")] = False,
    diff: Annotated[bool, options.option("--diff", "Print the changes of --fix without making them.")] = False,
    as_json: options.AsJson = False,
) -> int:
    """Report every error in specs, without building anything.

    With --machine none, what depends on a machine is not checked. With --diff, the exit status is 1 if there is a
    difference. Lists in variables are separated by spaces.
    """
    outputs = reports(form, report or (), as_json=as_json)
    if diff and (form or report or as_json):
        raise UsageError("--diff prints a difference, and no report", hint="omit --format, --report and --json")
    sources = outputs.sources(specs)
    with outputs.failures():
        validation = Validation(
            selection(select or (), ignore or ()),
            sources,
            _variants(settings(given)),
            _targets(machine) if machine else {},
        )
        if diff:
            return validation.print_differences()
        if fix:
            validation.fix()
        checked = validation.checked(strict=strict)
    outputs.write(checked)
    if target.NONE in validation.targets:
        _print_not_checked()
    return Exit.OK if checked.ok else Exit.INVALID


def _print_not_checked() -> None:
    """Print the subjects of rules that need a machine to stderr."""
    subjects = (f"{subject} ({' to '.join(codes)})" for subject, codes in NOT_CHECKED)
    plain.print_message(f"not checked without a machine, with everything that depends on it: {'; '.join(subjects)}")


class NoMachine(Unavailable):
    """A spec that names no machine, on a computer whose GPUs cannot be used; `diagnostic` is the error in its file."""

    def __init__(self, name: str, error: Unavailable) -> None:
        hint = "add 'machines: [h200x2]' to the spec, or use --machine h200x2"
        super().__init__(f"{name!r} names no machines, and {error.message}", hint=hint)
        message = f"the spec names no machines, and {error.message}"
        self.diagnostic = Diagnostic("MT205", message, help=hint)


def _resolver() -> Callable[[str], Target]:
    """Return a function that resolves each machine once, also one that cannot be used."""

    @cache
    def found(name: str) -> Target | Unavailable:
        try:
            return target.resolve(name)
        except Unavailable as error:
            return error

    def resolve(name: str) -> Target:
        if isinstance(each := found(name), Unavailable):
            raise each
        return each

    return resolve


_Targets = tuple[Mapping[str, Target | None], Sequence[Diagnostic]]
_NO_TARGET: Mapping[str, Target | None] = {target.NONE: None}


class Validation(Struct, frozen=True):
    """Files that are validated in all variants on all targets, or without any on those that each of them names.

    A target that is None is no machine.
    """

    chosen: Selection
    sources: Sequence[SpecPath]
    variants: Sequence[Variant]
    targets: Mapping[str, Target | None]
    resolve: Callable[[str], Target] = field(default_factory=_resolver)

    def checked(self, *, strict: bool) -> Checked:
        """Validate all files.

        A file that names no machines, where there is no GPU, has an error beside others. Raises `NoMachine` if there
        are no others.
        """
        documents = self._read()
        if len(documents) > 1:
            from memtopo.session.contracts import SpecSet

            beside: Beside = SpecSet(documents).diagnose
        else:
            beside = NOTHING
        return Checked.of((self._check(each, beside) for each in documents), strict=strict, variants=len(self.variants))

    def fix(self) -> None:
        """Correct files in place, and print the differences and the number of errors to stderr. Raises `NoMachine`."""
        self._read()
        for each in corrections(self.sources, self._check):
            write_correction(each)
            plain.print_lines(each.difference, sys.stderr)
            plain.print_message(f"{each.file}: corrected {plural(each.errors, 'error')}")

    def print_differences(self) -> int:
        """Print what `fix` would change to stdout, and return the exit status. Raises `NoMachine`."""
        self._read()
        found = [*corrections(self.sources, self._check)]
        for each in found:
            plain.print_lines(each.difference)
        return Exit.INVALID if found else Exit.OK

    def _read(self) -> Sequence[Document]:
        """Read all files. Raises `NoMachine` if none of them can be checked on a machine, which all require."""
        documents = [_read(each) for each in self.sources]  # all are read first: in turns, both take a tenth longer
        found = [self._targets_of(each) for each in documents]
        if found and isinstance(found[0], NoMachine) and all(isinstance(each, NoMachine) for each in found):
            raise found[0]
        return documents

    def _check(self, document: Document, beside: Beside = NOTHING) -> CheckedFile:
        on = self._targets_of(document)
        targets, wrong = (_NO_TARGET, [on.diagnostic]) if isinstance(on, NoMachine) else on

        def tried(name: str, variant: Document) -> Machines | None:
            found = targets[name]
            return with_needed_trials(found, variant).machines if found else None

        document = replace(document, diagnostics=(*document.diagnostics, *wrong))
        return files.check(document, targets, tried, self.chosen, self.variants, beside)

    def _targets_of(self, document: Document) -> _Targets | NoMachine:
        """Machines that a document names in any variant, by default this one, and errors of those that it names.

        No machine for a document without one that can be read, and an error if this one has no GPU.
        """
        if self.targets:
            return self.targets, []
        own, wrong = dict[str, Target | None](), dict[Diagnostic, None]()
        for variant in self.variants:
            found, unread = own_targets(variant.applied(document), self.resolve)
            own.update(found)
            wrong.update(dict.fromkeys(unread))
        if own or not document.root or MACHINES in document.root:
            return own or _NO_TARGET, [*wrong]
        try:
            return {target.LOCAL: self.resolve(target.LOCAL)}, []
        except Unavailable as error:
            return NoMachine(document.file, error)


def _variants(given: Settings) -> list[Variant]:
    """Each combination of settings, with the values that differ as its label."""
    each = given.combinations()
    named = [{**one.variables, **one.typed} for one in each]
    differing = [name for name in named[0] if len({one[name] for one in named}) > 1]
    labels = (" ".join(f"{name}={printable(one[name])}" for name in differing) for one in named)
    return [Variant(label, one.applied) for label, one in zip(labels, each, strict=True)]


def _read(each: SpecPath) -> Document:
    """Read a spec, or the spec in a saved plan."""
    document = files.read(each)
    if not of_memtopo(document):
        return document
    from memtopo.session import saved

    return saved.spec_in(document)


def _targets(given: list[str] | None) -> dict[str, Target | None]:
    """Targets by name: each machine by itself, and those of nodes together; None for `none`. Raises `MemtopoError`."""
    names = options.machine_names(given)
    nodes = [name for name in names if target.of_node(name)]
    found = {name: None if name == target.NONE else target.resolve(name) for name in names if name not in nodes}
    together = target.resolve_nodes(nodes) if nodes else None
    return found | ({together.name: together} if together else {})


class Reports(Struct, frozen=True):
    """The format for stdout, the format of each file, and `runner` if GitHub's runner reads stdout by default."""

    form: Format
    files: dict[str, Format]
    runner: bool = False

    def sources(self, specs: Iterable[str]) -> list[SpecPath]:
        """Return the files to validate.

        Raises as `collect`, and `UsageError` if a report would replace one of them, or another file that is no report.
        """
        for file, form in self.files.items():
            if not _is_summary(file, form):
                require_replaceable(file, formats.BEGINNINGS, "is no report")
        with self.failures():
            found = collect(specs)
        places = {os.path.realpath(each.name) for each in found}
        if replaced := next((file for file in self.files if os.path.realpath(file) in places), None):
            raise UsageError(f"report {replaced!r} would replace a spec", hint="name another file")
        return found

    def write(self, checked: Checked) -> None:
        """Write the results in every requested format. Raises `NotWritten` at the end if a file was not written."""
        self._write_files(lambda form: formats.formatted(form, checked))
        stdout = sys.stdout
        shown = formats.formatted(self.form, checked, width=plain.width(stdout), colour=plain.colour(stdout))
        plain.print_document([*shown, *(formats.formatted("github", checked) if self.runner else ())])

    @contextmanager
    def failures(self) -> Iterator[None]:
        """Write an error of the code inside into every file; `app` prints it on stdout."""
        try:
            yield
        except MemtopoError as error:
            failed = error  # for the lambda
            self._write_files(lambda form: formats.failure(form, failed))
            if self.runner:
                plain.print_document(formats.failure("github", error))
            raise

    def _write_files(self, lines: Callable[[Format], list[str]]) -> None:
        failed: MemtopoError | None = None
        for file, form in self.files.items():
            try:
                put = append if _is_summary(file, form) else write
                put(file, "".join(f"{line}\n" for line in lines(form)))
            except MemtopoError as error:
                failed = failed or error
        if failed:
            raise failed


def _is_summary(file: str, form: Format) -> bool:
    """Return true for a Markdown report in the summary of a job on GitHub, which may have other text."""
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    return form == "markdown" and summary is not None and os.path.realpath(file) == os.path.realpath(summary)


_BY_SUFFIX = {".json": "json", ".sarif": "sarif", ".xml": "junit", ".md": "markdown"}


def reports(form: str | None, requested: Iterable[str], *, as_json: bool) -> Reports:
    """The outputs of `--format`, `--report` and `--json`. Raises `UsageError`."""
    stdout = options.stdout_format(form, formats.FORMATS, as_json=as_json, hint="write --report FORM=FILE")
    files: dict[str, Format] = {}
    for word in requested:
        name, equals, file = word.partition("=")
        if not equals or file in ("", "-"):
            form = _BY_SUFFIX.get(PurePath(word).suffix)
            hint = f"write --report {form}={word}" if form else "write --report FORM=FILE, such as sarif=out.sarif"
            raise UsageError(f"report {word!r} names no file", hint=hint)
        if files.setdefault(file, format_named(name)) != name:
            raise UsageError(f"two reports go to {file!r}", hint="use a different file for each")
    if stdout is None:
        return Reports("text", files, runner=os.environ.get("GITHUB_ACTIONS") == "true")
    return Reports(format_named(stdout), files)


def corrections(sources: Iterable[SpecPath], check: Callable[[Document], CheckedFile]) -> Iterator[Correction]:
    """Yield the corrections of specs that have some. `check` validates a document on all machines.

    Raises `UsageError` for standard input. Saved plans have none.
    """
    for source in sources:
        document = files.read(source)
        if document.name == "<stdin>":
            raise UsageError("standard input cannot be corrected in place", hint="name a file")
        if not of_memtopo(document):
            done = files.corrected(document, check)
            if done.after != done.before:
                yield done


def write_correction(done: Correction) -> None:
    """Write a file, completely or not at all. Raises `NotWritten`, also if it has changed since it was read."""
    try:
        written = Path(done.file).read_bytes().decode()
    except (OSError, ValueError):
        written = ""
    if written.removeprefix("\ufeff") != done.before:
        raise NotWritten(f"{done.file!r} has changed while it was corrected", hint="correct it again")
    write(done.file, "\ufeff" * written.startswith("\ufeff") + done.after)
