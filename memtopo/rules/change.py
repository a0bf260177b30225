"""Rules of a change: which spec a layout can be brought to in place."""

from __future__ import annotations

from collections.abc import Iterator

from memtopo.diagnostics.messages import LISTED
from memtopo.diagnostics.model import Diagnostic
from memtopo.geometry.model import Geometry
from memtopo.kinds import KINDS


def diagnose_change(before: Geometry, after: Geometry) -> Iterator[Diagnostic]:
    """Yield MT806 for another name than that of the layout, MT807 for other processes, and what kinds refuse."""
    if after.name != before.name:
        message = f"the layout is named {before.name!r}, and a change keeps its name"
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
        where = [
            f"on node {node}" if node else "on no node" for node in (each.node_of(moved) for each in (before, after))
        ]
        message = f"process {moved!r} of the layout is {where[0]}, and {where[1]} here: a change keeps it where it is"
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
