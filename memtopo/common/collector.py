"""Less of Python's cyclic collector, for work that makes many objects and no garbage of its kind."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """Keep the collector from walking over everything again and again while a lot is being made.

    Left as it was found, also where pauses are nested or the work fails.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextmanager
def made_to_stay() -> Iterator[None]:
    """Keep the collector from all that is made, now and later: modules and what they hold live as long as the process.

    Walking over them, several times while they are imported and once more at the end, is a tenth of a short run.
    """
    with collector_paused():
        yield
        gc.freeze()
