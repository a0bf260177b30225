"""Resolution of entries: generators that yield diagnostics and return the resolved value, or None."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from itertools import islice
from typing import TypeVar

from memtopo.common.text import nearest, only_near
from memtopo.common.units import shorten
from memtopo.diagnostics import messages
from memtopo.diagnostics.model import At, Diagnostic, Edit, Label, Path
from memtopo.driver.types import Location, LocationKind
from memtopo.geometry.groups import Group
from memtopo.language.names import Reference, parse_reference
from memtopo.machine import Machine, Trial

T = TypeVar("T")

Resolution = Generator[Diagnostic, None, T]
"""Generator that yields diagnostics and returns a result."""


def collected(resolution: Resolution[T]) -> tuple[T, list[Diagnostic]]:
    """Result of a resolution, and its diagnostics."""
    diagnostics: list[Diagnostic] = []
    while True:
        try:
            diagnostics.append(next(resolution))
        except StopIteration as end:
            return end.value, diagnostics


class NameErrors:
    """Diagnostics of undeclared names. The first ones suggest the most similar declared name."""

    def __init__(self) -> None:
        self._count = 0

    def undeclared(
        self, what: str, name: str, path: Path, known: Iterable[str], at: At = "value", message: str = ""
    ) -> Diagnostic:
        """Return MT201 for a name that is used but not declared; `what` is the noun for it.

        Its help is the nearest of the `known` names, or some of them. The search for the nearest takes milliseconds.
        """
        self._count += 1
        suggest = self._count <= messages.SUGGESTED
        some = list(islice(known, messages.COMPARED if suggest else messages.LISTED + 1))
        meant = nearest(name, some) if suggest else None
        help = messages.did_you_mean(meant) if meant else messages.listed(some) if some else f"no {what} is declared"
        only = only_near(name, some) if meant else None
        edit = Edit(path, at, name, only) if only else None
        message = message or f"{what} {shorten(name)!r} is not declared"
        return Diagnostic("MT201", message, path, at, help=help, edit=edit)


def indices(reference: Reference, group: Group, path: Path, *, at: At = "value") -> Resolution[tuple[int, int] | None]:
    """First index and end of a reference within a group; yields MT202 if the group has no such index."""
    if reference.first is None or reference.stop is None:
        return 0, group.count
    if group.counted and reference.stop <= group.count:
        return reference.first, reference.stop
    message = f"'{reference}': {group.name!r} is not counted, so it has no {reference.first}"
    if group.counted:
        last = f"{group.label(0)} to {group.label(group.count - 1)}"
        message = f"'{reference}' is past the end: {group.name!r} has {group.count}, {last}"
    yield Diagnostic("MT202", message, path, at, help=None if group.counted else f"write {group.name}")
    return None


def instances(key: str, group: Group, path: Path) -> Resolution[tuple[int, int] | None]:
    """First index and end of the key of a section, which refers to a group; yields MT202 likewise."""
    if key == group.name:
        return 0, group.count
    return (yield from indices(parse_reference(key), group, path, at="key"))


def refuses_growing(
    group: Group, why: str, path: Path, *, at: At = "value", help: str = "give it a plain count, or use another chunk"
) -> Resolution[bool]:
    """Yield MT804 and return true if a program creates and releases the objects of a group."""
    if not group.growing:
        return False
    message = f"{group.name!r} is elastic: its count has a min and a max, and {why}"
    label = Label("declared here", (*group.path, "count"))
    yield Diagnostic("MT804", message, path, at, labels=(label,), help=help)
    return True


def lacks_gpu(what: str, machine: Machine, path: Path, why: str) -> Resolution[bool]:
    """Yield MT401 and return true if a machine has no GPU, whose context or stream an entry needs."""
    if machine.devices:
        return False
    yield Diagnostic("MT401", f"{what} needs a GPU", path, "key", notes=(why,))
    return True


def trial_reason(trial: Trial, name: str = "a trial") -> str:
    """Reason for a diagnostic of what does not work: a trial that failed, or support that is not advertised."""
    return trial.failure(name, "read wrong bytes") if trial.works is False else "the device does not advertise it"


def requires_gpu(what: str, locations: Iterable[Location], path: Path) -> Resolution[bool]:
    """Yield MT405 and return true if a location is not a GPU."""
    if all(location.kind is LocationKind.GPU for location in locations):
        return False
    yield Diagnostic("MT405", f"{what} must be on a GPU, not on the host", path, help="name a GPU")
    return True
