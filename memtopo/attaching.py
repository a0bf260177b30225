"""Imports from outside of the spec: the connection to each holder, and handles as the steps ask for them."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing

from memtopo.driver.types import LocationKind
from memtopo.errors import MemtopoError
from memtopo.exchange import Client, Handle, Offer, connect, place
from memtopo.exchange.client import IN_FLIGHT
from memtopo.geometry import BufferRun, ChunkRun, EventRun, Geometry
from memtopo.units import exact

Run = ChunkRun | BufferRun | EventRun


class Mismatch(MemtopoError):
    """What a holder offers is not what the import declares."""


class Holders:
    """The holders that a geometry imports from. `bound` has socket paths for names of holders (`--with NAME=PATH`).

    `gpus` are the UUIDs of this process's GPUs as hex text: a GPU goes by it in every process (fact 38).
    """

    def __init__(
        self,
        geometry: Geometry,
        gpus: Sequence[str],
        bound: Mapping[str, str] | None = None,
        allow_uids: Collection[int] = (),
    ) -> None:
        self._runs = [run for run in geometry.runs if run.origin and not run.origin.siblings]
        self._gpus, self._bound, self._allowed = gpus, bound or {}, allow_uids
        self._clients: dict[str, Client] = {}
        self._handles: dict[tuple[str, str], Iterator[Handle]] = {}
        self._open: list[int] = []

    def attach(self, holder: str) -> None:
        path = self._bound.get(holder, holder if "/" in holder else None)
        where = place(socket=path) if path else place(holder)
        client = self._clients[holder] = connect(where, allow_uids=self._allowed)
        try:
            for run in self._runs:
                if run.origin and run.origin.holders == (holder,):
                    self._compare(run, client, holder)
        except BaseException:
            self.detach(holder)
            raise

    def detach(self, holder: str) -> None:
        self.settle()
        for key in [key for key in self._handles if key[0] == holder]:
            with closing(self._handles.pop(key)):  # type: ignore[type-var]
                pass
        self._clients.pop(holder).close()

    def take(self, holder: str, export: str, index: int) -> int | bytes:
        key = (holder, export)
        if index == 0 or key not in self._handles:
            self._handles[key] = self._clients[holder].handles(export, index)
        handle = next(self._handles[key])
        if handle.fd is not None:
            if len(self._open) == IN_FLIGHT:
                self.settle()
            self._open.append(handle.fd)
            return handle.fd
        if handle.secret is None:
            raise Mismatch(f"{holder}/{export} came without a handle")
        return handle.secret.reveal()

    def settle(self) -> None:
        for fd in self._open:
            os.close(fd)
        self._open.clear()

    def _compare(self, run: Run, client: Client, holder: str) -> None:
        origin = run.origin
        assert origin
        offer = client.offers().get(origin.export)
        if offer is None:
            client.handles(origin.export)  # says what there is, and what was probably meant
            return
        for what, wanted, seen in self._facts(run, offer):
            if wanted != seen:
                told = f"import {run.name!r} declares {what} {wanted}; {holder}/{origin.export} has {seen}"
                raise Mismatch(f"{told} (holder: process {client.pid})", hint="declare what the holder exports")

    def _facts(self, run: Run, offer: Offer) -> Iterator[tuple[str, str, str]]:
        assert run.origin
        kind = {ChunkRun: "chunk", BufferRun: "buffer", EventRun: "event"}[type(run)]
        yield "a", kind, offer.kind
        yield "via", run.origin.via, offer.via
        yield "count", f"{run.count:,}", f"{offer.count:,}"
        if not isinstance(run, EventRun):
            yield "size", exact(run.size), exact(offer.size)
        yield "location", self._identity(run), offer.gpu or offer.location

    def _identity(self, run: Run) -> str:
        """Where a run is, in words that mean the same in another process."""
        match run:
            case ChunkRun():
                places = [run.properties_of(index).location for index in range(run.count)]
            case BufferRun() | EventRun():
                places = [run.place_of(index) for index in range(run.count)]
        distinct = list(dict.fromkeys(places))
        if all(each.kind is LocationKind.GPU for each in distinct):
            return ",".join(self._gpus[each.id] for each in distinct)
        return ", ".join(map(str, distinct))
