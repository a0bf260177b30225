"""Holder of a layout: serves its exports to other processes until a signal, a release, or a deadline.

This module has its socket, its limits of descriptors, and a thread for it; `loop` has its event loop.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from memtopo.common.signals import deferred, signal_wakeup
from memtopo.sharing.claims import Claim
from memtopo.sharing.holder.clients import SPARE
from memtopo.sharing.holder.loop import INTERVAL, HoldTerms, ServerLoop
from memtopo.sharing.holder.metrics import MOST_CONNECTIONS
from memtopo.sharing.holder.responses import Responder
from memtopo.sharing.holder.state import HolderInfo, HoldSummary, Shutdown, Supervision
from memtopo.sharing.offers import ChangeableLayout, ExportProvider
from memtopo.sharing.sockets import SYSTEM, System, reserve_descriptors
from memtopo.sharing.wire import MOST_FDS

MOST_CLIENTS = 264
_OWN = 16  # descriptors that the driver, the selector and others may need
_LEAST = _OWN + 4 * SPARE
_MOST_KEPT = 1024  # handles of objects that are lent again and again


def hold(
    provider: ExportProvider,
    claim: Claim,
    info: HolderInfo,
    *,
    stop: Callable[[], int],
    lasting: float | None = None,
    grace: float = 5.0,
    patience: float = 10.0,
    allow_uids: Collection[int] = (),
    ready: Callable[[], None] = lambda: None,
    wake: socket.socket | None = None,
    changeable: ChangeableLayout | None = None,
    interval: float = INTERVAL,
    supervision: Supervision | None = None,
    finished: Callable[[], bool] = lambda: True,
    system: System = SYSTEM,
) -> HoldSummary:
    """Serve exports at a claimed endpoint until `stop()` returns a signal's number, a release, or `lasting` seconds.

    Then clients that use an export over ipc get a notice, and have `grace` seconds. A client that does not read its
    answers for `patience` seconds is disconnected. `ready` is called once clients can connect. `stop` is called at
    least every `interval` seconds, at once when `wake` is readable, and after a signal in the main thread. Clients of
    this user may change the layout if it is `changeable`, which is then the provider, too. After the end of the hold
    they are answered until `finished` returns true. The caller closes the claims after the teardown. Raises
    `ExchangeError` if there can be no socket, or if there are too few descriptors.
    """
    supervision = supervision or Supervision()
    batch, max_clients, keep = _limits(provider, supervision)
    began, deadline = system.now(), None if lasting is None else system.epoch() + lasting
    responder = Responder(
        provider, info, supervision, batch=batch, keep=keep, deadline=deadline, changeable=changeable, system=system
    )
    terms = HoldTerms(max_clients, patience, {*allow_uids} - {os.geteuid()}, stop, grace, interval, system, finished)
    with _listening(claim, responder, Shutdown(None if lasting is None else began + lasting), terms, wake) as loop:
        loop.notify_ready()
        ready()
        responder.record_serving(claim.endpoint.path)
        loop.run()
        return loop.finish(claim, system.now() - began)


@contextmanager
def _listening(
    claim: Claim, responder: Responder, shutdown: Shutdown, terms: HoldTerms, wake: socket.socket | None
) -> Iterator[ServerLoop]:
    """Yield a loop that accepts clients at the claimed endpoint, and publishes what is supervised.

    Its socket and connections end with the block.
    """
    mode, metrics = _mode(claim, terms.allow_uids), responder.supervision.metrics
    with claim.listen(mode=mode) as listener, terms.system.selector() as selector, signal_wakeup() as wakeup:
        loop = ServerLoop(selector, responder, shutdown, terms)
        loop.listen(listener, [each for each in (wakeup, wake) if each])
        try:
            at = metrics.claim if metrics else None
            where = at.listen(mode=_mode(at, terms.allow_uids), kind=socket.SOCK_STREAM) if at else None
            loop.publish(where, claim.endpoint.path)
            yield loop
        finally:
            claim.unlink_socket()
            loop.close()


def _limits(provider: ExportProvider, supervision: Supervision) -> tuple[int, int, int]:
    """Return the limits of descriptors in one answer, of clients, and of handles of lent objects that stay open."""
    wanted = min(sum(each.lends.kept for each in provider.offers() if each.lends), _MOST_KEPT)
    own = _OWN + (MOST_CONNECTIONS if supervision.metrics and supervision.metrics.claim else 0)
    free = reserve_descriptors(own + MOST_CLIENTS + MOST_FDS + wanted, own + _LEAST - _OWN) - own
    keep = max(min(free - MOST_CLIENTS - MOST_FDS, wanted), 0)
    batch = min(MOST_FDS, max((free - keep) // 2, free - keep - MOST_CLIENTS))
    return batch, min(MOST_CLIENTS, free - keep - batch), keep


def _mode(claim: Claim, others: Collection[int]) -> int:
    """Return the mode of the socket: open to all only in a named folder; then the uid of each client is checked."""
    return 0o666 if others and claim.endpoint.name is None else 0o600


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

        def run() -> None:
            try:
                serve()
            except BaseException as error:  # noqa: BLE001 it is raised again in the program's thread
                self.error = error
            finally:
                self.over.set()
                self._ready.set()

        ours, self.wake = socket.socketpair()
        with ours, self.wake:
            self.wake.setblocking(False)  # noqa: FBT003 the signature is the library's
            thread = threading.Thread(target=run, name=self._name, daemon=True)
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
