"""Validation of every file against every machine, and the selection of the codes that are reported."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from memtopo import language
from memtopo.common.errors import UsageError
from memtopo.common.text import nearest
from memtopo.diagnostics.codes import CODES
from memtopo.diagnostics.model import Diagnostic, Span
from memtopo.language import Document
from memtopo.language.suppressions import NEVER
from memtopo.machine import Machines
from memtopo.rules.files.paths import STDIN, Source
from memtopo.rules.files.results import Checked, File, Result
from memtopo.rules.validation import Validated, validate

_UNUSED = "MT505"


def read(each: Source) -> Document:
    """Read a file or standard input; errors are diagnostics of the document."""
    if each.name == STDIN:
        return language.read_stdin()
    if each.outside:
        message = f"it is a link to a file outside of {each.folder!r}, and is not read"
        return Document(each.name, diagnostics=(Diagnostic("MT001", message, help="name the file itself"),))
    return language.read_file(each.name, patience=each.patience)


@dataclass(frozen=True, slots=True, eq=False)
class Variant:
    """Settings with which files are validated; `label` names them where there are several variants."""

    label: str = ""
    applied: Callable[[Document], Document] = lambda document: document

    def on(self, machine: str) -> str:
        """Name of the variant on a machine."""
        return f"{machine} with {self.label}" if self.label else machine


def check(
    sources: Iterable[Source],
    machines: Mapping[str, Machines | None],
    chosen: Selection | None = None,
    *,
    strict: bool = False,
    reader: Callable[[Source], Document] = read,
    variants: Sequence[Variant] = (Variant(),),
    machine_for: Callable[[str, Document], Machines | None] | None = None,
) -> Checked:
    """Validate every variant of every file against every machine. A file that cannot be read has a result, too.

    `machine_for` returns the machine of a name for one document, with the trials that it needs. A machine that is None
    is not known, and what depends on it is not checked.
    Errors that comments in a file ignore are not reported; a comment is unused only if it is unused on all machines.
    """
    known = machine_for or (lambda name, _document: machines[name])
    cases = tuple(each.on(machine) for machine in machines for each in variants)
    files = tuple(check_document(reader(each), machines, known, chosen, variants) for each in sources)
    return Checked(cases, files, strict, len(variants))


def check_document(
    document: Document,
    machines: Collection[str],
    machine_for: Callable[[str, Document], Machines | None],
    chosen: Selection | None = None,
    variants: Sequence[Variant] = (Variant(),),
) -> File:
    """Validate every variant of a document against every machine, as `check`."""
    chosen = chosen or Selection()
    documents = {variant: variant.applied(document) for variant in variants}
    found = {
        variant.on(name): _validated(documents[variant], machine_for(name, documents[variant]))
        for name in machines
        for variant in variants
    }
    used = frozenset[Span]().union(*(validated.used for validated in found.values()))
    results = tuple(
        Result(each.document, case, _reported(each, used, chosen), len(each.ignored)) for case, each in found.items()
    )
    return File(results[0].document, results)


def _validated(document: Document, machines: Machines | None) -> Validated:
    if machines is not None:
        return validate(document, machines)
    from memtopo.rules.no_machine import validate_without_machine  # noqa: PLC0415 rarely needed, and not small

    return validate_without_machine(document)


def _reported(validated: Validated, used: frozenset[Span], chosen: Selection) -> tuple[Diagnostic, ...]:
    ignored = frozenset(validated.ignored)
    return tuple(
        each
        for each in validated.diagnostics
        if chosen.includes(each.code) and each not in ignored and not (each.code == _UNUSED and each.span in used)
    )


class Selection(NamedTuple):
    """Prefixes of codes: the selected ones (by default all), without the ignored ones."""

    selected: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()

    def includes(self, code: str) -> bool:
        """Return true if a code is reported. Codes of reading the text always are, since nothing else was checked."""
        if code.startswith(NEVER):
            return True
        return (not self.selected or code.startswith(self.selected)) and not code.startswith(self.ignored)


def selection(select: Iterable[str] = (), ignore: Iterable[str] = ()) -> Selection:
    """Make a selection from words such as `MT301`, `MT5` and `MT301,MT5`. Raises `UsageError` for unknown codes."""
    ignored = _codes(ignore)
    for code in ignored:
        if code.startswith(NEVER):
            hint = "correct the file, or leave it out of the command"
            raise UsageError(f"{code} cannot be ignored: what is not read is not checked", hint=hint)
    return Selection(_codes(select), ignored)


def _codes(words: Iterable[str]) -> tuple[str, ...]:
    parts = [part.strip() for word in words for part in word.split(",")]
    return tuple(_known_prefix(part) for part in parts if part)


def _known_prefix(word: str) -> str:
    code = word.upper()
    if code.startswith("MT") and any(known.startswith(code) for known in CODES):
        return code
    meant = nearest(code, CODES)
    hint = f"did you mean {meant}? " if meant else "write a code such as MT301, or a prefix such as MT3; "
    raise UsageError(f"there is no code {word!r}", hint=f"{hint}'memtopo explain' lists them all")
