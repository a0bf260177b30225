"""Requests of a client to a holder, and their answers: the offers, importers and texts that take several packets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from memtopo.sharing import messages
from memtopo.sharing.connection import HolderConnection
from memtopo.sharing.errors import BadPacket
from memtopo.sharing.messages import Fields
from memtopo.sharing.offers import Offer
from memtopo.sharing.status import Importer


@contextmanager
def validated(connection: HolderConnection) -> Iterator[None]:
    """Read an answer; an invalid one ends the connection, and the error names both ends."""
    try:
        yield
    except BadPacket as error:
        raise connection.untrusted(error.message) from error


def request(connection: HolderConnection, name: str, *, timeout: float | None = None, **more: object) -> Fields:
    """Send a request whose answer carries no descriptors. Raises `ExchangeError`."""
    packet = connection.request(name, timeout=timeout, **more)
    if packet.fds:
        packet.close()
        raise connection.untrusted(f"the answer to '{name}' came with descriptors")
    return Fields(packet.message, f"the answer to '{name}'")


def request_offers(connection: HolderConnection) -> tuple[dict[str, Offer], int | None]:
    """Request all offers, and the generation of the layout. Raises `ExchangeError`."""
    found: dict[str, Offer] = {}
    generation: int | None = None
    total = 1
    while len(found) < total:
        before = len(found)
        answer = request(connection, "offers", first=before)
        if before and generation_in(answer) != generation:
            raise connection.error("changed", "the layout was changed while its offers were received")
        generation = generation_in(answer)
        total = answer.number("total", 0, messages.LARGEST_COUNT)
        offers = map(messages.decode_offer, answer.objects("offers", messages.MAX_ENTRIES))
        found |= {offer.name: offer for offer in offers}
        if total and not before < len(found) <= total:
            raise BadPacket(f"it announced {total} offers, and sent another number")
    return found, generation


def generation_in(answer: Fields) -> int | None:
    """Generation of the layout in an answer; None from a holder of an earlier version."""
    return answer.number("generation", 1) if answer.has("generation") else None


def importers_in(answer: Fields, name: str) -> tuple[Importer, ...]:
    """Importers in a list of an answer: those that lost memory by it, or have kept some. Raises `BadPacket`."""
    return tuple(map(messages.decode_importer, answer.objects(name, messages.MAX_ENTRIES)))


def request_importers(connection: HolderConnection) -> Iterator[Importer]:
    """Request all importers, by ascending id. Raises `ExchangeError`."""
    after, more = 0, True
    while more:
        answer = request(connection, "importers", after=after)
        more = answer.flag("more")
        for each in map(messages.decode_importer, answer.objects("importers", messages.MAX_ENTRIES)):
            if not after < each.id < messages.LARGEST_COUNT:
                raise BadPacket("its importers are not in ascending order")
            after = each.id
            yield each


def request_text(connection: HolderConnection, name: str) -> str:
    """Request a text in parts: the source of a layout, or the statuses of its nodes. Raises `ExchangeError`."""
    found: list[str] = []
    length, total = 0, 1
    while length < total:
        answer = request(connection, name, first=length)
        total = answer.number("total", 0, messages.LONGEST_SOURCE + 1)
        found.append(answer.text("text", messages.TEXT_CHARACTERS))
        length += len(found[-1])
        if length > total or (total and not found[-1]):
            raise BadPacket(f"it announced a text of {total} characters, and sent another number")
    return "".join(found)
