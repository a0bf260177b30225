"""The rest of a run: conductors elsewhere that have its other processes, and what this one exchanges with them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from memtopo.run.messages import HandleAnswer, HandleRequest
from memtopo.run.processes.gates import gate_descriptors
from memtopo.sharing.channel import Received

T = TypeVar("T")


class HandleRoutes(Protocol):
    """Ways of handles into the processes here, for requests and answers that come from elsewhere."""

    def request_from_elsewhere(self, request: HandleRequest) -> None:
        """Forward a request to a process here; the answer goes to `Peers.answer`."""

    def answer_from_elsewhere(self, answer: Received[HandleAnswer]) -> None:
        """Forward an answer, which belongs to the receiver, to the process here that waits for it."""


class Peers:
    """Conductors of the other processes of a run; this class is a run that has none.

    No method blocks. `failed` is the reason for which the run is to end, found elsewhere; empty as long as there is
    none. It may change at any time, and `descriptors` then become readable.
    """

    @property
    def failed(self) -> str:
        return ""

    @property
    def descriptors(self) -> Collection[int]:
        """Descriptors that are readable when `serve` has something to do."""
        return ()

    def serve(self, routes: HandleRoutes) -> None:
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
