"""Validation of a document where no machine is known: what is wrong on every machine."""

from __future__ import annotations

from memtopo.diagnostics.codes import CODES
from memtopo.diagnostics.model import Diagnostic
from memtopo.language import Document
from memtopo.machine.assumed import large_machine, small_machine
from memtopo.rules.validation import Validated, validate

NOT_CHECKED = (
    ("granularities", ("MT301", "MT303")),
    ("devices, memory, handle types and properties", ("MT401", "MT408")),
    ("visible GPUs", ("MT606",)),
)
"""Subjects that need facts of a machine, each with its code, or with the first and the last one of its codes."""

_GPUS, _MANY = (1, 2, 3, 4, 6, 8, 16), 64
_NO_DEVICE = "MT401"
_OF_MACHINES = frozenset(
    code for _, (first, *last) in NOT_CHECKED for code in CODES if first <= code <= (last or [first])[-1]
)


def validate_without_machine(document: Document) -> Validated:
    """Validate a document by what is alike on all machines; there is no geometry.

    Diagnostics are those that two machines yield alike which differ in all facts that a spec may depend on. Comments
    that ignore nothing are not reported, since their diagnostics may need a machine.
    """
    first, second = validate(document, large_machine(), complete=False), _on_small_machine(document)
    return Validated(
        document,
        _common(first.diagnostics, second.diagnostics),
        None,
        _common(first.ignored, second.ignored),
        first.used | second.used,
    )


def _on_small_machine(document: Document) -> Validated:
    """Validate a document on a machine with the fewest GPUs of those that have all devices that it names."""
    tried = (validate(document, small_machine(gpus), complete=False) for gpus in _GPUS)
    return next((each for each in tried if _NO_DEVICE not in {found.code for found in each.diagnostics}), None) or (
        validate(document, small_machine(_MANY), complete=False)
    )


def _common(first: tuple[Diagnostic, ...], second: tuple[Diagnostic, ...]) -> tuple[Diagnostic, ...]:
    """Diagnostics of the first machine that the second one yields with the same message, with what is said of both."""
    others = {_identity(each): each for each in second}
    pairs = [(each, others[_identity(each)]) for each in first if _identity(each) in others]
    return tuple(
        each._replace(
            notes=tuple(note for note in each.notes if note in other.notes),
            help=each.help if each.help == other.help else None,
        )
        for each, other in pairs
        if each.code not in _OF_MACHINES
    )


def _identity(each: Diagnostic) -> object:
    return each.code, each.message, each.path, each.at, each.span
