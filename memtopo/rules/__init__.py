"""Validation of a document by all rules, against a machine or all machines, and of a change of a layout.

A selection says which codes are reported.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import product
from typing import NamedTuple

from msgspec import Struct

from memtopo import spec
from memtopo.common.errors import Failed, UsageError
from memtopo.common.text import nearest
from memtopo.diagnostics import CODES, messages
from memtopo.diagnostics.messages import LISTED
from memtopo.diagnostics.model import Diagnostic, TextSpan, has_errors
from memtopo.geometry.model import Geometry
from memtopo.kinds import KINDS, lay_out
from memtopo.kinds.kind import Rule
from memtopo.kinds.multicast import MULTICAST
from memtopo.language import Document
from memtopo.language.located import NEVER, apply_suppressions
from memtopo.machine import Machine, Machines, large_machine, small_machine
from memtopo.rules.whole_layout import address_space, fits, unused_chunks, unused_ranges

RULES: tuple[Rule, ...] = tuple(
    dict.fromkeys([*(rule for kind in KINDS for rule in kind.rules), address_space, unused_chunks, unused_ranges])
)
"""Rules about one process, each once, in order."""

JOINT_RULES: tuple[Rule, ...] = tuple(dict.fromkeys([fits, *(rule for kind in KINDS for rule in kind.joint_rules)]))
"""Rules about all processes together, each once, in order."""


class NeverTried(Failed):
    """A valid spec that is not built on a machine: no trial shows that it works there. Nothing was changed."""


def require_tried(geometry: Geometry, machines: Machines) -> None:
    """Raise `NeverTried` for a layout with objects that may be planned, but were never tried on the machine."""
    nodes = [(each, machines.of(node)) for node, each in geometry.by_node]
    found = [each for member in _members(nodes) for each in MULTICAST.untried(*member)]
    if found:
        hint = "validate, plan and draw work; no option makes apply build it"
        raise NeverTried(f"not applied: {found[0]} of this machine", hint=hint, details=found[1:])


def diagnose(geometry: Geometry, machines: Machines) -> list[Diagnostic]:
    """Diagnostics of all rules; equal ones of the instances of a counted process are merged.

    Rules about all processes together are about those of one node.
    """
    nodes = [(each, machines.of(node)) for node, each in geometry.by_node]
    members = _members(nodes)
    found: dict[Diagnostic, None] = {}
    for rule, member in product(RULES, members):
        found |= dict.fromkeys(messages.first(rule(*member)))
    for rule in JOINT_RULES:
        found |= dict.fromkeys(messages.first(dict.fromkeys(one for member in nodes for one in rule(*member))))
    return [*found]


def _members(nodes: Sequence[tuple[Geometry, Machine]]) -> Collection[tuple[Geometry, Machine]]:
    """Different geometries of processes, each with the machine of its node."""
    return {id(member): (member, machine) for each, machine in nodes for member in each.members.values()}.values()


class Validated(NamedTuple):
    """Document with its diagnostics; `geometry` is None if there is an error.

    `ignored` are the diagnostics that a comment in the text names, and `used` the spans of the codes in those comments.
    `diagnostics` has the ignored errors, which prevent building like all errors, but not the ignored warnings.
    """

    document: Document
    diagnostics: tuple[Diagnostic, ...]
    geometry: Geometry | None
    ignored: tuple[Diagnostic, ...] = ()
    used: frozenset[TextSpan] = frozenset()


def validate(
    document: Document,
    machines: Machines,
    *,
    complete: bool = True,
    joining: bool = False,
    more: Callable[[Geometry], Iterable[Diagnostic]] = lambda _: (),
) -> Validated:
    """Validate a document against a machine, or the machines of its nodes. No driver is used.

    Comments that ignore nothing are reported if the validation is `complete`: without errors that hide others. With
    `joining`, processes that are not held import from a held layout. `more` yields diagnostics beside those of rules.
    """
    if document.diagnostics and not document.root:
        return Validated(document, _escaped(document.diagnostics), None)
    entries, invalid = spec.read(document.root, document.left_out)
    geometry, misplaced = lay_out(entries, machines, joining=joining)
    found = (*document.diagnostics, *invalid, *messages.merged_by_gpu(misplaced))
    # Rules skip entries that depend on errors; a comment may name a diagnostic that they would report.
    beside = messages.merged_by_gpu((*diagnose(geometry, machines), *dict.fromkeys(more(geometry))))
    noted = document.noted((*found, *beside))
    kept = apply_suppressions(noted, document, complete=complete and not has_errors(found))
    buildable = None if has_errors(kept.reported) else geometry
    return Validated(document, _escaped(kept.reported), buildable, _escaped(kept.ignored), kept.used)


def _escaped(found: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Diagnostics as they leave validation: names in their texts may have any characters until here."""
    return tuple(each.escaped() for each in found)


