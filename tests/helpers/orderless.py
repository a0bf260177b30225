"""Steps as they are whichever order a spec is written in."""

from __future__ import annotations

from dataclasses import replace

from memtopo.kinds.steps import Attach, AwaitStream, CreateStream, Step


def orderless(step: Step) -> Step:
    """What several entries need has the path of the first of them, and names them in their order."""
    if isinstance(step, AwaitStream):
        return replace(step, path=(), stays=tuple(sorted(step.stays)))
    return replace(step, path=()) if isinstance(step, Attach | CreateStream) else step
