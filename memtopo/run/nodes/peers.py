"""The other nodes of a run as an agent's conductor sees them: meetings at the hub, handles of other agents, gates."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from threading import Lock
from typing import Any

from memtopo.driver.handles import Handle, close_handles
from memtopo.run.messages import HandleAnswer, HandleRequest
from memtopo.run.nodes.hub import End
from memtopo.run.processes.gates import SplitGate
from memtopo.run.processes.router import Peers, Router
from memtopo.sharing.channel import Received

Call = Callable[..., "Future[Any]"]
"""Call of a method of an actor, by its name and arguments. It does not block; the future has the result or an error."""

HandleBytes = Sequence[tuple[bytes, int]]
"""Bytes and offsets of fabric handles, as arguments of a call: they are secrets, and go into no object store."""

_HUB_LOST = "the hub of the run is gone"
_STAYS = "its handles are descriptors, which do not leave a node; other nodes import via fabric"


class NodePeers(Peers):
    """Peers of one node's conductor, for one run. `homes` has the node of each process by label.

    `receive_request` and `receive_answer` may be called in any thread.
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
            end: End = self._watch.result()
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
    def descriptors(self) -> Collection[int]:
        return [self._wake, *(gate.fileno() for gate in self._gates if not gate.reported)]

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

    def receive_request(self, request: HandleRequest) -> None:
        """Take a request of another agent."""
        self._deliver(request)

    def receive_answer(self, answer: HandleAnswer, handles: HandleBytes) -> None:
        """Take an answer of another agent."""
        self._deliver(Received(answer, [Handle.of(bytes(secret)) for secret, _ in handles]))

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

    def _deliver(self, received: HandleRequest | Received[HandleAnswer]) -> None:
        self._inbox.append(received)
        self.wake()

    def _note_unsent(self, done: Future[Any], request: HandleRequest, home: str) -> None:
        if done.exception():
            error = HandleAnswer(request.requester, error=f"node {home} cannot be reached")
            self._deliver(Received(error))

    def _called(self, future: Future[Any]) -> Future[Any]:
        future.add_done_callback(lambda _: self.wake())
        return future