class Selection(Struct, frozen=True):
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
    codes = {part: part.upper() for part in parts if part}
    for word, code in codes.items():
        if not (code.startswith("MT") and any(known.startswith(code) for known in CODES)):
            meant = nearest(code, CODES)
            hint = f"did you mean {meant}? " if meant else "write a code such as MT301, or a prefix such as MT3; "
            raise UsageError(f"there is no code {word!r}", hint=f"{hint}'memtopo explain' lists them all")
    return tuple(codes.values())


NOT_CHECKED = (
    ("granularities", ("MT301", "MT303")),
    ("devices, memory, handle types and properties", ("MT401", "MT408")),
    ("visible GPUs", ("MT606",)),
)
"""Subjects that need facts of a machine, each with its code, or with the first and the last one of its codes."""

_GPUS, _MANY = (1, 2, 3, 4, 6, 8, 16), 64
_OF_MACHINES = frozenset(
    code for _, (first, *last) in NOT_CHECKED for code in CODES if first <= code <= (last or [first])[-1]
)


def validate_without_machine(document: Document) -> Validated:
    """Validate a document by what is the same on all machines; there is no geometry.

    Two machines, which differ in all facts that a spec may depend on, must yield the same diagnostic for it to be
    reported. Comments that ignore nothing are not reported, since their diagnostics may need a machine.
    """
    # The machine with the fewest GPUs among the ones with all devices that the document names.
    tried = (validate(document, small_machine(gpus), complete=False) for gpus in _GPUS)
    second = next((each for each in tried if "MT401" not in {found.code for found in each.diagnostics}), None)
    second = second or validate(document, small_machine(_MANY), complete=False)
    first = validate(document, large_machine(), complete=False)
    reported, ignored = _common(first.diagnostics, second.diagnostics), _common(first.ignored, second.ignored)
    return Validated(document, reported, None, ignored, first.used | second.used)


def _common(first: tuple[Diagnostic, ...], second: tuple[Diagnostic, ...]) -> tuple[Diagnostic, ...]:
    """Diagnostics of the first machine that the second one yields with the same message, with what is said of both."""
    others = {_identity(each): each for each in second}
    pairs = [(each, others[_identity(each)]) for each in first if _identity(each) in others]
    found = []
    for each, other in pairs:
        if each.code not in _OF_MACHINES:
            notes = tuple(note for note in each.notes if note in other.notes)
            found.append(each._replace(notes=notes, help=each.help if each.help == other.help else None))
    return tuple(found)


def _identity(each: Diagnostic) -> object:
    return each.code, each.message, each.path, each.at, each.span


def diagnose_change(before: Geometry, after: Geometry) -> Iterator[Diagnostic]:
    """Yield MT806 for another name than that of the layout, MT807 for other processes, and what kinds refuse."""
    if after.name != before.name:
        message = f"the layout is named {before.name!r}, but a change must keep its name"
        yield Diagnostic("MT806", message, ("name",), help=f"write 'name: {before.name}'")
    yield from diagnose_processes(before, after)
    pairs = [(before.members[label], member) for label, member in after.members.items() if label in before.members]
    found = (each for old, new in pairs for kind in KINDS for each in kind.refused_changes(old, new))
    yield from {(each.path, each.message): each for each in found}.values()  # once for a counted process


def diagnose_processes(before: Geometry, after: Geometry) -> Iterator[Diagnostic]:
    """Yield MT807 for a spec with other processes than the layout, or with the same on other nodes."""
    ours, theirs = [*before.processes], [*after.processes]
    if set(ours) != set(theirs):
        yield from _other_processes(ours, theirs)
    elif moved := next((label for label in theirs if before.node_of(label) != after.node_of(label)), None):
        old, new = (
            f"on node {node}" if node else "on no node" for node in (before.node_of(moved), after.node_of(moved))
        )
        message = f"process {moved!r} of the layout is {old}, and {new} here: a change keeps it where it is"
        help = "release the layout, and apply the spec"
        yield Diagnostic("MT807", message, ("processes", moved.partition(".")[0]), "key", help=help)


def _other_processes(before: list[str], after: list[str]) -> Iterator[Diagnostic]:
    help = "release the layout, and apply the spec"
    if not before or not after:
        has = f"has the processes {_listed(before)}" if before else "is one of a single process"
        path = ("processes",) if after else ("name",)
        yield Diagnostic("MT807", f"the layout {has}, and a change keeps them", path, "key", help=help)
        return
    for label in (label for label in after if label not in before):
        message = f"process {label!r} is not one of the layout: {_listed(before)}"
        yield Diagnostic("MT807", message, ("processes", label.partition(".")[0]), "key", help=help)
        return
    missing = _listed([label for label in before if label not in after])
    message = f"the layout also has {missing}, and a change keeps its processes"
    yield Diagnostic("MT807", message, ("processes",), "key", help=help)


def _listed(labels: list[str]) -> str:
    return ", ".join(labels[:LISTED]) + (" …" if len(labels) > LISTED else "")
