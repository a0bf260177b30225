"""Validation results as every format shows them: located diagnostics, verdicts, sums and fingerprints."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator

from memtopo.common.errors import MemtopoError
from memtopo.common.text import plural
from memtopo.diagnostics.model import Diagnostic
from memtopo.drivers.target import NONE
from memtopo.language.located import Located, located
from memtopo.rules.files import Checked, CheckedFile, Result, SharedDiagnostic

STDIN = "<stdin>"


def all_located(checked: Checked) -> list[Located]:
    """Every diagnostic once, file by file, with the notes of `merged`."""
    return [each for file in checked.files for each in located(merged(file), file.document)]


def merged(file: CheckedFile, *, in_message: bool = False) -> list[Diagnostic]:
    """Every diagnostic of a file once; one that only some machines have gets a note that names them.

    They are named `in_message` for formats of one line each.
    """
    return [_merged(each, in_message=in_message) for each in file.diagnostics()]


def _merged(shared: SharedDiagnostic, *, in_message: bool) -> Diagnostic:
    found, machines = shared.diagnostic, f"only on {', '.join(shared.only)}"
    if not shared.only:
        return found
    if in_message:
        return found._replace(message=f"{found.message} ({machines})")
    return found._replace(notes=(*found.notes, machines))


def verdict(result: Result | CheckedFile | None) -> str:
    """`ok`, or `2 errors, 1 warning`; empty for a machine on which a file was not checked."""
    if result is None:
        return ""
    errors, warnings = result.count("error"), result.count("warning")
    counts = [plural(count, noun) for count, noun in ((errors, "error"), (warnings, "warning")) if count]
    return ", ".join(counts) or "ok"


def total(checked: Checked) -> str:
    """All files in one line: `12 files on h200x2: 10 ok, 2 with errors; 1 diagnostic ignored by comments`."""
    worst = [next((each for each in ("error", "warning") if file.count(each)), "ok") for file in checked.files]
    phrases = {"ok": "ok", "warning": "with warnings", "error": "with errors"}
    counts = [f"{worst.count(severity):,} {phrase}" for severity, phrase in phrases.items() if severity in worst]
    files = plural(len(checked.files), "file")
    return f"{files} {_places(checked)}: {', '.join(counts)}{ignored(checked.results)}{_estimates(checked.results)}"


def estimated(result: Result) -> str:
    """` (estimated: fd not tried)` for a result on an estimated machine; empty for one on a probed machine."""
    return "" if result.untried is None else f" ({_estimated(result.untried)})"


def _estimated(features: Iterable[str]) -> str:
    names = ", ".join(features)
    return f"estimated: {names} not tried" if names else "estimated"


def _estimates(results: Iterable[Result]) -> str:
    """Each estimated machine, with the features that any file uses and nobody tried there."""
    found: dict[str, dict[str, None]] = {}
    for each in results:
        if each.untried is not None:
            found.setdefault(_machine(each.machine), {}).update(dict.fromkeys(each.untried))
    return "".join(f"; {name} is {_estimated(features)}" for name, features in found.items())


def _places(checked: Checked) -> str:
    """The machine, or the number of machines, and of combinations of settings if there are several."""
    count = sum(_machine(each) != NONE for each in checked.machines) // checked.variants
    if checked.variants > 1:
        machines = f"on {plural(count, 'machine')}" if count else "without a machine"
        return f"{machines} with {checked.variants:,} combinations of settings"
    if len(checked.machines) == 1:
        return on_machine(checked.machines[0])
    return f"on {plural(count, 'machine')}"


def _machine(case: str) -> str:
    """Machine of a case, which has the values of a combination of settings behind it."""
    return case.partition(" with ")[0]


def headings(checked: Checked) -> list[str]:
    """Headings of a table: the spec, and the machines or the result; `no machine` for files checked without one."""
    if checked.variants > 1:
        return ["spec", "result"]
    return ["spec", *("no machine" if name == NONE else name for name in checked.machines)]


def on_machine(name: str) -> str:
    """`on h200x2`, or `without a machine`; a case with its settings: `on h200x2 with n=2`."""
    return f"without a machine{name.removeprefix(NONE)}" if _machine(name) == NONE else f"on {name}"


def rows(checked: Checked) -> Iterator[tuple[str, tuple[Result | None, ...]]]:
    """Name and results of each row of a table: a file on all machines, or on one with one combination of settings.

    There is no result on a machine that others have and the file has not.
    """
    for file in checked.files:
        if checked.variants > 1:
            yield from ((f"{file.document.file} {on_machine(each.machine)}", (each,)) for each in file.results)
        else:
            found = {each.machine: each for each in file.results}
            yield file.document.file, tuple(map(found.get, checked.machines))


def ignored(results: Iterable[Result]) -> str:
    """`; 2 diagnostics ignored by comments`; empty if none is ignored."""
    count = sum(result.ignored for result in results)
    return f"; {plural(count, 'diagnostic')} ignored by comments" if count else ""


def full_message(diagnostic: Diagnostic) -> str:
    """The message, the notes and the help of a diagnostic, a line each."""
    help = [f"help: {diagnostic.help}"] if diagnostic.help else []
    return "\n".join((diagnostic.message, *(f"note: {note}" for note in diagnostic.notes), *help))


def error_message(error: MemtopoError) -> str:
    """The message and the hint of an error, a line each."""
    return error.message if error.hint is None else f"{error.message}\nhint: {error.hint}"


def repository_path(name: str) -> str:
    """Path of a file relative to the repository that CI checked out, or else to the current folder.

    The absolute path for a file outside of both.
    """
    if name == STDIN:
        return name
    path = os.path.abspath(name)  # noqa: PTH100 resolving a link would name another file
    for top in (*(os.environ.get(variable) for variable in ("GITHUB_WORKSPACE", "CI_PROJECT_DIR")), os.curdir):
        if top and not (relative := os.path.relpath(path, top)).startswith(".."):
            return relative
    return path


def fingerprints(diagnostics: Iterable[Located]) -> Iterator[str]:
    """One fingerprint for each diagnostic, which stays the same when lines above it change.

    Made of the file, the code and the path in the spec; equal ones are numbered.
    """
    counts: Counter[str] = Counter()
    for each in diagnostics:
        diagnostic = each.diagnostic
        identity = repr((repository_path(each.file), diagnostic.code, diagnostic.path or diagnostic.message))
        numbered = f"{identity} {counts[identity]}"
        yield hashlib.sha256(numbered.encode(errors="surrogateescape")).hexdigest()[:32]
        counts[identity] += 1
