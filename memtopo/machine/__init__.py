"""Machines: records of a computer's GPUs, driver and host memory, against which specs are validated.

`memtopo probe -o FILE` writes a record; for the machine `local`, the same record is read from the live driver.
"""

from __future__ import annotations

from memtopo.machine.files import LARGEST_FILE, dump, load, parse, shipped
from memtopo.machine.records import (
    CONTEXT_BYTES,
    Cluster,
    Copies,
    Device,
    DriverFacts,
    Fabric,
    Granularity,
    HostMemory,
    Machine,
    Machines,
    Memory,
    Peer,
    Rate,
    Surroundings,
    Trial,
)

__all__ = [
    "CONTEXT_BYTES",
    "LARGEST_FILE",
    "Cluster",
    "Copies",
    "Device",
    "DriverFacts",
    "Fabric",
    "Granularity",
    "HostMemory",
    "Machine",
    "Machines",
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
