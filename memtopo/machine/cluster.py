"""Machines of the nodes of a spec."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from memtopo.machine.records import Machine


@dataclass(frozen=True, slots=True)
class Cluster:
    """Machine of each node by name, at least one."""

    nodes: Mapping[str, Machine]

    def of(self, node: str | None) -> Machine:
        """Return the machine of a node; without a name, that of the first one. Raises `KeyError`."""
        return self.nodes[node or next(iter(self.nodes))]


Machines = Machine | Cluster
"""One machine, which each node of a spec is, or a machine for each node. Both have a method `of`."""


@dataclass(frozen=True, slots=True)
class MachineLine:
    """Machine of a report: its name, whether it is simulated, its GPUs and driver."""

    name: str
    simulated: bool
    devices: tuple[str, ...]
    driver: str
