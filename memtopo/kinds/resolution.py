"""Resolution of entries: functions that return the resolved value, or raise `Refused` with its diagnostics."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from itertools import islice
from typing import Any, ParamSpec, TypeVar

from memtopo.common.text import nearest, only_near
from memtopo.common.units import exact, rounded, rounded_up, shorten
from memtopo.diagnostics import messages
from memtopo.diagnostics.model import At, Diagnostic, Edit, Label, Path
from memtopo.driver.types import Location, LocationKind
from memtopo.geometry.groups import Group
from memtopo.language.names import Reference, parse_reference
from memtopo.machine import Machine, Trial

P = ParamSpec("P")
T = TypeVar("T")

Resolution = Generator[Diagnostic, None, T]
"""Generator that yields diagnostics and returns a result."""


class Refused(Exception):
    """A value of a spec is left out because of some errors; without diagnostics, they are reported already."""

    def __init__(self, *diagnostics: Diagnostic) -> None:
        super().__init__(*diagnostics)
        self.diagnostics = diagnostics


def attempt(resolve: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Resolution[T | None]:
    """Return the value of a function, or None after the diagnostics of its refusal."""
    try:
        return resolve(*args, **kwargs)
    except Refused as refused:
        yield from refused.diagnostics
        return None


def refuse(faults: Iterable[Diagnostic]) -> None:
    """Raise `Refused` with the diagnostics of all faults, if there are any."""
    if found := tuple(faults):
        raise Refused(*found)


def together(*resolutions: Callable[[], Any]) -> list[Any]:
    """Return the values of several functions. Raises `Refused` with the diagnostics of all that are refused."""
    found: list[Any] = []
    refusals: list[Refused] = []
    for resolve in resolutions:
        try:
            found.append(resolve())
        except Refused as refused:
            refusals.append(refused)
    if refusals:
        raise Refused(*(each for refused in refusals for each in refused.diagnostics))
    return found


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
        self, what: str, name: str, path: Path, known: Iterable[str], at: At = "value", *, reported: bool = False
    ) -> Refused:
        """Return the refusal, with MT201, of a name that is used but not declared; `what` is the noun for it.

        Its help is the nearest of the `known` names, or some of them. The search for the nearest takes milliseconds.
        With `reported`, an entry with an error may have the name, so that there is nothing more to say.
        """
        if reported:
            return Refused()
        self._count += 1
        suggest = self._count <= messages.SUGGESTED
        some = list(islice(known, messages.COMPARED if suggest else messages.LISTED + 1))
        meant = nearest(name, some) if suggest else None
        known_help = messages.known_names(some, f"no {what} is declared")
        help = messages.did_you_mean(meant) if meant else known_help
        only = only_near(name, some) if meant else None
        edit = Edit(path, at, name, only) if only else None
        message = f"{what} {shorten(name)!r} is not declared"
        return Refused(Diagnostic("MT201", message, path, at, help=help, edit=edit))


def indices(reference: Reference, group: Group, path: Path, *, at: At = "value") -> tuple[int, int]:
    """First index and end of a reference within a group. Raises `Refused` with MT202 if the group has no such index."""
    if reference.first is None or reference.stop is None:
        return 0, group.count
    if group.counted and reference.stop <= group.count:
        return reference.first, reference.stop
    message = f"'{reference}': {group.name!r} is not counted, so it has no {reference.first}"
    if group.counted:
        last = f"{group.label(0)} to {group.label(group.count - 1)}"
        message = f"'{reference}' is past the end: {group.name!r} has {group.count}, {last}"
    raise Refused(Diagnostic("MT202", message, path, at, help=None if group.counted else f"write {group.name}"))


def instances(key: str, group: Group, path: Path) -> tuple[int, int]:
    """First index and end of the key of a section, which refers to a group. Raises `Refused` as `indices` does."""
    return (0, group.count) if key == group.name else indices(parse_reference(key), group, path, at="key")


def refuse_growing(
    group: Group, why: str, path: Path, *, at: At = "value", help: str = "give it a plain count, or use another chunk"
) -> None:
    """Raise `Refused` with MT804 if a program creates and releases the objects of a group."""
    if group.growing:
        message = f"{group.name!r} is elastic: its count has a min and a max, and {why}"
        label = Label("declared here", (*group.path, "count"))
        raise Refused(Diagnostic("MT804", message, path, at, labels=(label,), help=help))


def require_gpu(what: str, machine: Machine, path: Path, why: str) -> None:
    """Raise `Refused` with MT401 if a machine has no GPU, whose context or stream an entry needs."""
    if not machine.devices:
        raise Refused(Diagnostic("MT401", f"{what} needs a GPU", path, "key", notes=(why,)))


def whole_granules(
    code: str, what: str, amount: int, unit: int, path: Path, note: str, *, rounding: bool | None = None
) -> int:
    """Bytes in whole granules of `unit` bytes, rounded up with `rounding`.

    Raises `Refused` with the nearest multiples if they are not whole; its help mentions `round: up` unless `rounding`
    is None.
    """
    down = amount - amount % unit
    if amount == down or rounding:
        return rounded_up(amount, unit)
    near = f"{exact(down)} or {exact(down + unit)}" if down else exact(unit)
    over = f" ({rounded(amount % unit)} over)" if down else ""
    message = f"{what}: {exact(amount)} is not a multiple of {exact(unit)}{over}"
    help = f"write {near}" + (", or 'round: up'" if rounding is not None else "")
    raise Refused(Diagnostic(code, message, path, notes=(note,), help=help))


def trial_reason(trial: Trial, name: str = "a trial") -> str:
    """Reason for a diagnostic of what does not work: a trial that failed, or support that is not advertised."""
    return trial.failure(name, "read wrong bytes") if trial.works is False else "the device does not advertise it"


def require_on_gpu(what: str, locations: Iterable[Location], path: Path) -> None:
    """Raise `Refused` with MT405 if a location is not a GPU."""
    if any(location.kind is not LocationKind.GPU for location in locations):
        raise Refused(Diagnostic("MT405", f"{what} must be on a GPU, not on the host", path, help="name a GPU"))
