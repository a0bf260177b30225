"""All layouts that are held under the user's runtime directory, in short."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Literal

from memtopo.plans.report import MachineLine
from memtopo.sharing.client import connect
from memtopo.sharing.endpoints import Endpoint, endpoint, names
from memtopo.sharing.errors import ExchangeError, NoLayout
from memtopo.sharing.status import Status

TIMEOUT = 2.0
"""Seconds that each holder has for an answer."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One held layout, or why nothing is known of it (`error`): `starting` has its name and serves nobody yet.

    `exports` and `importers` are counts, `bytes` what is exported altogether; times are in seconds of the epoch.
    """

    name: str
    state: Literal["serving", "releasing", "starting", "unreachable"]
    socket: str
    pid: int | None = None
    since: float | None = None
    deadline: float | None = None
    spec: str | None = None
    machine: MachineLine | None = None
    exports: int = 0
    bytes: int = 0
    importers: int = 0
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Survey:
    """Every layout that is held, by name."""

    layouts: tuple[Entry, ...]


def survey(socket: str | None = None, *, allow_uids: Collection[int] = ()) -> Survey:
    """Ask every holder; what dead ones left is removed. With `socket`, ask that one alone.

    Raises `ExchangeError` where the runtime directory is not to be trusted.
    """
    places = [endpoint(name) for name in names()] if socket is None else [endpoint(socket=socket)]
    return Survey(tuple(_entries(places, allow_uids)))


def _entries(places: Collection[Endpoint], allow_uids: Collection[int]) -> Iterator[Entry]:
    for each in places:
        try:
            with connect(each, timeout=TIMEOUT, allow_uids=allow_uids) as client:
                yield _entry(client.status())
        except NoLayout:
            continue
        except ExchangeError as error:
            state: Literal["starting", "unreachable"] = "starting" if error.code == "starting" else "unreachable"
            yield Entry(each.name or each.path, state, each.path, error=error.message)


def _entry(status: Status) -> Entry:
    return Entry(
        status.name,
        status.state,
        status.socket,
        status.pid,
        status.since,
        status.deadline,
        status.spec,
        status.machine,
        len(status.offers),
        sum(offer.size * offer.count for offer in status.offers),
        len(status.importers),
    )
