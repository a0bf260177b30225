"""Serving in a thread, while the program that started it goes on."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from memtopo.common.signals import deferred


class Background:
    """Thread that serves until it is stopped; `wake` can be read from then on. `error` is that which ended it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._stopping, self._ready = threading.Event(), threading.Event()
        self.wake: socket.socket | None = None
        self.served = False
        """True once clients could connect."""
        self.over = threading.Event()
        """Set once the thread has done all its work."""
        self.error: BaseException | None = None

    @property
    def stopping(self) -> bool:
        """True once the thread is to stop."""
        return self._stopping.is_set()

    def report_ready(self) -> None:
        """Let the program go on: clients can connect."""
        self.served = True
        self._ready.set()

    @contextmanager
    def running(self, serve: Callable[[], object]) -> Iterator[None]:
        """Serve in the thread for the duration of a `with`, which begins when it is ready or over. Raises its error."""
        ours, self.wake = socket.socketpair()
        with ours, self.wake:
            self.wake.setblocking(False)  # noqa: FBT003 the signature is the library's
            thread = threading.Thread(target=self._run, args=(serve,), name=self._name, daemon=True)
            try:
                with deferred():  # Ctrl-C is raised where it stops the thread
                    thread.start()
                self._ready.wait()
                if self.error:
                    raise self.error
                yield
            finally:
                self._stopping.set()
                ours.send(b"\0")
                if thread.ident:
                    thread.join()

    def _run(self, serve: Callable[[], object]) -> None:
        try:
            serve()
        except BaseException as error:  # noqa: BLE001 it is raised again in the program's thread
            self.error = error
        finally:
            self.over.set()
            self._ready.set()
