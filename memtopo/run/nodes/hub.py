"""The hub of a run, and the other nodes as an agent's conductor sees them: meetings, handles of other agents, gates.

The hub counts the nodes that have arrived at a point, and keeps the statuses of their holders. It sees no handle, and
builds nothing.

A meeting of the building ends for all when one node fails or is lost. At a gate of the teardown, a lost node counts as
one that has arrived.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from threading import Lock
from typing import Any, NamedTuple

from msgspec.structs import replace

from memtopo.driver.handles import close_handles
from memtopo.run.messages import HandleAnswer, HandleRequest
from memtopo.run.processes.gates import SplitGate
from memtopo.run.processes.worker_process import Peers, Router
from memtopo.sharing.channel import Received
from memtopo.sharing.sockets import Descriptor
from memtopo.sharing.status import NodeStatus


class RunEnd(NamedTuple):
    """End of a run: the node where it began, and its cause; empty after a release."""

    node: str
    cause: str


class Hub:
    """Counts of one run; each method that waits is one call of an agent that is answered when all have arrived."""

    def __init__(self, nodes: Sequence[str]) -> None:
        self._nodes = tuple(nodes)
        self._values: dict[int, dict[str, Any]] = {}
        self._left: dict[int, set[str]] = {}
        self._ends: list[RunEnd] = []
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
            self._ends.append(RunEnd(node, cause))
            self._changed.notify_all()

    async def lose(self, node: str, cause: str) -> None:
        """Note that a node is dead or cannot be reached."""
        self._lost.add(node)
        await self.end(node, cause)

    async def ended(self) -> RunEnd:
        """Wait until a node begins its teardown, and return the first failure, or else its release."""
        async with self._changed:
            await self._changed.wait_for(lambda: bool(self._ends))
            return next((end for end in self._ends if end.cause), self._ends[0])

    async def failed(self) -> RunEnd:
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

    async def ends(self) -> list[RunEnd]:
        """Return the ends of all nodes so far, in order."""
        return self._ends

    @property
    def _failed(self) -> bool:
        return any(end.cause for end in self._ends)


Call = Callable[..., "Future[Any]"]
"""Call of a method of an actor, by its name and arguments. It does not block; the future has the result or an error."""

HandleBytes = Sequence[tuple[bytes, int]]
"""Bytes and offsets of fabric handles, as arguments of a call: they are secrets, and go into no object store."""

_HUB_LOST = "the hub of the run has ended"
_STAYS = "its handles are descriptors, which do not leave a node; other nodes import via fabric"


class NodePeers(Peers):
    """Peers of one node's conductor, for one run. `homes` has the node of each process by label.

    `deliver` may be called in any thread.
    """

    def __init__(self, node: str, homes: Mapping[str, str], hub: Call, agents: Mapping[str, Call]) -> None:
        self._node, self._homes, self._hub, self._agents = node, homes, hub, agents
        self._lock = Lock()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._inbox: deque[HandleRequest | Received[HandleAnswer]] = deque()
        self._gates: tuple[SplitGate, ...] = ()
        self._passes: dict[int, Future[Any]] = {}
        self._meetings = 0
        self._meeting: Future[Any] | None = None
        self._left = False
        self.cause = ""
        """Reason for which the teardown began, if it was found elsewhere."""
        self._released = False
        self._failed = ""
        self._watch = self._called(self._hub("ended"))

    @property
    def failed(self) -> str:
        if self._watch.done() and not self._failed:
            if self._watch.exception():
                self._failed = _HUB_LOST
                return self._failed
            end: RunEnd = self._watch.result()
            self._failed = f"node {end[0]}: {end[1]}" if end[1] else ""
            if not end[1]:
                self._released = True
                self._watch = self._called(self._hub("failed"))
        return self._failed

    @property
    def released(self) -> bool:
        """True once another node has begun its teardown without a failure: the layout is to be released."""
        return not self.failed and self._released

    @property
    def descriptors(self) -> Collection[Descriptor]:
        return [self, *(gate for gate in self._gates if not gate.reported)]

    def fileno(self) -> int:
        """Descriptor that is readable when something came from another node."""
        return self._wake

    def serve(self, router: Router) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        while self._inbox:
            received = self._inbox.popleft()
            if isinstance(received, HandleRequest):
                router.forward_request(received)
            else:
                router.forward_answer(received)
        for number, gate in enumerate(self._gates):
            if not gate.reported and gate.all_left():
                gate.reported = True
                self._passes[number] = self._called(self._hub("leave_gate", self._node, number))
            if number in self._passes and self._passes[number].done():
                gate.open()  # without a hub, too: the workers' own limit of time is the other way on

    def forward(self, request: HandleRequest) -> bool:
        home = self._homes.get(request.holder)
        if home is None or home == self._node:
            return False
        sent = self._agents[home]("ask", request)
        sent.add_done_callback(lambda done: self._note_unsent(done, request, home))
        return True

    def answer(self, answer: Received[HandleAnswer]) -> bool:
        home = self._homes.get(answer.message.requester)
        if home is None or home == self._node:
            return False
        message, secrets = answer.message, [each.secret for each in answer.handles if each.secret]
        if len(secrets) < len(answer.handles):
            message, secrets = HandleAnswer(message.requester, error=_STAYS), []
        handles = [(secret.reveal(), each.offset) for secret, each in zip(secrets, answer.handles, strict=False)]
        self._agents[home]("answer", message, handles)
        close_handles(answer.handles)
        return True

    def arrive(self, value: Any) -> None:
        self._meetings += 1
        self._meeting = self._called(self._hub("arrive", self._node, self._meetings, value))

    def arrived(self) -> Sequence[Any] | None:
        meeting = self._meeting
        if meeting is None or not meeting.done() or meeting.exception():
            return None  # `failed` says why
        values: Sequence[Any] | None = meeting.result()
        return values

    @contextmanager
    def gates(self) -> Iterator[tuple[int, int, int, int]]:
        self._gates = SplitGate(), SplitGate()
        first, second = self._gates
        try:
            yield (*first.ends, *second.ends)
        finally:
            for gate in self._gates:
                gate.inherited()

    def leave(self, cause: str) -> None:
        if not self._left:
            self._left, self.cause = True, self.failed
            self._hub("end", self._node, "" if self.cause else cause)

    def close(self) -> None:
        """Close what is open, once no worker is left."""
        for gate in self._gates:
            gate.close()
        self._gates = ()
        with self._lock:
            os.close(self._wake)
            self._wake = -1

    def wake(self) -> None:
        """Have the conductor look around at once."""
        with self._lock:
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)

    def deliver(self, received: HandleRequest | Received[HandleAnswer]) -> None:
        """Take a request or an answer of another agent."""
        self._inbox.append(received)
        self.wake()

    def _note_unsent(self, done: Future[Any], request: HandleRequest, home: str) -> None:
        if done.exception():
            error = HandleAnswer(request.requester, error=f"node {home} cannot be reached")
            self.deliver(Received(error))

    def _called(self, future: Future[Any]) -> Future[Any]:
        future.add_done_callback(lambda _: self.wake())
        return future
