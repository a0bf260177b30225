"""Workers in threads of this process, at whose other end a test is the conductor."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, get_args

from memtopo import machine as machines
from memtopo.driver.kernels import KernelDriver
from memtopo.drivers import target
from memtopo.drivers.sim import SimDriver
from memtopo.kinds.step import Phase
from memtopo.language import SpecText
from memtopo.plans.report import Report
from memtopo.run import messages
from memtopo.run.messages import FromWorker, HandleAnswer, HandleRequest, ToWorker
from memtopo.run.processes.gates import Gate
from memtopo.run.processes.worker import Worker
from memtopo.sharing.channel import Channel, Received
from tests.helpers.child_process import PATIENCE
from tests.helpers.machines import invented
from tests.helpers.processes import open_descriptors

MACHINE = invented(2)
GOOD = messages.Done(as_declared=True, safe=True)
TO_WORKER = [each for each in get_args(ToWorker) if isinstance(each, type)]

Wrap = Callable[[str, KernelDriver], KernelDriver]


def start_message(text: str, label: str, check: str = "fast", timeout: float = PATIENCE) -> messages.StartWorker:
    """First message to the worker of a process of a spec."""
    return messages.StartWorker(
        process=label,
        spec=SpecText("two.yaml", text),
        machine=machines.dump(MACHINE),
        machine_name="two",
        simulated=True,
        visible=(),
        timeout=timeout,
        gpus=tuple(target.uuids(MACHINE)),
        sockets={},
        allow_uids=(),
        check=check,  # type: ignore[arg-type]
        seed=7,
    )


class Conversation:
    """The conductor's end of a worker of one process of a spec. `signals` are those that reached the worker.

    `begun` and `steps` count the steps of the phase that it began last, as begun and as done.
    """

    def __init__(self, text: str, label: str, wrap: Wrap = lambda _, driver: driver) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.text, self.label, self.signals = text, label, list[int]()
        self.begun = self.steps = 0
        self.channel = Channel[FromWorker](ours, get_args(FromWorker))
        gates = Gate(*os.pipe()), Gate(*os.pipe())
        worker = Worker(Channel[ToWorker](theirs, TO_WORKER), gates, lambda: self.signals[0] if self.signals else 0)
        self._driver: KernelDriver | None = None

        def wrapped(label: str, driver: KernelDriver) -> KernelDriver:
            self._driver = driver
            return wrap(label, driver)

        self.thread = threading.Thread(target=worker.work, args=(wrapped,))
        self.thread.start()

    def start(self, check: str = "fast", timeout: float = PATIENCE) -> object:
        """Send the first message, and return the answer."""
        self.channel.send(start_message(self.text, self.label, check, timeout))
        return self.hear()

    def receive(self) -> Received[Any] | None:
        """Return the next message that is no heartbeat; None at the end of the channel."""
        while True:
            assert self.channel.wait(PATIENCE)
            received = self.channel.receive()
            if received is None or not isinstance(received.message, messages.StepsDone):
                return received
            self.steps += received.message.steps
            self.begun += received.message.begun

    def hear(self) -> object:
        """Return the next message, without its handles."""
        received = self.receive()
        if received is None:
            return None
        received.close()
        return received.message

    def command(self, command: object) -> object:
        """Send a command, and return the next message."""
        self.channel.send(command)
        return self.hear()

    def build(self) -> dict[Phase, tuple[int, int]]:
        """Have it build all phases, and return the steps that it began and did in each."""
        found = {}
        for phase in Phase:
            self.begun = self.steps = 0
            assert self.command(messages.BuildPhase(phase)) == GOOD
            found[phase] = self.begun, self.steps
        return found

    def end(self) -> Report:
        """Have it take down, and return its report, after which nothing follows."""
        finished = self.command(messages.TakeDown())
        assert isinstance(finished, messages.WorkerFinished), finished
        assert self.receive() is None
        return finished.report

    def close(self) -> None:
        self.channel.close()
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()
        if isinstance(self._driver, SimDriver):  # the worker leaves that to the end of its process
            self._driver.close()


@contextmanager
def conversations() -> Iterator[Callable[..., Conversation]]:
    """Yield a function that starts a worker; at the end all are gone, with all that they had open."""
    before = open_descriptors()
    with ExitStack() as stack:

        def start(*arguments: Any) -> Conversation:
            found = Conversation(*arguments)
            stack.callback(found.close)
            return found

        yield start
    assert open_descriptors() == before


def command_all(workers: dict[str, Conversation], command: object) -> dict[str, object]:
    """Send a command to all workers, route their handles, and return the next other message of each by label."""
    for worker in workers.values():
        worker.channel.send(command)
    found: dict[str, object] = {}
    while len(found) < len(workers):
        for label, worker in workers.items():
            if worker.channel.wait(0.001) and (received := worker.receive()):
                if isinstance(received.message, HandleRequest):
                    workers[received.message.holder].channel.send(received.message)
                elif isinstance(received.message, HandleAnswer):
                    workers[received.message.requester].channel.send(received.message, received.handles)
                else:
                    found[label] = received.message
    return {label: found[label] for label in workers}
