"""Routing of handles between workers: each request and each answer passes through the coordinator."""

from __future__ import annotations

import select
from collections.abc import Callable, Iterator, Mapping, Sequence

from memtopo.common.errors import MemtopoError
from memtopo.driver.handles import Handle
from memtopo.run.processes.messages import FromWorker, HandleAnswer, HandleRequest
from memtopo.run.processes.worker_process import WorkerProcess
from memtopo.sharing.channel import Received

COORDINATOR = ""
"""Label of the coordinator as a requester of handles."""


class Router:
    """Receives the workers' messages and forwards their requests for handles and the answers."""

    def __init__(self, workers: Mapping[str, WorkerProcess]) -> None:
        self._workers = workers
        self._answer: Received[HandleAnswer] | None = None

    def receive(self, seconds: float) -> Iterator[tuple[WorkerProcess, Received[FromWorker] | None]]:
        """Messages that arrive within so many seconds, those that are forwarded excepted; None at a channel's end."""
        poll = select.poll()
        by_fd = {worker.channel.fileno(): worker for worker in self._workers.values() if not worker.gone}
        for fd, worker in by_fd.items():
            poll.register(fd, select.POLLIN | (select.POLLOUT if worker.channel.pending else 0))
        for fd, _ in poll.poll(seconds * 1000):
            worker = by_fd[fd]
            worker.channel.flush()
            yield from self._drain(worker)

    def request(
        self, holder: str, export: str, first: int, count: int, receive: Callable[[], None]
    ) -> Sequence[Handle]:
        """Handles for the coordinator; `receive` is called until the answer has come. Raises `MemtopoError`."""
        worker = self._workers[holder]
        worker.answer_due()
        worker.channel.send(HandleRequest(COORDINATOR, holder, export, first, count))
        while self._answer is None:
            if worker.over:
                raise MemtopoError(f"process {holder} is gone")
            receive()
        answer, self._answer = self._answer, None
        if error := answer.message.error:
            answer.close()
            raise MemtopoError(f"process {holder} does not give {export}: {error}")
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
                self._return(Received(received.message, received.handles))
            else:
                yield worker, received

    def _forward(self, requester: WorkerProcess, request: HandleRequest) -> None:
        holder = self._workers.get(request.holder)
        if holder is None or holder.gone:
            requester.channel.send(HandleAnswer(requester.label, error="it is gone"))
            return
        requester.request_sent()
        holder.answer_due()
        holder.channel.send(request)

    def _return(self, answer: Received[HandleAnswer]) -> None:
        requester = self._workers.get(answer.message.requester)
        if requester is None:
            self._answer = answer
            return
        requester.answer_received()
        requester.channel.send(answer.message, answer.handles)
