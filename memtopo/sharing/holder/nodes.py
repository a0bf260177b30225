"""Other nodes of a held layout, in the answers of a holder that serves one of them, or the layout as a whole."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from weakref import WeakKeyDictionary

from memtopo.sharing.errors import ExchangeError
from memtopo.sharing.holder.clients import ClientConnection
from memtopo.sharing.messages import TEXT_CHARACTERS
from memtopo.sharing.status import NodeStatus, Status

_PAUSE = 0.5
"""Seconds between two reports of a holder on itself."""
_LISTED = 4


@dataclass(frozen=True, slots=True)
class HeldNodes:
    """Nodes of a layout by name.

    `statuses` returns what their holders reported last; `report` reports on the holder of the `own` one.
    """

    names: tuple[str, ...]
    statuses: Callable[[], Sequence[NodeStatus]]
    report: Callable[[Status], None] = lambda _: None
    own: str = ""

    def require_unbound(self) -> None:
        """Raise `ExchangeError` for a release while importers on other nodes than the own use exports over ipc."""
        others = (each for each in self.statuses() if each.node != self.own)
        bound = [each.node for each in others for importer in each.importers if importer.bound]
        if bound:
            processes = f"{len(bound)} process{'es' * (len(bound) > 1)}"
            message = f"what it exports over ipc, or of pools, is in use by {processes} on {_listed(bound)}"
            raise ExchangeError("attached", message, hint="--force notifies them, and releases it after --grace")


def _listed(nodes: Sequence[str]) -> str:
    names = list(dict.fromkeys(nodes))
    return ", ".join(names[:_LISTED]) + " …" * (len(names) > _LISTED)


class StatusReports:
    """Reports of a holder on itself to the other nodes: at once, and again whenever its status differs."""

    failure: str | None = None

    def __init__(self, status: Callable[[], Status], report: Callable[[Status], None]) -> None:
        self._status, self._report = status, report
        self._next = 0.0
        self._last: Status | None = None

    def advance(self, now: float) -> None:
        """Report, if it is time."""
        if now < self._next:
            return
        self._next, found = now + _PAUSE, self._status()
        if found != self._last:
            self._last = found
            self._report(found)

    def close(self) -> None:
        """End the reports; there is nothing to close."""


class NodesText:
    """Answers to the request `nodes`: a text of all statuses, which stays the same for a client until its last part."""

    def __init__(self, nodes: HeldNodes | None) -> None:
        self._nodes = nodes
        self._texts: WeakKeyDictionary[ClientConnection, str] = WeakKeyDictionary()

    def part(self, connection: ClientConnection, first: int) -> dict[str, Any]:
        """Return the part of the text from a character on."""
        if not first:
            found = self._nodes.statuses() if self._nodes else ()
            self._texts[connection] = json.dumps([asdict(each) for each in found]) if found else ""
        text = self._texts.get(connection, "")
        return {"total": len(text), "text": text[first : first + TEXT_CHARACTERS]}


def node_status(node: str, host: str, status: Status) -> NodeStatus:
    """Return the status of a node's holder as it reports it to the others."""
    return NodeStatus(
        node=node,
        host=host,
        state=status.state,
        socket=status.socket,
        pid=status.pid,
        offers=status.offers,
        importers=status.importers,
        contexts=status.contexts,
    )


def unreachable(names: Sequence[str]) -> Iterator[NodeStatus]:
    """Statuses of nodes that nothing is known of."""
    return (NodeStatus(node=name, host="", state="unreachable") for name in names)
