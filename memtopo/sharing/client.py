"""The importer's end: asking a holder for its status, its handles, a check, or to let go."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Self

from memtopo.common.text import nearest
from memtopo.common.units import shorten
from memtopo.diagnostics.messages import COMPARED, LISTED, choose
from memtopo.plans.report import Checks
from memtopo.sharing import messages
from memtopo.sharing.connection import HolderConnection, reach
from memtopo.sharing.endpoints import Endpoint
from memtopo.sharing.errors import BadPacket, ExchangeError
from memtopo.sharing.messages import Fields
from memtopo.sharing.offers import Handle, Offer
from memtopo.sharing.sockets import reserve_descriptors
from memtopo.sharing.status import Importer, Notice, Released, Status
from memtopo.sharing.wire import MOST_FDS, close_all

TIMEOUT = 5.0
"""Seconds that a holder has for an answer."""

CHECK_TIMEOUT = 120.0
IN_FLIGHT = 64
"""Handles that are asked for at a time; each open descriptor pins its memory (fact 29)."""

MOST = 1_000_000
"""Entries that a list may have, so that a holder cannot go on for ever."""

LONGEST_SOURCE = 32 << 20
"""Characters of a source, likewise."""


class Client:
    """A connection to a holder, which is the importer's lease: while it is open, the importer is there.

    Not for several threads at once. Every method raises `ExchangeError`, which names both ends.
    """

    def __init__(self, talk: HolderConnection) -> None:
        self._talk = talk
        self._offers: Mapping[str, Offer] | None = None
        self.pid, self.uid = talk.peer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def status(self) -> Status:
        """What the holder says of itself, of what it offers and of its importers."""
        fields = _request(self._talk, "status")
        with _believed(self._talk):
            return Status(
                name=fields.text("name", 128),
                socket=self._talk.path,
                pid=self.pid,
                uid=self.uid,
                since=fields.seconds("since"),
                state=fields.word("state", "serving", "releasing"),
                deadline=fields.seconds_or_none("deadline"),
                spec=fields.text_or_none("spec"),
                machine=messages.machine(fields.object("machine")),
                offers=tuple(self.offers().values()),
                importers=tuple(_importers(self._talk)),
            )

    def offers(self) -> Mapping[str, Offer]:
        """What is exported, by name, asked for once: it does not change while the layout stands."""
        if self._offers is None:
            with _believed(self._talk):
                self._offers = _offers(self._talk)
        return self._offers

    def handles(
        self, export: str, first: int = 0, count: int | None = None, *, batch: int = IN_FLIGHT
    ) -> Iterator[Handle]:
        """Handles of an export in their order, `batch` at a time; whoever takes one closes it.

        What was not taken is closed when the iterator is. An export that is not there is told at once.
        """
        offer = self.offers().get(export)
        if offer is None:
            raise self._talk.fault("unknown", f"there is no export {shorten(export)!r}", _meant(export, self.offers()))
        stop = offer.count if count is None else first + count
        if not 0 <= first <= stop <= offer.count:
            told = f"export {export!r} has {offer.count:,} handles, counted from 0; {first:,} to {stop:,} are not there"
            raise self._talk.fault("range", told)
        return self._handles(offer, first, stop, min(max(batch, 1), MOST_FDS))

    def check(self, *, timeout: float = CHECK_TIMEOUT) -> Checks:
        """Let the holder look whether everything is as declared; it makes queries only."""
        fields = _request(self._talk, "check", timeout=timeout)
        with _believed(self._talk):
            return messages.checks(fields)

    def source(self) -> str:
        """What the layout can be drawn from, as the holder was told; nothing where it was not."""
        with _believed(self._talk):
            return _source(self._talk)

    def release(self, *, force: bool = False, grace: float = 5.0, wait: float = 60.0) -> Released:
        """Ask the holder to let go, and wait up to `wait` seconds until all is taken down.

        It refuses while others are bound to it over ipc; with `force` they are told, and have `grace` seconds.
        """
        patience = grace + self._talk.timeout
        fields = _request(self._talk, "release", timeout=patience, force=force, grace=grace)
        with _believed(self._talk):
            lost = tuple(messages.importer(each) for each in fields.objects("lost", messages.MOST))
            kept = tuple(messages.importer(each) for each in fields.objects("kept", messages.MOST))
            name = fields.text("name", 128)
        return Released(name, lost, kept, gone=self._talk.ended(wait))

    def notice(self, timeout: float = 0.0) -> Notice | None:
        """What the holder said unasked, if it did; waits for up to `timeout` seconds."""
        return self._talk.notice(timeout)

    def gone(self) -> bool:
        """Whether the holder has ended the connection, by its death or otherwise; nothing is waited for."""
        return self._talk.gone()

    def fileno(self) -> int:
        """The connection's descriptor: readable when a notice is there, or the holder is gone."""
        return self._talk.fileno()

    def close(self) -> None:
        """End the lease."""
        self._talk.close()

    def _handles(self, offer: Offer, first: int, stop: int, batch: int) -> Iterator[Handle]:
        while first < stop:
            count = min(batch, stop - first)
            if offer.descriptors:
                reserve_descriptors(count)
            with _believed(self._talk):
                left = _batch(self._talk, offer, first, count)
            first += len(left)
            try:
                while left:
                    yield left.popleft()
            finally:
                close_all(handle.fd for handle in left if handle.fd is not None)


