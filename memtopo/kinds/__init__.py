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
from memtopo.kinds.heaps import HEAPS
from memtopo.kinds.imports import IMPORTS
from memtopo.kinds.ipc import BUFFERS, EVENTS
from memtopo.kinds.kind import Kind, Words
from memtopo.kinds.managed import MANAGED
from memtopo.kinds.mappings import MAPPINGS
from memtopo.kinds.multicast import MULTICAST
from memtopo.kinds.pinned import PINNED_MEMORY
from memtopo.kinds.pools import POOLS
from memtopo.kinds.pools.allocations import ALLOCATIONS
from memtopo.kinds.ranges import RANGES
from memtopo.kinds.states import STATES
from memtopo.language.fields import Identities

__all__ = ["DEVICES", "KINDS", "Kind"]


class Devices(Kind):
    """Section `devices`, which names locations and has no groups; `memtopo.kinds.device_names` resolves them."""

    section = "devices"
    description = "Names for GPUs, each an ordinal, a UUID (GPU-…) or a bus id. gpu0, host and host:0 are built in."
    words = Words("device", "devices")
    entry = Identities


DEVICES = Devices()

KINDS: tuple[Kind, ...] = (
    RANGES,
    CHUNKS,
    MAPPINGS,
    HEAPS,
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
