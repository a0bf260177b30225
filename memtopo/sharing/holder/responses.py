"""What a holder answers to each request but a release, which is more than an answer."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import islice
from typing import Any

from memtopo.common.text import nearest
from memtopo.common.units import shorten
from memtopo.diagnostics.messages import COMPARED, LISTED, choose
from memtopo.sharing import messages, wire
from memtopo.sharing.errors import BadPacket, ExchangeError
from memtopo.sharing.holder.clients import Connection
from memtopo.sharing.holder.state import HolderInfo
from memtopo.sharing.messages import Fields
from memtopo.sharing.offers import LONGEST_NAME, ExportProvider, Handle, Offer
from memtopo.sharing.status import Importer

_TOLD = 1000


class Later(Exception):
    """The system takes no more descriptors into queues just now; the request is to be tried again."""


class Answers:
    """Answers from a shelf. `batch` bounds the handles of one answer; `deadline` is in seconds of the epoch."""

    def __init__(self, shelf: ExportProvider, about: HolderInfo, *, batch: int, deadline: float | None) -> None:
        self._shelf, self._about, self._batch, self._deadline = shelf, about, batch, deadline
        self._since = time.time()
        self.offers: Mapping[str, Offer] = {offer.name: offer for offer in shelf.offers()}
        self.served = 0
        self.releasing = False
        self._answers: dict[str, Callable[[Connection, Fields, Collection[Connection]], None]] = {
            "status": self._status,
            "offers": self._list_offers,
            "importers": self._list_importers,
            "handles": self._handles,
            "check": self._check,
            "source": self._source,
        }

    def answer(self, connection: Connection, request: str, fields: Fields, all_: Collection[Connection]) -> None:
        """Answer one request. Raises `MemtopoError` for what is to be refused, `Later`, `OSError`."""
        self._answers[request](connection, fields, all_)

    def importers(self, connections: Collection[Connection]) -> Iterator[Importer]:
        """What is told of those that were given something, by their numbers."""
        return (each.importer(self.offers) for each in connections if each.attached)

    def _status(self, connection: Connection, fields: Fields, _: Collection[Connection]) -> None:
        fields.only("request")
        about = self._about
        status = {
            "name": about.name,
            "pid": os.getpid(),
            "since": self._since,
            "state": "releasing" if self.releasing else "serving",
            "deadline": self._deadline,
            "spec": None if about.spec is None else shorten(about.spec, _TOLD),
            "machine": messages.machine_fields(about.machine),
        }
        connection.say({"ok": status})

    def _source(self, connection: Connection, fields: Fields, _: Collection[Connection]) -> None:
        fields.only("request", "first")
        first, text = fields.number("first"), self._about.source
        connection.say({"ok": {"total": len(text), "text": text[first : first + messages.TEXT]}})

    def _list_offers(self, connection: Connection, fields: Fields, _: Collection[Connection]) -> None:
        fields.only("request", "first")
        first = fields.number("first")
        told = messages.page(islice(self.offers.values(), first, None)) if first < len(self.offers) else []
        connection.say({"ok": {"total": len(self.offers), "offers": told}})

    def _list_importers(self, connection: Connection, fields: Fields, all_: Collection[Connection]) -> None:
        fields.only("request", "after")
        after = fields.number("after")
        found = list(self.importers([each for each in all_ if each.id > after]))
        told = messages.page(found)
        connection.say({"ok": {"importers": told, "more": len(told) < len(found)}})

    def _check(self, connection: Connection, fields: Fields, _: Collection[Connection]) -> None:
        fields.only("request")
        connection.say({"ok": messages.checks_fields(self._shelf.check())})

    def _handles(self, connection: Connection, fields: Fields, _: Collection[Connection]) -> None:
        fields.only("request", "export", "first", "count")
        offer = self._offer(fields.text("export", LONGEST_NAME))
        first, count = fields.number("first"), fields.number("count", 1)
        if first + count > offer.count:
            raise ExchangeError("range", f"export {offer.name!r} has {offer.count:,} handles, counted from 0")
        if self.releasing:
            raise ExchangeError("releasing", f"layout {self._about.name!r} is being released")
        if connection.unread():
            raise ExchangeError("unread", "the handles before these were not read", hint="read each answer first")
        self._give(connection, offer, first, min(count, self._batch))

    def _give(self, connection: Connection, offer: Offer, first: int, count: int) -> None:
        handles: list[Handle] = []
        try:
            for index in range(first, first + count):
                handles.append(self._shelf.handle(offer.name, index))  # noqa: PERF401 what was made so far is closed
            fds = [handle.fd for handle in handles if handle.fd is not None]
            told: dict[str, Any] = {"offer": messages.page([offer])[0], "first": first}
            connection.give({"ok": told | {"handles": messages.handle_fields(handles)}}, fds)
        except BlockingIOError as error:
            raise ExchangeError("unread", "too much that was sent before is not read") from error
        except OSError as error:
            if error.errno == errno.ETOOMANYREFS:
                raise Later from error
            raise
        finally:
            wire.close_all(handle.fd for handle in handles if handle.fd is not None)
        connection.took(offer.name, first, count)
        self.served += count

    def _offer(self, name: str) -> Offer:
        if name in self.offers:
            return self.offers[name]
        known = list(self.offers)
        meant = nearest(name, known[:COMPARED])
        hint = choose(name, [meant] if meant else known[:LISTED]) if known else "nothing is exported"
        raise ExchangeError("unknown", f"there is no export {shorten(name)!r}", hint=hint)


REQUESTS = ("status", "offers", "importers", "handles", "check", "source", "release")
_LISTED = 4


def request_of(fields: Fields) -> str:
    """Which request a message is. Raises `BadPacket`."""
    try:
        return fields.word("request", *REQUESTS)
    except BadPacket as error:
        raise BadPacket(error.message, "request") from error


def attached(bound: Collection[Connection]) -> ExchangeError:
    """A release was asked for, and some are bound to the layout."""
    told = ", ".join(f"process {each.peer.pid}" for each in islice(bound, _LISTED))
    more = f" and {len(bound) - _LISTED} more" if len(bound) > _LISTED else ""
    return ExchangeError(
        "attached",
        f"what it exports over ipc is in use by {told}{more}",
        hint="--force tells them, and takes it from them after --grace",
    )


def too_many_in_flight() -> ExchangeError:
    """The system took no more descriptors for longer than the holder is patient."""
    return ExchangeError(
        "limit",
        "too many descriptors of the holder's user lie unread in sockets",
        hint="clients that read sooner, or a higher limit of open files (RLIMIT_NOFILE) of the holder",
    )
