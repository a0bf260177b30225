"""Routing of handles between workers: each request and each answer passes through the conductor.

Those of processes that run elsewhere go to its peers, and come from them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import count as counter
from typing import Any

from memtopo.common.errors import ExchangeError, MemtopoError
from memtopo.driver.handles import Handle
from memtopo.run.messages import FromWorker, HandleAnswer, HandleRequest
from memtopo.run.processes.gates import gate_descriptors
from memtopo.run.processes.worker_process import WorkerProcess
from memtopo.sharing.channel import Received
from memtopo.sharing.sockets import SYSTEM, Descriptor, System


class Router:
    """Receives the workers' messages and forwards their requests for handles and the answers.

    Each request of the conductor has a requester of its own, which is no process: an answer that comes after its
    request was abandoned is not taken for that of the next one.
    """

    def __init__(self, workers: Mapping[str, WorkerProcess], peers: Peers, system: System = SYSTEM) -> None:
        self._workers, self._peers, self._system = workers, peers, system
        self._requesters = (f"#{number}" for number in counter())
        self._awaiting: str | None = None
        self._answer: Received[HandleAnswer] | None = None

    def receive(self, seconds: float) -> Iterator[tuple[WorkerProcess, Received[FromWorker] | None]]:
        """Messages that arrive within so many seconds, without forwarded ones; None at a channel's end."""
        workers = [worker for worker in self._workers.values() if not worker.gone]
        channels = [worker.channel for worker in workers]
        self._system.wait([*channels, *self._peers.descriptors], seconds, [each for each in channels if each.pending])
        self._peers.serve(self)
        for worker in workers:
            worker.channel.flush()
            yield from self._drain(worker)

    def forward_request(self, request: HandleRequest) -> None:
        """Forward a request of a process elsewhere; the peers get the answer."""
        holder = self._workers.get(request.holder)
        if holder is None or holder.gone:
            self._peers.answer(Received(HandleAnswer(request.requester, error="it is gone")))
        else:
            self._ask(holder, request)

    def request(
        self, holder: str, export: str, first: int, count: int, receive: Callable[[], None]
    ) -> Sequence[Handle]:
        """Handles for the conductor; `receive` is called until the answer has come. Raises `MemtopoError`."""
        worker = self._workers[holder]
        self._awaiting = next(self._requesters)
        worker.answer_due()
        worker.channel.send(HandleRequest(self._awaiting, holder, export, first, count))
        try:
            while self._answer is None:
                if worker.over:
                    raise MemtopoError(f"process {holder} is gone")
                receive()
            answer, self._answer = self._answer, None
        finally:
            self._awaiting = None
            if self._answer:  # one that came although it is not awaited any more
                self._answer.close()
                self._answer = None
        if error := answer.message.error:
            message, code = f"process {holder} does not give {export}: {error}", answer.message.code
            raise ExchangeError(code, message) if code else MemtopoError(message)
        return answer.handles

    def _drain(self, worker: WorkerProcess) -> Iterator[tuple[WorkerProcess, Received[FromWorker] | None]]:
        while not worker.gone:
            try:
                received = worker.channel.receive()
            except BlockingIOError:
                return
            if received and isinstance(received.message, HandleRequest):
                self._forward(worker, received.message)
            elif received and isinstance(received.message, HandleAnswer):
                worker.answer_sent()
                self.forward_answer(Received(received.message, received.handles))
            else:
                yield worker, received

    def _forward(self, requester: WorkerProcess, request: HandleRequest) -> None:
        holder = self._workers.get(request.holder)
        if holder and not holder.gone:
            self._ask(holder, request)
        elif holder or not self._peers.forward(request):
            requester.channel.send(HandleAnswer(requester.label, error="it is gone"))
            return
        requester.request_sent()

    def _ask(self, holder: WorkerProcess, request: HandleRequest) -> None:
        holder.answer_due()
        holder.channel.send(request)

    def forward_answer(self, answer: Received[HandleAnswer]) -> None:
        """Forward an answer, which belongs to this router, to the process that waits for it."""
        requester = self._workers.get(answer.message.requester)
        if requester:
            requester.answer_received()
            requester.channel.send(answer.message, answer.handles)
        elif answer.message.requester == self._awaiting:
            self._answer = answer
        elif not self._peers.answer(answer):
            answer.close()


class Peers:
    """Conductors of the other processes of a run; this class is a run that has none.

    No method blocks. `failed` is the reason for which the run is to end, found elsewhere; empty as long as there is
    none. It may change at any time, and `descriptors` then become readable.
    """

    @property
    def failed(self) -> str:
        return ""

    @property
    def descriptors(self) -> Collection[Descriptor]:
        """Descriptors that are readable when `serve` has something to do."""
        return ()

    def serve(self, router: Router) -> None:
        """Pass on what came from elsewhere."""

    def forward(self, request: HandleRequest) -> bool:
        """Send a request for handles to where its holder runs; false if no peer has it."""
        del request
        return False

    def answer(self, answer: Received[HandleAnswer]) -> bool:
        """Send an answer to where its requester runs; false, and the answer stays the caller's, if no peer has it."""
        del answer
        return False

    def arrive(self, value: Any) -> None:
        """Arrive at the next meeting of all conductors, with a value for all of them."""
        self._value = value

    def arrived(self) -> Sequence[Any] | None:
        """Return the values of all conductors, once all have arrived; None before."""
        return [self._value]

    def gates(self) -> AbstractContextManager[tuple[int, int, int, int]]:
        """Ends of the two gates of the teardown for the workers here, which inherit them in the context."""
        return gate_descriptors()

    def leave(self, cause: str) -> None:
        """Note that the teardown begins here, because of a failure unless `cause` is empty."""
