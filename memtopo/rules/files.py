"""Spec files of a command line, the results of each on every machine, and corrections of the text."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from difflib import unified_diff
from functools import partial
from itertools import islice, product

from msgspec import Struct

from memtopo import language
from memtopo.common.errors import Unavailable, UsageError
from memtopo.diagnostics import Severity
from memtopo.diagnostics.model import Diagnostic, Edit, Path, TextSpan
from memtopo.geometry import Geometry
from memtopo.language import Document, read_text
from memtopo.language.located import Replacement, edited, replacements
from memtopo.machine import Machines
from memtopo.machine.drafts import untried, watched
from memtopo.rules import Selection, Validated, validate, validate_without_machine


class Result(Struct, frozen=True):
    """One file on one machine: the reported diagnostics, and the number of diagnostics that comments ignore.

    If several variants of each file were validated, `machine` names the variant, too: `h200x2 with pages=100`.
    """

    document: Document
    machine: str
    diagnostics: tuple[Diagnostic, ...]
    ignored: int = 0
    untried: tuple[str, ...] | None = None
    """Features that the file uses and nobody tried on an estimated machine; None for a probed one."""

    def count(self, severity: Severity) -> int:
        """Number of diagnostics of a severity."""
        return sum(each.severity == severity for each in self.diagnostics)


class SharedDiagnostic(Struct, frozen=True):
    """One diagnostic and the machines on which it was found; `only` repeats them if they are not all machines."""

    diagnostic: Diagnostic
    machines: tuple[str, ...]
    only: tuple[str, ...] = ()


class CheckedFile(Struct, frozen=True):
    """One file with its results on all machines."""

    document: Document
    results: tuple[Result, ...]

    def diagnostics(self) -> list[SharedDiagnostic]:
        """Each diagnostic once, in the order in which it was first found."""
        found: dict[object, dict[str, Diagnostic]] = {}
        for result in self.results:
            for each in result.diagnostics:
                # Notes and help may depend on the machine.
                same = each if len(self.results) == 1 else each._replace(notes=(), help=None)
                found.setdefault(same, {})[result.machine] = each
        return [_shared(each, all=len(each) == len(self.results)) for each in found.values()]

    def count(self, severity: Severity) -> int:
        """Number of different diagnostics of a severity."""
        return sum(each.diagnostic.severity == severity for each in self.diagnostics())


class Checked(Struct, frozen=True):
    """Results of all files, in their order, each on its machines; if `strict`, warnings are failures.

    `variants` is the number of combinations of settings; `machines` has each machine with each of them.
    """

    machines: tuple[str, ...]
    files: tuple[CheckedFile, ...]
    strict: bool = False
    variants: int = 1

    @classmethod
    def of(cls, files: Iterable[CheckedFile], *, strict: bool = False, variants: int = 1) -> Checked:
        """Return the results of files on all machines that one of them has, in the order in which they have them."""
        found = tuple(files)
        machines = dict.fromkeys(result.machine for file in found for result in file.results)
        return cls(tuple(machines), found, strict, variants)

    @property
    def results(self) -> Iterator[Result]:
        return (result for file in self.files for result in file.results)

    def failed(self, checked: Result | CheckedFile) -> bool:
        """Return true if a result, or any result of a file, is a failure."""
        return bool(checked.count("error") or (self.strict and checked.count("warning")))

    @property
    def ok(self) -> bool:
        return not any(self.failed(result) for result in self.results)


def _shared(found: dict[str, Diagnostic], *, all: bool) -> SharedDiagnostic:
    """Diagnostic of several machines; notes and help that only some of them have get the machines' names."""
    machines = tuple(found)
    first, *others = found.values()
    help = first.help if {each.help for each in others} <= {first.help} else None
    texts = [(note, machine) for machine, each in found.items() for note in each.notes]
    texts += [(each.help, machine) for machine, each in found.items() if each.help and not help]
    having: dict[str, dict[str, None]] = {}
    for text, machine in texts:
        having.setdefault(text, {})[machine] = None
    notes = (text if len(on) == len(found) else f"on {', '.join(on)}: {text}" for text, on in having.items())
    first = first._replace(notes=tuple(notes), help=help)
    return SharedDiagnostic(first, machines, () if all else machines)


def read(each: SpecPath) -> Document:
    """Read a file or standard input; errors are diagnostics of the document."""
    if each.name == STDIN:
        return language.read_stdin()
    if each.outside:
        message = f"it is a link to a file outside of {each.folder!r}, and is not read"
        return Document(each.name, diagnostics=(Diagnostic("MT001", message, help="name the file itself"),))
    return language.read_file(each.name, patience=each.patience)


class Variant(Struct, frozen=True, eq=False):
    """Settings with which files are validated; `label` names them where there are several variants."""

    label: str = ""
    applied: Callable[[Document], Document] = lambda document: document

    def on(self, machine: str) -> str:
        """Name of the variant on a machine."""
        return f"{machine} with {self.label}" if self.label else machine


