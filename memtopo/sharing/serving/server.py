"""Serving given descriptors to whoever imports them, in a thread beside the program's own loop."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from memtopo.common.errors import UsageError
from memtopo.plans.report import MachineLine
from memtopo.sharing import Claim, Place, claim, place
from memtopo.sharing.holder import About, Held, hold
from memtopo.sharing.serving.given import ExternalMemory, Given, GivenShelf, Semaphore


class Serving:
    """Exports that are served while a `with` lasts, by a thread, so that the program's own loop goes on."""

    def __init__(self, where: Place, shelf: GivenShelf, machine: MachineLine, allow_uids: Collection[int] = ()) -> None:
        self._place, self._shelf, self._machine, self._allowed = where, shelf, machine, allow_uids
        self._stack = ExitStack()
        self._over = threading.Event()
        self._ready = threading.Event()
        self._fault: BaseException | None = None
        self._held: Held | None = None

    @property
    def path(self) -> str:
        """The socket's path."""
        return self._place.path

    @property
    def released(self) -> bool:
        """Whether somebody asked for its end (`memtopo release`): nothing is served any more."""
        return self._held is not None and self._held.why == "release"

    def taken(self, name: str, timeout: float | None = None) -> bool:
        """Wait until somebody asks for an export, for at most `timeout` seconds; whether somebody did.

        Raises `UsageError` where there is none of this name.
        """
        if name not in self._shelf.taken:
            raise UsageError(f"nothing is served as {name!r}")
        return self._shelf.taken[name].wait(timeout)

    def __enter__(self) -> Self:
        """Begin. Raises `ExchangeError` where the place is taken or there can be no socket, `UsageError`."""
        with ExitStack() as stack:
            stack.enter_context(self._shelf.open())
            claimed = stack.enter_context(claim(self._place))
            ours, theirs = socket.socketpair()
            stack.enter_context(theirs)
            stack.enter_context(ours)
            theirs.setblocking(False)  # noqa: FBT003 the signature is the library's
            thread = threading.Thread(target=self._run, args=(claimed, theirs), name="memtopo-serve", daemon=True)
            thread.start()
            stack.callback(thread.join)
            stack.callback(self._end, ours)
            self._ready.wait()
            if self._fault:
                raise self._fault
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stack.close()
        if self._fault and kind is None:
            raise self._fault

    def run(self, stop: Callable[[], int], *, ready: Callable[[], None] = lambda: None) -> Held:
        """Serve in this thread instead, until `stop()` answers a signal's number, or a release. Not within a `with`.

        In the main thread any signal has `stop` asked at once, else it is asked five times a second.
        """
        with self._shelf.open(), claim(self._place) as claimed:
            return self._hold(claimed, stop, ready)

    def _run(self, claimed: Claim, wake: socket.socket) -> None:
        try:
            self._held = self._hold(claimed, lambda: int(self._over.is_set()), self._ready.set, wake)
        except BaseException as error:  # noqa: BLE001 it is raised where it can be heard
            self._fault = error
        finally:
            self._ready.set()

    def _hold(
        self,
        claimed: Claim,
        stop: Callable[[], int],
        ready: Callable[[], None],
        wake: socket.socket | None = None,
    ) -> Held:
        about = About(self._place.name or Path(self._place.file).stem, None, self._machine)
        terms = {"stop": stop, "ready": ready, "wake": wake}
        return hold(self._shelf, claimed, about, allow_uids=self._allowed, **terms)  # type: ignore[arg-type]

    def _end(self, ours: socket.socket) -> None:
        self._over.set()
        ours.send(b"\0")


def serve(
    where: str | os.PathLike[str],
    exports: Mapping[str, Given],
    *,
    allow_uids: Collection[int] = (),
) -> Serving:
    """Offer memory and semaphores of another API to memtopo's layouts, for as long as a `with` lasts.

    `where` is the path of a socket, or a name, as a layout has one; a program that `--with` starts finds its path in
    MEMTOPO_SOCKET. Whoever imports an export gets a new descriptor of it; those that are given here are copied on
    entering, and stay the caller's to close. `allow_uids` are other users that may import. Raises `UsageError` where
    something is not what it should be; on entering, `ExchangeError` where the place is taken.
    """
    text = os.fspath(where)
    if strange := [name for name, each in exports.items() if not isinstance(each, ExternalMemory | Semaphore)]:
        raise UsageError(f"{strange[0]!r} is neither ExternalMemory nor a Semaphore")
    shelf = GivenShelf(dict(exports))
    gpus = dict.fromkeys(offer.location for offer in shelf.offers() if offer.gpu)
    line = MachineLine("local", simulated=False, devices=tuple(gpus), driver="another API's")
    return Serving(place(socket=text) if "/" in text else place(text), shelf, line, allow_uids)
