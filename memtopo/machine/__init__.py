"""A machine: the recorded facts of a computer, the one word for what a spec is validated against.

Recorded by `memtopo probe -o FILE`; the same record is read from a live driver when the machine is `local`.
"""

from __future__ import annotations

from memtopo.machine.files import LARGEST_FILE, VERSION, dump, load, parse, shipped
from memtopo.machine.records import (
    CONTEXT_BYTES,
    Copies,
    Device,
    DriverFacts,
    Granularity,
    Machine,
    Memory,
    Peer,
    Rate,
    Surroundings,
    Trial,
)

__all__ = [
    "CONTEXT_BYTES",
    "LARGEST_FILE",
    "VERSION",
    "Copies",
    "Device",
    "DriverFacts",
    "Granularity",
    "Machine",
    "Memory",
    "Peer",
    "Rate",
    "Surroundings",
    "Trial",
    "dump",
    "load",
    "parse",
    "shipped",
]
