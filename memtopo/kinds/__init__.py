"""Kinds of entries: one module for each section of a spec, with its fields, groups, steps and rules.

The engine iterates over `KINDS` and names no kind itself. To add a kind, add a module and list it here.
"""

from __future__ import annotations

from memtopo.kinds.access import ACCESS
from memtopo.kinds.bindings import BINDINGS
from memtopo.kinds.chunks import CHUNKS
from memtopo.kinds.exports import EXPORTS
from memtopo.kinds.external import EXTERNAL
from memtopo.kinds.external.semaphores import SEMAPHORES
from memtopo.kinds.imports import IMPORTS
from memtopo.kinds.ipc import BUFFERS, EVENTS
from memtopo.kinds.kind import Kind
from memtopo.kinds.managed import MANAGED
from memtopo.kinds.mappings import MAPPINGS
from memtopo.kinds.multicast import MULTICAST
from memtopo.kinds.pinned import PINNED_MEMORY
from memtopo.kinds.pools import POOLS
from memtopo.kinds.pools.allocations import ALLOCATIONS
from memtopo.kinds.ranges import RANGES
from memtopo.kinds.states import STATES

__all__ = ["KINDS", "Kind"]

KINDS: tuple[Kind, ...] = (
    RANGES,
    CHUNKS,
    MAPPINGS,
    ACCESS,
    BUFFERS,
    EVENTS,
    POOLS,
    ALLOCATIONS,
    EXPORTS,
    IMPORTS,
    MULTICAST,
    BINDINGS,
    MANAGED,
    PINNED_MEMORY,
    EXTERNAL,
    SEMAPHORES,
    STATES,
)
"""All kinds, in the order of their steps within a phase.

If two entries have the same name, the error is reported for the entry of the later kind.
"""
