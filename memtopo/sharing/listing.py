"""Lists and handles that come in several packets, each looked at before anything of it is believed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from memtopo.sharing import messages
from memtopo.sharing.faults import BadPacket, ExchangeError
from memtopo.sharing.offers import Handle, Offer
from memtopo.sharing.reading import Fields
from memtopo.sharing.status import Importer
from memtopo.sharing.talking import Talk

MOST = 1_000_000
"""Entries that a list may have, so that a holder cannot go on for ever."""


LONGEST_SOURCE = 32 << 20
"""Characters of a source, likewise."""


def fields(talk: Talk, request: str, *, timeout: float | None = None, **more: object) -> Fields:
    """An answer that carries no descriptors. Raises `ExchangeError`."""
    packet = talk.ask(request, timeout=timeout, **more)
    if packet.fds:
        packet.close()
        raise talk.broken(f"the answer to '{request}' came with descriptors")
    return Fields(packet.message, f"the answer to '{request}'")


def offers(talk: Talk) -> dict[str, Offer]:
    """All offers by name, in their order. Raises `ExchangeError`."""
    found: dict[str, Offer] = {}
    total = 1
    while len(found) < total:
        before = len(found)
        answer = fields(talk, "offers", first=before)
        total = answer.number("total", 0, MOST)
        found |= {each.name: each for each in map(messages.offer, answer.objects("offers", messages.MOST))}
        if total and not before < len(found) <= total:
            raise BadPacket(f"it says that it has {total} offers, and gives others")
    return found


def importers(talk: Talk) -> Iterator[Importer]:
    """All importers, by their numbers. Raises `ExchangeError`."""
    after, more = 0, True
    while more:
        answer = fields(talk, "importers", after=after)
        more = answer.flag("more")
        for each in map(messages.importer, answer.objects("importers", messages.MOST)):
            if not after < each.id < MOST:
                raise BadPacket("its importers are not in their order")
            after = each.id
            yield each


def source(talk: Talk) -> str:
    """What a layout can be drawn from. Raises `ExchangeError`."""
    found: list[str] = []
    length, total = 0, 1
    while length < total:
        answer = fields(talk, "source", first=length)
        total = answer.number("total", 0, LONGEST_SOURCE + 1)
        found.append(answer.text("text", messages.TEXT))
        length += len(found[-1])
        if length > total or (total and not found[-1]):
            raise BadPacket(f"it says that its source has {total} characters, and gives others")
    return "".join(found)


def batch(talk: Talk, offer: Offer, first: int, count: int) -> deque[Handle]:
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