Beside = Callable[[Document, Machines, Variant, str, Geometry], Iterable[Diagnostic]]
"""Diagnostics of a document beside those of rules, on machines with a name, from the geometry there."""

NOTHING: Beside = lambda *_: ()  # noqa: E731 a name for the default


def check(
    document: Document,
    machines: Collection[str],
    machine_for: Callable[[str, Document], Machines | None],
    chosen: Selection | None = None,
    variants: Sequence[Variant] = (Variant(),),
    beside: Beside = NOTHING,
) -> CheckedFile:
    """Validate every variant of a document against every machine. One that cannot be read has a result, too.

    `machine_for` returns the machine of a name for one document, with the trials that it needs. A machine that is None
    is not known, and what depends on it is not checked. `beside` yields diagnostics beside those of rules.
    Errors that comments in a file ignore are not reported; a comment is unused only if it is unused on all machines.
    """
    chosen = chosen or Selection()
    documents = {variant: variant.applied(document) for variant in variants}
    found: dict[str, Validated] = {}
    estimated: dict[str, tuple[str, ...] | None] = {}
    for name, variant in product(machines, variants):
        machine = machine_for(name, each := documents[variant])
        case = variant.on(name)
        if machine is None:
            found[case] = validate_without_machine(each)
        else:
            machine = watched(machine)
            more = partial(beside, each, machine, variant, case)
            found[case] = validate(each, machine, more=more)
            estimated[case] = untried(machine)
    used = frozenset[TextSpan]().union(*(validated.used for validated in found.values()))
    results = tuple(
        Result(each.document, case, _reported(each, used, chosen), len(each.ignored), estimated.get(case))
        for case, each in found.items()
    )
    return CheckedFile(results[0].document, results)


def _reported(validated: Validated, used: frozenset[TextSpan], chosen: Selection) -> tuple[Diagnostic, ...]:
    ignored = frozenset(validated.ignored)
    reported = (each for each in validated.diagnostics if chosen.includes(each.code) and each not in ignored)
    return tuple(each for each in reported if not (each.code == "MT505" and each.span in used))


_ROUNDS = 10
"""Rounds of corrections: a corrected name may show errors of the entry that it names."""

_MOST = 50
"""Edits that are tried one by one, if all of a round together do harm."""

_HARM = ("MT0", "MT203", "MT204")
"""Prefixes of the codes that no correction may add: of what is not read, and of what is there twice."""

_UNSUPPORTED = ("MT404", "MT405", "MT406")
"""Codes that no added entry may add: of what the machine does not support. A corrected word may show these."""


class Correction(Struct, frozen=True):
    """A spec's file with its text before and after its corrections, and the number of errors that they end."""

    file: str
    before: str
    after: str
    errors: int

    @property
    def difference(self) -> Iterator[str]:
        """Lines of a unified difference."""
        before, after = self.before.splitlines(), self.after.splitlines()
        return unified_diff(before, after, f"a/{self.file}", f"b/{self.file}", lineterm="")


def corrected(document: Document, check: Callable[[Document], CheckedFile]) -> Correction:
    """Correct a document. `check` validates it on all machines; an edit is made if all of them ask for it.

    Edits of a round are made if an error that they are for is gone, and if they added none of `_HARM`, or of
    `_UNSUPPORTED` with an entry. A text that was corrected has no further corrections.
    """
    before, found, count = document, check(document), 0
    for _ in range(_ROUNDS):
        wanted = set.intersection(*({one.edit for one in each.diagnostics} for each in found.results))
        first = (one.edit for one in found.results[0].diagnostics)
        edits = replacements(document, [edit for edit in first if edit in wanted and edit])
        single = ({edit: each} for edit, each in islice(edits.items(), _MOST))
        better = next(filter(None, (_better(document, found, each, check) for each in (edits, *single))), None)
        if better is None:
            break
        count += len(_identities(found, edits) - _identities(better))
        document, found = better.document, better
    return Correction(before.name, before.text, document.text, count)


def _better(
    document: Document, found: CheckedFile, edits: Mapping[Edit, Replacement], check: Callable[[Document], CheckedFile]
) -> CheckedFile | None:
    """Results of the document with edits; None if nothing was edited, or if the edits do harm."""
    text = edited(document.text, edits.values())
    if text == document.text:
        return None
    after = check(read_text(text.encode(), document.name))
    now = _identities(after)
    harmful = (*_HARM, *(() if all(edit.old for edit in edits) else _UNSUPPORTED))
    harm = [code for code, *_ in now - _identities(found) if code.startswith(harmful)]
    return after if not harm and _identities(found, edits) - now else None


def _identities(found: CheckedFile, edits: Collection[Edit] | None = None) -> set[tuple[str, str, Path]]:
    """Codes, messages and paths of all diagnostics, or of the ones that some edits are for."""
    every = (each for result in found.results for each in result.diagnostics)
    return {(each.code, each.message, each.path) for each in every if edits is None or each.edit in edits}


STDIN = "-"
SUFFIXES = (".yaml", ".yml")
_PATIENCE = 10.0


