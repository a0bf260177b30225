"""The hub: counts the nodes of a run that have arrived at a point, and keeps the statuses of their holders.

It sees no handle, and builds nothing.

A meeting of the building ends for all when one node fails or is lost. At a gate of the teardown, a lost node counts as
one that has arrived.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from memtopo.sharing.status import NodeStatus


class End(NamedTuple):
    """End of a run: the node where it began, and its cause; empty after a release."""

    node: str
    cause: str


class Hub:
    """Counts of one run; each method that waits is one call of an agent that is answered when all have arrived."""

    def __init__(self, nodes: Sequence[str]) -> None:
        self._nodes = tuple(nodes)
        self._values: dict[int, dict[str, Any]] = {}
        self._left: dict[int, set[str]] = {}
        self._ends: list[End] = []
        self._lost: set[str] = set()
        self._finished: set[str] = set()
        self._serving: dict[str, str] = {}
        self._reported: dict[str, NodeStatus] = {}
        self._changed = asyncio.Condition()

    async def arrive(self, node: str, meeting: int, value: Any) -> list[Any] | None:
        """Wait until all nodes are at a meeting; return their values, or None if the run ends before."""
        async with self._changed:
            values = self._values.setdefault(meeting, {})
            values[node] = value
            self._values.pop(meeting - 2, None)  # all have left the meeting before the last
            self._changed.notify_all()
            await self._changed.wait_for(lambda: len(values) == len(self._nodes) or self._failed)
            return list(values.values()) if len(values) == len(self._nodes) else None

    async def leave_gate(self, node: str, gate: int) -> bool:
        """Wait until all nodes have left a gate of the teardown, have finished, or are lost; return true."""
        async with self._changed:
            left = self._left.setdefault(gate, set())
            left.add(node)
            self._changed.notify_all()
            await self._changed.wait_for(lambda: left | self._finished | self._lost >= {*self._nodes})
            return True

    async def finish(self, node: str) -> None:
        """Note that a node has nothing that others may use: its part is taken down, or never began."""
        async with self._changed:
            self._finished.add(node)
            self._changed.notify_all()

    async def end(self, node: str, cause: str) -> None:
        """Note that a node begins its teardown."""
        async with self._changed:
            self._ends.append(End(node, cause))
            self._changed.notify_all()

    async def lose(self, node: str, cause: str) -> None:
        """Note that a node is dead or cannot be reached."""
        async with self._changed:
            self._lost.add(node)
            self._ends.append(End(node, cause))
            self._changed.notify_all()

    async def ended(self) -> End:
        """Wait until a node begins its teardown, and return the first failure, or else its release."""
        async with self._changed:
            await self._changed.wait_for(lambda: bool(self._ends))
            return next((end for end in self._ends if end.cause), self._ends[0])

    async def failed(self) -> End:
        """Wait until a node fails or is lost, and return the first that did."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._failed)
            return next(end for end in self._ends if end.cause)

    async def serve(self, node: str, path: str) -> None:
        """Note that a node holds its part of the layout, and serves its exports at a socket."""
        async with self._changed:
            self._serving[node] = path
            self._changed.notify_all()

    async def serving(self) -> dict[str, str]:
        """Wait until all nodes serve, and return the paths of their sockets."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._serving.keys() == {*self._nodes})
            return self._serving

    async def report(self, status: NodeStatus) -> None:
        """Note the status of a node's holder."""
        self._reported[status.node] = status

    async def statuses(self) -> list[NodeStatus]:
        """Return what the holders of all nodes reported last; a lost one is unreachable."""
        found = [self._reported.get(node) or NodeStatus(node, "", "starting") for node in self._nodes]
        return [replace(each, state="unreachable") if each.node in self._lost else each for each in found]

    async def ends(self) -> list[End]:
        """Return the ends of all nodes so far, in order."""
        return self._ends

    @property
    def _failed(self) -> bool:
        return any(end.cause for end in self._ends)
