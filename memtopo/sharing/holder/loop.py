"""The holder's loop: one thread, nothing in it waits for a client, and between any two events it looks for its end."""

from __future__ import annotations

import selectors
import signal
import socket
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial

from memtopo.common.errors import MemtopoError
from memtopo.sharing import messages
from memtopo.sharing.claims import Claim
from memtopo.sharing.errors import BadPacket
from memtopo.sharing.holder.clients import Clients, Connection
from memtopo.sharing.holder.responses import Answers, Later, attached, request_of, too_many_in_flight
from memtopo.sharing.holder.state import Ending, HoldResult, Why
from memtopo.sharing.holder.systemd import notify
from memtopo.sharing.messages import Fields, refusal
from memtopo.sharing.wire import Packet

LONGEST_GRACE = 3600.0
_GLANCE = 60.0  # seconds after which it looks around though nothing happened
_BLIND = 0.2  # the same where no signal wakes it
_DEAF = 1.0  # seconds for which nobody is let in where there are no descriptors
_LONGEST = 0.5  # whoever is asked whether to stop may have to look for it: a process that died sends no signal
_SOON = 0.01


@dataclass(frozen=True, slots=True)
class Terms:
    """How a layout is served: to how many, with what `patience` and `grace` (seconds), to whom else, and until when."""

    most: int
    patience: float
    allow_uids: Collection[int]
    stop: Callable[[], int]
    grace: float


