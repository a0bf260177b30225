"""Rules of a change: which spec a layout can be brought to in place."""

from __future__ import annotations

from collections.abc import Iterator

from memtopo.diagnostics.messages import LISTED
from memtopo.diagnostics.model import Diagnostic
from memtopo.geometry.model import Geometry


def diagnose_change(before: Geometry, after: Geometry) -> Iterator[Diagnostic]:
    """Yield MT806 for a spec with another name than the layout, and MT807 for one with other processes."""
    if after.name != before.name:
        message = f"the layout is named {before.name!r}, and a change keeps its name"
        yield Diagnostic("MT806", message, ("name",), help=f"write 'name: {before.name}'")
    yield from diagnose_processes(before, after)


def diagnose_processes(before: Geometry, after: Geometry) -> Iterator[Diagnostic]:
    """Yield MT807 for a spec with other processes than the layout."""
    ours, theirs = [*before.processes], [*after.processes]
    if set(ours) != set(theirs):
        yield from _other_processes(ours, theirs)


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
