"""Holding a layout: the socket, systemd, the limits, and a loop that serves until the end."""

from __future__ import annotations

import os
import selectors
import socket
import time
from collections.abc import Callable, Collection

from memtopo.sharing.claims import Claim
from memtopo.sharing.holder.clients import SPARE
from memtopo.sharing.holder.loop import ServerLoop, Terms, woken
from memtopo.sharing.holder.responses import Answers
from memtopo.sharing.holder.state import Ending, HolderInfo, HoldResult
from memtopo.sharing.holder.systemd import notify
from memtopo.sharing.offers import ExportProvider
from memtopo.sharing.sockets import reserve_descriptors
from memtopo.sharing.wire import MOST_FDS

MOST_CLIENTS = 128
_OWN = 16  # descriptors that the driver, the selector and the like may need beside
_LEAST = _OWN + 4 * SPARE


def hold(
    shelf: ExportProvider,
    claim: Claim,
    about: HolderInfo,
    *,
    stop: Callable[[], int],
    lasting: float | None = None,
    grace: float = 5.0,
    patience: float = 10.0,
    allow_uids: Collection[int] = (),
    ready: Callable[[], None] = lambda: None,
    wake: socket.socket | None = None,
) -> HoldResult:
    """Serve a shelf at a claimed place until `stop()` gives a signal's number, a release, or `lasting` seconds.

    Then those who use something over ipc are told, and have `grace` seconds to let go. A client that does not read for
    `patience` seconds is shown out. `ready` is called once clients can connect. Where `wake` can be read, `stop` is
    asked at once, as it is after a signal in the main thread. The claim stays the caller's, to be closed when
    everything is taken down. Raises `ExchangeError` where there can be no socket or too few descriptors.
    """
    batch, most = _shares()
    began = time.monotonic()
    others = {*allow_uids} - {os.geteuid()}
    terms = Terms(most, patience, others, stop, grace)
    with (
        claim.listen(mode=_mode(claim, others)) as listener,
        selectors.DefaultSelector() as selector,
        woken() as wakeup,
    ):
        answers = Answers(shelf, about, batch=batch, deadline=None if lasting is None else time.time() + lasting)
        loop = ServerLoop(selector, answers, Ending(None if lasting is None else began + lasting), terms)
        loop.listen(listener, [each for each in (wakeup, wake) if each])
        loop.notes.append(notify("READY=1", f"STATUS=holding {about.name}, {len(answers.offers)} exports"))
        try:
            ready()
            loop.run()
            return loop.end(claim, about.name, time.monotonic() - began)
        finally:
            claim.hide()
            loop.close()


def _shares() -> tuple[int, int]:
    """How many descriptors go out at a time, and how many clients there may be."""
    free = reserve_descriptors(_OWN + MOST_CLIENTS + MOST_FDS, _LEAST) - _OWN
    batch = min(MOST_FDS, max(free // 2, free - MOST_CLIENTS))
    return batch, min(MOST_CLIENTS, free - batch)


def _mode(claim: Claim, others: Collection[int]) -> int:
    """Of a socket that stands in a folder of the user's choice, and that others may use: they are told by their uid."""
    return 0o666 if others and claim.place.name is None else 0o600
