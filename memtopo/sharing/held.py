"""Held layouts as clients find them: a survey of all under a folder, and the spec and the machine of one."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from memtopo.common.errors import ExchangeError, MemtopoError, NoLayout
from memtopo.common.files import closing_fd
from memtopo.machine import Machine, MachineLine, parse
from memtopo.sharing.claims import lock_owner, remove_stale
from memtopo.sharing.client import Client, connect
from memtopo.sharing.endpoints import Endpoint, endpoints, endpoints_beside
from memtopo.sharing.offers import exported_bytes
from memtopo.sharing.status import LayoutEnd, LayoutEnded, PartState, Status, shared_fields
from memtopo.sharing.wire import ORIGIN, parsed_source

if TYPE_CHECKING:
    from memtopo.language import Document


T = TypeVar("T")

TIMEOUT = 2.0
"""Seconds that a holder has for an answer."""


class Entry(Struct, frozen=True):
    """One held layout, or why its status is not available (`error`, `hint`); one that is `starting` does not serve yet.

    `layout_state` is the name of its state, None if it has no states; `end` says which processes of a user have ended.
    `exports` and `importers` are counts, `bytes` is the sum of all exports; times are in seconds of the epoch.
    """

    name: str
    state: PartState
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
    nodes: tuple[str, ...] = ()
    """Nodes of a layout of several, whose exports and importers are counted together."""
    layout_state: str | None = None
    end: LayoutEnd | None = None
    hint: str | None = None

    @property
    def reason(self) -> str | None:
        """Error with its hint."""
        return f"{self.error}; {self.hint}" if self.hint else self.error


class Survey(Struct, frozen=True):
    """All held layouts, in the order of their names."""

    layouts: tuple[Entry, ...]


def survey(socket: str | None = None, *, allow_uids: Collection[int] = ()) -> Survey:
    """Query every holder, or those at `socket`, a path or a folder, and remove what dead processes left.

    Raises `ExchangeError` if the runtime folder cannot be trusted.
    """
    for each in endpoints_beside(socket, allow_uids):
        remove_stale(each)
    found = answers(Client.status, socket, allow_uids=allow_uids)
    return Survey(tuple(each if isinstance(each, Entry) else _entry(each) for each in found))


def answers(
    ask: Callable[[Client], T], socket: str | None = None, *, allow_uids: Collection[int] = ()
) -> Iterator[T | Entry]:
    """Yield the answer of every holder, or of those at `socket`, a path or a folder; an entry for a silent one.

    What dead holders left is removed. Raises `ExchangeError` if the runtime folder cannot be trusted.
    """
    for each in endpoints(socket, allow_uids):
        try:
            with connect(each, timeout=TIMEOUT, allow_uids=allow_uids, suggest=False) as client:
                answer = ask(client)
            yield answer
        except NoLayout:
            continue
        except LayoutEnded as error:
            yield Entry(each.name or each.path, "lost", each.path, end=error.end)
        except ExchangeError as error:
            state: PartState = "starting" if error.code == "starting" else "unreachable"
            pid = None
            with suppress(MemtopoError, OSError), closing_fd(each.open_folder()) as folder:
                pid = lock_owner(folder, each.lock) or None
            yield Entry(each.name or each.path, state, each.path, pid, error=error.message, hint=error.hint)


def _entry(status: Status) -> Entry:
    offers = [offer for each in (status.nodes or (status,)) for offer in each.offers]
    return replace(
        Entry(**shared_fields(status, Entry)),
        exports=len(offers),
        bytes=exported_bytes(offers),
        importers=sum(len(each.importers) for each in (status.nodes or (status,))),
        nodes=tuple(each.node for each in status.nodes),
    )


def layout_end(client: Client, allow_uids: Collection[int]) -> LayoutEnd | None:
    """Return the end of the layout of a client, whose connection waits for it; None if nothing of it is left."""
    folder, file = os.path.split(client.path)
    try:
        with connect(Endpoint(folder, file), timeout=TIMEOUT, allow_uids=allow_uids, suggest=False) as other:
            return other.status().end
    except LayoutEnded as error:
        return error.end
    except MemtopoError:
        return None


def held_source(client: Client) -> tuple[Document, Machine] | None:
    """Spec of a held layout and its machine; None if the holder sends none that can be read."""
    text = _requested(client)
    with suppress(MemtopoError):
        source = parsed_source(text)
        return replace(source, name=ORIGIN).document, parse(source.machine.encode(), ORIGIN)
    return None


def held_machine(client: Client) -> Machine | None:
    """Recorded machine of a held layout; None if the holder sends none that can be read."""
    text = _requested(client)
    with suppress(MemtopoError):
        return parse(parsed_source(text).machine.encode(), ORIGIN)
    return None


def _requested(client: Client) -> str:
    """Source of a held layout; empty from a holder of an older version, which has then ended the connection."""
    try:
        return client.source()
    except ExchangeError as error:
        if error.code == "request":
            return ""
        raise
