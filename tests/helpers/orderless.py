"""Steps as they are whichever order a spec is written in."""

from __future__ import annotations

from dataclasses import replace

from memtopo.kinds.resources import Attach, CreateStream
from memtopo.kinds.semaphores import AwaitStream
from memtopo.kinds.step import Step


def orderless(step: Step) -> Step:
    """What several entries need has the path of the first of them, and names them in their order."""
    if isinstance(step, AwaitStream):
        return replace(step, path=(), stays=tuple(sorted(step.stays)))
    return replace(step, path=()) if isinstance(step, Attach | CreateStream) else step
