"""Requests of a client to a holder, and their answers: the offers, importers and texts that take several packets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from memtopo.sharing import wire
from memtopo.sharing.connection import HolderConnection
from memtopo.sharing.errors import BadPacket
from memtopo.sharing.messages import LARGEST_COUNT, ImportersAnswer, OffersAnswer, TextAnswer
from memtopo.sharing.offers import Offer
from memtopo.sharing.status import Importer

T = TypeVar("T")


@contextmanager
def validated(connection: HolderConnection) -> Iterator[None]:
    """Read an answer; an invalid one ends the connection, and the error names both ends."""
    try:
        yield
    except BadPacket as error:
        raise connection.untrusted(error.message) from error


def request(
    connection: HolderConnection, name: str, kind: type[T], *, timeout: float | None = None, **more: object
) -> T:
    """Send a request, and read its answer, which carries no descriptors. Raises `ExchangeError`."""
    packet = connection.request(name, timeout=timeout, **more)
    if packet.fds:
        packet.close()
        raise connection.untrusted(f"the answer to '{name}' came with descriptors")
    with validated(connection):
        return wire.read(kind, packet.message, f"the answer to '{name}'")


def request_offers(connection: HolderConnection) -> tuple[dict[str, Offer], int | None]:
    """Request all offers, and the generation of the layout. Raises `ExchangeError`."""
    found: dict[str, Offer] = {}
    generation: int | None = None
    total = 1
    while len(found) < total:
        before = len(found)
        answer = request(connection, "offers", OffersAnswer, first=before)
        if before and answer.generation != generation:
            raise connection.error("changed", "the layout was changed while its offers were received")
        generation, total = answer.generation, answer.total
        found |= {offer.name: offer for offer in answer.offers}
        if total and not before < len(found) <= total:
            raise BadPacket(f"it announced {total} offers, and sent another number")
    return found, generation


def request_importers(connection: HolderConnection) -> Iterator[Importer]:
    """Request all importers, by ascending id. Raises `ExchangeError`."""
    after, more = 0, True
    while more:
        answer = request(connection, "importers", ImportersAnswer, after=after)
        more = answer.more
        for each in answer.importers:
            if not after < each.id < LARGEST_COUNT:
                raise BadPacket("its importers are not in ascending order")
            after = each.id
            yield each


def request_text(connection: HolderConnection, name: str) -> str:
    """Request a text in parts: the source of a layout, or the statuses of its nodes. Raises `ExchangeError`."""
    found: list[str] = []
    length, total = 0, 1
    while length < total:
        answer = request(connection, name, TextAnswer, first=length)
        total = answer.total
        found.append(answer.text)
        length += len(found[-1])
        if length > total or (total and not found[-1]):
            raise BadPacket(f"it announced a text of {total} characters, and sent another number")
    return "".join(found)
