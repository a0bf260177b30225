"""A server of workers, which imports what they need once and forks each of them, before any driver is initialised.

The imports of a worker take a third of a second of processor time, a fork some milliseconds; it is safe before `cuInit`
(fact 33). The server has one thread and opens no driver. It is the parent of the workers: they end with it, and it ends
with the conductor, for which it waits for them.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
from contextlib import suppress
from importlib import import_module
from typing import get_args

from memtopo.common.processes import die_with_parent, inherited_socket
from memtopo.kinds import KINDS
from memtopo.run import messages
from memtopo.run.processes import worker
from memtopo.run.processes.worker_server import end_of
from memtopo.sharing.channel import Envelope
from memtopo.sharing.wire import adapter_of

LARGEST, MOST_DESCRIPTORS = 64 << 10, 16
"""Bytes of a request, and descriptors beside it."""


def main(driver: str, descriptor: str) -> None:
    """Answer requests until the other end is closed: the process id of a new worker, or the status of an old one.

    `driver` is the module of the workers' driver. A fork that fails is answered with its negative error number. In a
    worker, return once its work is done.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as sent to all processes of a service, which the conductor ends
    sock, server = inherited_socket(descriptor), os.getpid()
    _prepare(driver)
    while (received := socket.recv_fds(sock, LARGEST, MOST_DESCRIPTORS))[0]:
        request, descriptors = json.loads(received[0]), received[1]
        answer = end_of(request["ended"], request["seconds"]) if "ended" in request else _fork()
        if answer == 0 and os.getpid() != server:
            sock.close()
            _work(server, request["environment"], descriptors)
            return
        for fd in descriptors:
            os.close(fd)
        sock.send(answer.to_bytes(4, "little", signed=True))


def _prepare(driver: str) -> None:
    """Import and build what workers need later: their driver, the steps of all kinds, and the adapters of messages."""
    for module in (driver, *(f"{kind.__module__}.steps" for kind in KINDS)):
        with suppress(ImportError):  # the worker says what is missing
            import_module(module)
    for message in (Envelope, *get_args(messages.ToWorker), *get_args(messages.FromWorker)):
        adapter_of(message)
    gc.freeze()  # at its end, each worker would look for cycles in all of it


def _fork() -> int:
    try:
        return os.fork()
    except OSError as error:
        return -(error.errno or 1)


def _work(server: int, environment: dict[str, str], descriptors: list[int]) -> None:
    die_with_parent(server)
    os.environ.update(environment)
    worker.main(*map(str, descriptors))
