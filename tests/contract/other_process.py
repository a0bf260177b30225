"""A driver in another process. Run as a script, this file is that process."""

from __future__ import annotations

import os
import pickle
import select
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from memtopo.common.mapped_files import map_shared, unmap
from memtopo.driver.ledger import Ledger
from memtopo.driver.protocol import Driver
from memtopo.driver.types import DriverError, HandleType
from tests.helpers.forwarding import AnyDriver
from tests.helpers.python_process import PythonProcess

ROOT = Path(__file__).parent.parent.parent
EXPORT, IMPORT = "mem_export_to_shareable_handle", "mem_import_from_shareable_handle"
EXPORTS = (EXPORT, "mem_get_handle_for_address_range", "mem_pool_export_to_shareable_handle")
IMPORTS = (IMPORT, "mem_pool_import_from_shareable_handle")
HANDED_OVER = ("import_external_memory", "import_external_semaphore")
"""Calls that consume a descriptor: the copy in the other process is consumed, the argument stays open here."""

MAP = "map_path"
UNMAP = "unmap"
"""Calls of the system, for memory that the driver registers."""

PATIENCE = 120.0  # seconds for one call


class Other(AnyDriver):  # type: ignore[misc]
    """A driver whose calls are made by another process, which is started and never forked (fact 33).

    It is a simulator of the machine in JSON, or without one the real driver. File descriptors go from the
    one process to the other, as a driver's user would send them.
    """

    def __init__(self, machine: str | None, visible: str | None = None) -> None:
        hidden = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel.settimeout(PATIENCE)
        with theirs:
            self._process = PythonProcess(
                [sys.executable, str(Path(__file__)), str(theirs.fileno())],
                env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])} | hidden,
                pass_fds=[theirs.fileno()],
            )
        try:
            self.ask("open", machine)
            self.answer()
        except BaseException:
            self.give_up()
            raise

    def __getattr__(self, method: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.ask(method, *args, **kwargs)
            return self.answer()

        return call

    def ask(self, method: str, *args: Any, **kwargs: Any) -> None:
        """Send a call without waiting for its answer."""
        fds = [args[0]] if method in HANDED_OVER or (method in IMPORTS and args[1] == HandleType.FD) else []
        _send(self._channel, (method, args, kwargs), fds)

    def await_answer(self) -> None:
        """Wait for an answer, and leave it unread."""
        assert select.select([self._channel], [], [], PATIENCE)[0]

    def answer(self) -> Any:
        """Return the result of the call, or raise its exception."""
        message, fds = _receive(self._channel)
        assert message is not None, "the other process is gone"
        refused, value = message
        if refused:
            raise DriverError(*refused)
        return fds[0] if fds else value

    def is_silent(self, seconds: float = 0.5) -> bool:
        """Return whether no answer comes within a number of seconds."""
        return not select.select([self._channel], [], [], seconds)[0]

    def fate(self) -> int:
        """Wait for the process to end; return its exit status, or the negated number of its signal."""
        return self._process.wait(PATIENCE)

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        """Kill the process, which releases nothing itself, and wait for it."""
        self._process.kill()
        self._process.wait(PATIENCE)

    def end(self) -> None:
        """End the process unless it was killed; it must have nothing open, and must not have failed."""
        with self._channel:
            if self._process.poll() is None:
                self.ask("close")
                left = self.answer()
                assert self._process.wait(PATIENCE) == 0
                assert not left, f"the other process left {left}"

    def give_up(self) -> None:
        """End the process in any state."""
        self._channel.close()
        self.kill()


def _send(channel: socket.socket, message: object, fds: Sequence[int] = ()) -> None:
    socket.send_fds(channel, [pickle.dumps(message)], list(fds))


def _receive(channel: socket.socket) -> tuple[Any, list[int]]:
    data, fds, _, _ = socket.recv_fds(channel, 1 << 18, 8, socket.MSG_CMSG_CLOEXEC)
    return (pickle.loads(data) if data else None), fds


def serve(channel: socket.socket) -> None:
    """Make the received calls until a request to close or the end of the connection."""
    (_, (machine,), _), _ = _receive(channel)
    driver = _opened(machine)
    _send(channel, (None, None))
    while (request := _receive(channel))[0] is not None:
        (method, args, kwargs), fds = request
        if method == "close":
            _send(channel, (None, None if driver.empty else driver.counts()))
            return
        _answer(channel, driver, method, (*fds, *args[len(fds) :]), kwargs)
        for fd in () if method in HANDED_OVER else fds:
            os.close(fd)


def map_path(path: str, size: int) -> int:
    """Map a file of another process."""
    fd = os.open(path, os.O_RDWR)
    try:
        return map_shared(fd, 0, size, writable=True)
    finally:
        os.close(fd)


def _answer(channel: socket.socket, driver: Driver, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    try:
        system: dict[str, Callable[..., Any]] = {MAP: map_path, UNMAP: unmap}
        call = system[method] if method in system else getattr(driver, method)
        value = call(*args, **kwargs)
    except DriverError as error:
        _send(channel, ((error.call, error.name, error.reason), None))
        return
    if method in EXPORTS and isinstance(value, int):
        _send(channel, (None, None), [value])
        os.close(value)
    else:
        _send(channel, (None, value))


def _opened(machine: str | None) -> Ledger:
    if machine is None:
        from memtopo.drivers.cuda.driver import CudaDriver

        ledger = Ledger(CudaDriver())
    else:
        from memtopo.drivers.sim import SimDriver
        from memtopo.machine import parse

        ledger = Ledger(SimDriver(parse(machine.encode(), "the test's machine")))
    ledger.init()
    return ledger


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