class ServerLoop:
    """Serves until a signal, a release or a deadline."""

    def __init__(self, selector: selectors.BaseSelector, answers: Answers, ending: Ending, terms: Terms) -> None:
        self._selector, self._answers, self._ending, self._terms = selector, answers, ending, terms
        self._clients = Clients(
            selector, self._talk, most=terms.most, patience=terms.patience, allow_uids=terms.allow_uids
        )
        self._later: list[tuple[Connection, Fields, float]] = []
        self._deaf_until: float | None = None
        self._glance = _BLIND
        self.notes: list[str | None] = []

    def listen(self, listener: socket.socket, wakeups: Collection[socket.socket]) -> None:
        """Take connections from a socket from now on, and wake up for the others, where there are any."""
        listener.setblocking(False)  # noqa: FBT003 the signature is the library's
        self._listener = listener
        self._selector.register(listener, selectors.EVENT_READ, lambda _: self._accept())
        for wakeup in wakeups:
            self._glance = _GLANCE
            self._selector.register(wakeup, selectors.EVENT_READ, partial(drain, wakeup))

    def run(self) -> None:
        """Serve until the end has come and nobody has to be waited for any more."""
        while True:
            now = time.monotonic()
            if number := self._terms.stop():
                self._begin("signal", self._terms.grace, number)
            elif self._ending.due(now):
                self._begin("deadline", self._terms.grace)
            if self._ending.why and self._ending.over(now, bound=bool(self._bound())):
                return
            for key, events in self._selector.select(self._nap(now)):
                key.data(events)
            self._try_again(time.monotonic())
            self._clients.mind(time.monotonic())

    def end(self, claim: Claim, name: str, seconds: float) -> HoldResult:
        """Tell those who asked for it, end all connections but theirs, and give what came of it."""
        assert self._ending.why
        lost = tuple(each.importer(self._answers.offers) for each in self._bound())
        others = [each for each in self._clients.all() if not each.waiting]
        kept = tuple(each for each in self._answers.importers(others) if not each.bound)
        told = {"name": name, "lost": messages.importers(lost), "kept": messages.importers(kept)}
        for each in [each for each in self._clients.all() if each.waiting]:
            with suppress(OSError):
                each.say({"ok": told})
            self._clients.forget(each)
            claim.keep_open(each.sock)
        held = self._ending.why, self._ending.signal, seconds, self._clients.count, self._answers.served
        return HoldResult(*held, lost, kept, tuple(filter(None, self.notes)))

    def close(self) -> None:
        """End all connections."""
        for each in tuple(self._clients.all()):
            self._clients.drop(each)

    def _nap(self, now: float) -> float:
        waits = [self._glance, self._terms.patience / 2, _LONGEST, self._ending.left(now)]
        soon = [_SOON if self._later else None, None if self._deaf_until is None else _DEAF]
        return min(wait for wait in [*waits, *soon] if wait is not None)

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError:  # no descriptor is free just now: those who wait for a connection wait in the queue
            self._selector.unregister(self._listener)
            self._deaf_until = time.monotonic() + _DEAF
            return
        self._clients.admit(sock)

    def _talk(self, connection: Connection, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE:
                connection.flush()
            elif not self._hear(connection):
                return
        except BlockingIOError:
            return
        except OSError:
            self._clients.drop(connection)
            return
        self._clients.watch(connection)

    def _hear(self, connection: Connection) -> bool:
        """Take a packet and answer it; whether the connection is to be waited for."""
        try:
            packet = connection.receive()
            if packet is None:
                self._clients.drop(connection)
                return False
            return self._answer(connection, _fields(packet))
        except BadPacket as error:
            connection.ending = True
            connection.say(refusal(error))
        return True

    def _answer(self, connection: Connection, fields: Fields, until: float | None = None) -> bool:
        now = time.monotonic()
        try:
            self._carry_out(connection, fields)
        except Later:
            if until is not None and now >= until:
                connection.say(refusal(too_many_in_flight()))
                return True
            self._later.append((connection, fields, until or now + self._terms.patience))
            self._clients.pause(connection)
            return False
        except BadPacket:
            raise
        except MemtopoError as error:
            connection.say(refusal(error))
        return True

    def _carry_out(self, connection: Connection, fields: Fields) -> None:
        request = request_of(fields)
        if request == "release":
            self._release(connection, fields)
            return
        if request == "handles":
            self._clients.vet_importer(connection)
        self._answers.answer(connection, request, fields, self._clients.all())

    def _release(self, connection: Connection, fields: Fields) -> None:
        fields.only("request", "force", "grace")
        force, grace = fields.flag("force"), fields.seconds("grace", LONGEST_GRACE)
        bound = [each for each in self._bound() if each is not connection]
        if bound and not force:
            raise attached(bound)
        connection.waiting = True
        self._begin("release", grace)

    def _begin(self, why: Why, grace: float, signal: int = 0) -> None:
        if not self._ending.begin(why, time.monotonic() + grace, signal):
            return
        self._answers.releasing = True
        self.notes.append(notify("STOPPING=1"))
        for each in tuple(self._clients.all()):
            if each.attached and not each.waiting:
                try:
                    each.say({"notice": "releasing", "grace": grace})
                    self._clients.watch(each)
                except OSError:
                    self._clients.drop(each)

    def _bound(self) -> list[Connection]:
        """Those who lose what they use if the layout goes, and did not ask for that themselves."""
        offers = self._answers.offers
        return [each for each in self._clients.all() if not each.waiting and each.bound(offers)]

    def _try_again(self, now: float) -> None:
        later, self._later = self._later, []
        for connection, fields, until in later:
            if connection not in self._clients.all():
                continue
            self._clients.resume(connection)
            try:
                again = self._answer(connection, fields, until)
            except (OSError, BadPacket):
                self._clients.drop(connection)
                continue
            if again:
                self._clients.watch(connection)
        if self._deaf_until is not None and now >= self._deaf_until:
            self._deaf_until = None
            self._selector.register(self._listener, selectors.EVENT_READ, lambda _: self._accept())


def _fields(packet: Packet) -> Fields:
    if packet.fds:
        packet.close()
        raise BadPacket("a request came with descriptors")
    return Fields(packet.message, "the request")


@contextmanager
def woken() -> Iterator[socket.socket | None]:
    """A socket that a signal makes readable; None outside of the main thread, where Python lets nobody hear of one."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)  # noqa: FBT003 the signature is the library's
        theirs.setblocking(False)  # noqa: FBT003 likewise
        try:
            before = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        except ValueError:
            yield None
            return
        try:
            yield ours
        finally:
            signal.set_wakeup_fd(before)


def drain(sock: socket.socket, _events: int = 0) -> None:
    """Forget the signals that came; the flag that their handler set is what counts."""
    with suppress(BlockingIOError):
        while sock.recv(4096):
            pass