def connect(place: Endpoint, *, timeout: float = TIMEOUT, allow_uids: Collection[int] = ()) -> Client:
    """Connect to the holder at a place (see `endpoint`).

    Raises `NoLayout` where nobody holds one there, `ExchangeError` where the holder is another user's or does not
    answer.
    """
    return Client(reach(place, timeout=timeout, allow_uids=allow_uids))


def _meant(word: str, offers: Mapping[str, Offer]) -> str:
    known = list(offers)
    if not known:
        return "it exports nothing"
    meant = nearest(word, known[:COMPARED])
    return choose(word, [meant] if meant else known[:LISTED])


@contextmanager
def _believed(talk: HolderConnection) -> Iterator[None]:
    """Read an answer: one that is not as it should be ends the connection, in an error that names both ends."""
    try:
        yield
    except BadPacket as error:
        raise talk.broken(error.message) from error


def _request(talk: HolderConnection, request: str, *, timeout: float | None = None, **more: object) -> Fields:
    """An answer that carries no descriptors. Raises `ExchangeError`."""
    packet = talk.ask(request, timeout=timeout, **more)
    if packet.fds:
        packet.close()
        raise talk.broken(f"the answer to '{request}' came with descriptors")
    return Fields(packet.message, f"the answer to '{request}'")


def _offers(talk: HolderConnection) -> dict[str, Offer]:
    """All offers by name, in their order. Raises `ExchangeError`."""
    found: dict[str, Offer] = {}
    total = 1
    while len(found) < total:
        before = len(found)
        answer = _request(talk, "offers", first=before)
        total = answer.number("total", 0, MOST)
        found |= {each.name: each for each in map(messages.offer, answer.objects("offers", messages.MOST))}
        if total and not before < len(found) <= total:
            raise BadPacket(f"it says that it has {total} offers, and gives others")
    return found


def _importers(talk: HolderConnection) -> Iterator[Importer]:
    """All importers, by their numbers. Raises `ExchangeError`."""
    after, more = 0, True
    while more:
        answer = _request(talk, "importers", after=after)
        more = answer.flag("more")
        for each in map(messages.importer, answer.objects("importers", messages.MOST)):
            if not after < each.id < MOST:
                raise BadPacket("its importers are not in their order")
            after = each.id
            yield each


def _source(talk: HolderConnection) -> str:
    """What a layout can be drawn from. Raises `ExchangeError`."""
    found: list[str] = []
    length, total = 0, 1
    while length < total:
        answer = _request(talk, "source", first=length)
        total = answer.number("total", 0, LONGEST_SOURCE + 1)
        found.append(answer.text("text", messages.TEXT))
        length += len(found[-1])
        if length > total or (total and not found[-1]):
            raise BadPacket(f"it says that its source has {total} characters, and gives others")
    return "".join(found)


def _batch(talk: HolderConnection, offer: Offer, first: int, count: int) -> deque[Handle]:
    """Handles from `first` on, at least one and at most `count`; they belong to the caller. Raises `ExchangeError`."""
    packet = talk.ask("handles", export=offer.name, first=first, count=count)
    try:
        answer = Fields(packet.message, "the answer to 'handles'")
        if messages.offer(answer.object("offer")) != offer or answer.number("first") != first:
            raise BadPacket(f"{offer.name!r} is not what its status said")
        told = list(answer.objects("handles", count))
        if not told or len(packet.fds) != (len(told) if offer.descriptors else 0):
            raise BadPacket(f"{len(told)} handles of {offer.name!r} came with {len(packet.fds)} descriptors")
        return deque(messages.handles(told, packet.fds, offer.via))
    except ExchangeError:
        packet.close()
        raise
