"""Comparison of steps irrespective of the order in which a spec lists its entries."""

from __future__ import annotations

from msgspec.structs import replace

from memtopo.kinds.external.steps import AwaitStream
from memtopo.kinds.resources import Attach, CreateStream
from memtopo.kinds.step import Step


def ignore_entry_order(step: Step) -> Step:
    """Remove the path, and sort the names, of a step that several entries share."""
    if isinstance(step, AwaitStream):
        return replace(step, path=(), stays=tuple(sorted(step.stays)))
    return replace(step, path=()) if isinstance(step, Attach | CreateStream) else step
