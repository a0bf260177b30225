"""Lease of an attachment: the connection to the holder, the wait for it, and the role of this process."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from memtopo.api.errors import Unsuitable
from memtopo.api.import_spec import HOLDER
from memtopo.api.memory import unknown
from memtopo.geometry.groups import Group
from memtopo.session.composition import Composition
from memtopo.session.saved import spec_digest
from memtopo.sharing.client import Client, connect
from memtopo.sharing.endpoints import Endpoint
from memtopo.sharing.errors import ExchangeError, NoLayout
from memtopo.sharing.imports import HolderHandles
from memtopo.sharing.offers import Offer
from memtopo.sharing.sources import held_source

Role = Literal["reader", "writer"]

_PAUSE = 0.02
"""Seconds between two looks for a layout that is not held yet."""


class Lease(HolderHandles):
    """Connection to the holder, which is the importer's lease, and on which the holder sends notices."""

    def __init__(self, planned: Composition, gpus: Sequence[str], client: Client) -> None:
        super().__init__(planned.geometry, gpus)
        self._client = client

    @property
    def client(self) -> Client | None:
        """The connection; None if there is none."""
        return self._clients.get(HOLDER)

    def absent(self, exports: Iterable[str]) -> frozenset[str]:
        """Return the exports without memory, or with only a part of it. The holder sends a notice of their return."""
        return frozenset(name for name in exports if not self._has_memory(name))

    def _has_memory(self, export: str) -> bool:
        try:
            for handle in self._client.handles(export):
                handle.close()
        except ExchangeError as error:
            if error.code != "absent":
                raise
            self._client.let_go([export])
            return False
        return True

    def _connect(self, holder: str, imports: Sequence[Group]) -> Client:
        """Return the connection that exists, on which this process waited, and may be a writer."""
        del holder, imports
        return self._client


@dataclass(frozen=True, slots=True)
class Terms:
    """Requirements of an attachment: exports by name, or all; the role of this process; and a digest of the spec.

    `until` is the time of the monotonic clock until which it waits for the layout and for other processes.
    """

    exports: Collection[str] | None
    role: Role
    until: float
    expect: str | None

    @property
    def left(self) -> float:
        """Seconds to wait."""
        return max(self.until - time.monotonic(), 0.0)

    def connect(self, where: Endpoint, allow_uids: Collection[int]) -> Client:
        """Connect to the holder, as soon as it serves. Raises `NoLayout` and `ExchangeError`."""
        while self.left:
            try:
                return connect(where, allow_uids=allow_uids, suggest=False)
            except NoLayout:
                pass
            except ExchangeError as error:
                if error.code != "starting":
                    raise
            time.sleep(min(self.left, _PAUSE))
        return connect(where, allow_uids=allow_uids)

    def join(self, client: Client, name: str, path: str) -> Mapping[str, Offer]:
        """Lease or await the exports that a writer commits, and return all that are to be imported.

        Raises `Unsuitable` for an unknown export and another layout than the expected one, and `ExchangeError`.
        """
        self._require_expected(client, name)
        chosen = self._chosen(client.offers(), path)
        committed = [offer for offer in chosen.values() if offer.commit]
        generation = client.generation
        if self.role == "writer":
            if not committed:
                message = f"layout {name!r} has no export to write: none is declared 'commit: required'"
                raise Unsuitable(message, hint="attach without a role, and write with access='rw'")
            client.write([offer.name for offer in committed], wait=self.left)
        elif awaited := [offer.name for offer in committed if offer.commit != "committed"]:
            client.await_commit(awaited, wait=self.left)
        if client.generation == generation:
            return chosen
        self._require_expected(client, name)
        return self._chosen(client.offers(), path)

    def _chosen(self, offers: Mapping[str, Offer], path: str) -> Mapping[str, Offer]:
        for name in self.exports or ():
            if name not in offers:
                raise unknown("export", name, offers)
        chosen = {name: offer for name, offer in offers.items() if self.exports is None or name in self.exports}
        if not chosen:
            raise Unsuitable(f"nothing is exported at {path!r}" if not offers else "no export is requested")
        return chosen

    def _require_expected(self, client: Client, name: str) -> None:
        """Raise `Unsuitable` if the layout is not of the expected spec."""
        if self.expect is None:
            return
        source = held_source(client)
        if source is None:
            raise Unsuitable(f"layout {name!r} does not send its spec, and {self.expect} is expected")
        if (found := spec_digest(source[0])) != self.expect:
            message = f"layout {name!r} has the digest {found}, and {self.expect} is expected"
            raise Unsuitable(message, hint="'memtopo plan SPEC' and 'memtopo show NAME' print the digest of a spec")
