"""Kinds of entries: one module for each section of a spec, with everything that is known of its entries.

The engine goes through `KINDS` and knows none by name. To add a kind is to add its module and its place here.
"""

from __future__ import annotations

from memtopo.kinds.access import ACCESS
from memtopo.kinds.buffers import BUFFERS
from memtopo.kinds.chunks import CHUNKS
from memtopo.kinds.events import EVENTS
from memtopo.kinds.exports import EXPORTS
from memtopo.kinds.external import EXTERNAL
from memtopo.kinds.imports import IMPORTS
from memtopo.kinds.kind import Kind
from memtopo.kinds.managed import MANAGED
from memtopo.kinds.mappings import MAPPINGS
from memtopo.kinds.ranges import RANGES
from memtopo.kinds.semaphores import SEMAPHORES

__all__ = ["KINDS", "Kind"]

KINDS: tuple[Kind, ...] = (
    RANGES,
    CHUNKS,
    MAPPINGS,
    ACCESS,
    BUFFERS,
    EVENTS,
    EXPORTS,
    IMPORTS,
    MANAGED,
    EXTERNAL,
    SEMAPHORES,
)
"""All kinds, in order: of two entries with one name, the one of the later kind has the error."""
