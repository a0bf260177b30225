"""Choice among alternatives: the first one that works in the trials of a machine, at all locations of an entry."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from memtopo import machine
from memtopo.diagnostics.model import Diagnostic, Path
from memtopo.driver.types import HandleType
from memtopo.kinds.kind import Scope
from memtopo.kinds.resolution import Refused
from memtopo.language.entries import Entry, Spec
from memtopo.language.fields import Alternatives

_LISTED = 3
"""Reasons of alternatives that do not work, which a diagnostic shows."""


class Support(NamedTuple):
    """Support of one alternative: true if a trial showed it, false if it is refused, None if nothing was tried."""

    works: bool | None
    reason: str = ""


ACROSS = HandleType.FABRIC
"""Handle type that is valid on other nodes (fact 88)."""


def confined(scope: Scope, name: str, written: Any, handles: HandleType) -> Support | None:
    """Refusal of one of the alternatives of handle types: without fabric, for an object that is imported elsewhere.

    None if the object stays on one node, or if no alternative has fabric.
    """
    options = written.options if isinstance(written, Alternatives) else ()
    if ACROSS in handles or not any(ACROSS in each for each in options):
        return None
    importer = scope.user_elsewhere(name)
    return Support(works=False, reason=elsewhere(importer)) if importer else None


def elsewhere(importer: str) -> str:
    """Reason against handles that are valid on one node only."""
    return f"process {importer!r} imports it on another node"


def weakest(found: Iterable[Support]) -> Support:
    """Support at all of some locations: the first that is refused, else the first that was not tried."""
    every = list(found)
    refused = (each for each in every if each.works is False)
    untried = (each for each in every if each.works is None)
    return next(refused, None) or next(untried, None) or (every[0] if every else Support(works=True))


def chosen(scope: Scope, written: Any, subject: str, path: Path, support: Callable[[Any], Support]) -> Any:
    """Value of a field: the written one, or the first alternative that works; the choice is noted in the scope.

    An alternative that was not tried is taken only if none works and it is the last one. Raises `Refused` with MT408 if
    all of them are refused.
    """
    if not isinstance(written, Alternatives):
        return written
    found = [support(option) for option in written.options]
    taken = _taken(found)
    reasons = list(zip(written.words, (each.reason for each in found), strict=True))
    if taken is None:
        message = f"{subject} {written}: none of these works on this machine"
        fabric = "fabric needs IMEX (/dev/nvidia-caps-imex-channels); " if "fabric" in written.words else ""
        help = f"{fabric}add an alternative that works, or omit the field"
        notes = tuple(f"{word}: {reason}" for word, reason in reasons[:_LISTED])
        raise Refused(Diagnostic("MT408", message, path, notes=notes, help=help))
    refused = tuple(machine.Refused(*each) for each in reasons[:taken])
    scope.choices[path] = machine.Choice(subject, *reasons[taken], refused, written.words, path)
    return written.options[taken]


def needed_trials(spec: Spec) -> frozenset[str]:
    """Names of the trials that decide the alternatives of a spec; a property's trial has the name of its field."""
    found: set[str] = set()
    for part in (spec, *spec.processes.values()):
        for section in part.sections.values():
            for entry in section.values():
                if isinstance(entry, Entry):
                    found.update(_trials(entry))
    return frozenset(found | {"fd+fabric"} if "fabric" in found else found)


def _trials(entry: Entry) -> Iterator[str]:
    for name, value in entry:
        for each in value if isinstance(value, list) else (value,):
            if isinstance(each, Alternatives):
                tried = zip(each.options, each.words, strict=True)
                yield from (name if option is True else word for option, word in tried if option is not False)


def _taken(found: Sequence[Support]) -> int | None:
    """Index of the first alternative that works, else of the last that is not refused; None if all are."""
    works = (index for index, each in enumerate(found) if each.works)
    possible = (index for index in reversed(range(len(found))) if found[index].works is None)
    return next(works, next(possible, None))