class SpecPath(Struct, frozen=True):
    """File by the name that is reported, and the seconds to wait for it if it is a pipe; `-` is standard input.

    A pipe that was named explicitly is waited for; a pipe found in a folder is not. A file that was found must lie
    below `folder`: a link to elsewhere may be another's, and diagnostics quote what they read.
    """

    name: str
    patience: float = _PATIENCE
    folder: str | None = None

    @property
    def outside(self) -> bool:
        """True if the name leads out of the folder in which it was found."""
        if self.folder is None:
            return False
        root = os.path.realpath(self.folder)
        return os.path.commonpath((root, os.path.realpath(self.name))) != root


def collect(arguments: Iterable[str]) -> list[SpecPath]:
    """Return the files in the order of the arguments, those of a folder or pattern sorted, without duplicates.

    A folder stands for every `*.yaml` and `*.yml` file in it and below; a pattern may have `*`, `?`, `[…]` and, for any
    number of folders, `**`. Hidden folders and links to folders are not entered. A file that does not exist is kept,
    so that reading reports it. Raises `Unavailable` for a folder or a pattern without files.
    """
    found: dict[str, SpecPath] = {}
    for argument in arguments:
        for source in _files(argument):
            found.setdefault(STDIN if source.name == STDIN else os.path.abspath(source.name), source)
    return list(found.values())


def _files(argument: str) -> list[SpecPath]:
    if not argument:
        raise UsageError("SPEC is empty", hint="name a file, a folder, a pattern, or - for standard input")
    if argument == STDIN:
        return [SpecPath(argument)]
    if os.path.isdir(argument):
        if found := _sorted(_folder(argument), argument):
            return found
        hint = "a folder stands for the *.yaml and *.yml files in it and below"
        raise Unavailable(f"folder {argument!r} has no spec", hint=hint)
    if (magic := _MAGIC.search(argument)) and not os.path.lexists(argument):
        if found := _sorted(matching(argument), os.path.dirname(argument[: magic.start()]) or "."):
            return found
        hint = "a pattern is matched from the current folder; ** stands for any number of folders"
        raise Unavailable(f"pattern {argument!r} matches no file", hint=hint)
    return [SpecPath(argument)]


def _sorted(files: Iterable[str], folder: str) -> list[SpecPath]:
    return [SpecPath(file, 0.0, folder) for file in sorted(set(files), key=lambda file: file.split("/"))]


def _folder(top: str) -> Iterator[str]:
    unreadable: list[str] = []
    for folder, below, files in os.walk(top, onerror=lambda error: unreadable.append(error.filename)):
        below[:] = [name for name in below if not name.startswith(".")]
        for name in files:
            if name.endswith(SUFFIXES) and not name.startswith("."):
                yield os.path.join(folder, name).removeprefix("./")
    yield from (name.removeprefix("./") for name in unreadable)


_State = tuple[str, tuple[str, ...]]
_ANY = "**"
_MAGIC = re.compile(r"[*?[]")


def matching(pattern: str) -> Iterator[str]:
    """Yield the files and links whose path a pattern matches, in no particular order.

    `*`, `?` and `[…]` match within one name, `**` any number of folders, none of them hidden or a link. A leading dot
    is matched only by a dot. A folder that cannot be read is yielded like a file, so that the error is reported.
    Unlike with the standard library's glob, the search ends if folders link to one another.
    """
    steps = tuple(step for step in pattern.split("/") if step not in ("", "."))
    states: list[_State] = [("/" if pattern.startswith("/") else "", steps)]
    seen: set[_State] = set()
    while states:
        state = states.pop()
        if state in seen:
            continue
        seen.add(state)
        for path, rest in _next(*state):
            if rest:
                states.append((path, rest))
            else:
                yield path


def _next(folder: str, steps: tuple[str, ...]) -> Iterator[_State]:
    """Match the first step in a folder: yield folders with the remaining steps, and files with none."""
    step, rest = steps[0], steps[1:]
    if not _MAGIC.search(step):
        yield from _entries(folder, [step] if os.path.lexists(os.path.join(folder, step)) else [], rest)
        return
    try:
        names = os.listdir(folder or ".")
    except OSError:
        yield folder, ()
        return
    names = [name for name in names if step.startswith(".") or not name.startswith(".")]
    if step != _ANY:
        fits = re.compile(fnmatch.translate(step)).match
        yield from _entries(folder, [name for name in names if fits(name)], rest)
        return
    if rest:
        yield folder, rest
    else:
        yield from _entries(folder, names, rest)
    for path in (os.path.join(folder, name) for name in names):
        if os.path.isdir(path) and not os.path.islink(path):
            yield path, (_ANY, *rest)


def _entries(folder: str, names: list[str], rest: tuple[str, ...]) -> Iterator[_State]:
    """Yield the names that are folders, if steps remain, or files, if none do."""
    for name in names:
        path = os.path.join(folder, name)
        if os.path.isdir(path) == bool(rest):
            yield path, rest
