"""Imports from outside of the spec: the connection to each holder, and handles as the steps ask for them."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing

from memtopo.common.errors import MemtopoError
from memtopo.common.units import exact
from memtopo.driver.types import LocationKind
from memtopo.geometry import BufferGroup, ChunkGroup, EventGroup, ExternalObject, Geometry, ImportedSemaphore
from memtopo.sharing import Client, ExchangeError, Handle, NoLayout, Offer, connect, endpoint
from memtopo.sharing.client import IN_FLIGHT

Foreign = ExternalObject | ImportedSemaphore
Run = ChunkGroup | BufferGroup | EventGroup | Foreign

_KINDS: Mapping[type[Run], str] = {
    ChunkGroup: "chunk", BufferGroup: "buffer", EventGroup: "event",
    ExternalObject: "memory", ImportedSemaphore: "semaphore",
}  # fmt: skip


class ImportMismatch(MemtopoError):
    """What a holder offers is not what the import declares."""


class HolderHandles:
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
        imported = [run for run in geometry.runs if run.origin and not run.origin.siblings]
        self._runs: list[Run] = [*imported, *geometry.foreign]
        self._gpus, self._bound, self._allowed = gpus, bound or {}, allow_uids
        self._clients: dict[str, Client] = {}
        self._handles: dict[tuple[str, str], Iterator[Handle]] = {}
        self._open: list[int] = []

    def attach(self, holder: str) -> int:
        runs = [run for run in self._runs if run.origin and run.origin.holders == (holder,)]
        client = self._clients[holder] = self._connected(holder, runs)
        try:
            for run in runs:
                self._compare(run, client, holder)
        except BaseException:
            self.detach(holder)
            raise
        return client.pid

    def detach(self, holder: str) -> None:
        self.settle()
        for key in [key for key in self._handles if key[0] == holder]:
            with closing(self._handles.pop(key)):  # type: ignore[type-var]
                pass
        self._clients.pop(holder).close()

    def take(self, holder: str, export: str, index: int) -> int | bytes:
        handle = self._next(holder, export, index)
        if handle.fd is not None:
            if len(self._open) == IN_FLIGHT:
                self.settle()
            self._open.append(handle.fd)
            return handle.fd
        if handle.secret is None:
            raise ImportMismatch(f"{holder}/{export} came without a handle")
        return handle.secret.reveal()

    def gone(self, holder: str) -> bool:
        return self._clients[holder].gone()

    def settle(self) -> None:
        for fd in self._open:
            os.close(fd)
        self._open.clear()

    def _connected(self, holder: str, runs: Sequence[Run]) -> Client:
        path = self._bound.get(holder, holder if "/" in holder else None)
        where = endpoint(socket=path) if path else endpoint(holder)
        try:
            return connect(where, allow_uids=self._allowed)
        except NoLayout as error:
            foreign = next((run for run in runs if isinstance(run, Foreign)), None)
            if foreign is None or path:
                raise
            told = f"nobody is there who offers {_told(foreign)}: {error.message}"
            raise NoLayout(told, hint=f"--with {holder}=/path/to/its/socket, or --with '{holder}=COMMAND'") from error

    def _next(self, holder: str, export: str, index: int) -> Handle:
        key = (holder, export)
        try:
            if index == 0 or key not in self._handles:
                self._handles[key] = self._clients[holder].handles(export, index)
            return next(self._handles[key])
        except ExchangeError as error:
            if error.code != "gone":
                raise
            told = f"{self._whose(holder, export)} cannot be had: {error.message}"
            raise ExchangeError(error.code, told, hint=error.hint) from error

    def _whose(self, holder: str, export: str) -> str:
        """What is declared to come from an export."""
        runs = [each for each in self._runs if each.origin and each.origin.export == export]
        return " and ".join(_told(run) for run in runs if run.origin and holder in run.origin.holders)

    def _compare(self, run: Run, client: Client, holder: str) -> None:
        origin = run.origin
        assert origin
        offer = client.offers().get(origin.export)
        if offer is None:
            client.handles(origin.export)  # says what there is, and what was probably meant
            return
        for what, wanted, seen in self._facts(run, offer):
            if wanted != seen:
                told = f"{_told(run)} declares {what} {wanted}; {holder}/{origin.export} has {seen}"
                raise ImportMismatch(f"{told} (holder: process {client.pid})", hint="declare what the holder exports")

    def _facts(self, run: Run, offer: Offer) -> Iterator[tuple[str, str, str]]:
        assert run.origin
        yield "a", _kind(_KINDS[type(run)], run.origin.via), _kind(offer.kind, offer.via)
        yield "via", run.origin.via, offer.via
        yield "count", "1" if isinstance(run, Foreign) else f"{run.count:,}", f"{offer.count:,}"
        if isinstance(run, ChunkGroup | BufferGroup | ExternalObject):
            yield "size", exact(run.size), exact(offer.size)
        if isinstance(run, Foreign):
            yield from self._foreign_facts(run, offer)
        else:
            yield "location", self._identity(run), offer.gpu or offer.location

    def _foreign_facts(self, run: Foreign, offer: Offer) -> Iterator[tuple[str, str, str]]:
        """What the driver would not tell: of memory where it is, and of a semaphore too where its holder says so."""
        if isinstance(run, ExternalObject) or offer.gpu:
            yield "device", self._gpu(self._gpus[run.place.id]), self._gpu(offer.gpu or offer.location)
        if isinstance(run, ExternalObject):
            dedicated = {True: "dedicated memory", False: "memory that is not dedicated"}
            yield "it as", dedicated[run.dedicated], dedicated["dedicated" in offer.properties]

    def _gpu(self, uuid: str) -> str:
        """A GPU by its UUID, and where it is one of this process's, by its name here."""
        return f"gpu{self._gpus.index(uuid)} ({uuid})" if uuid in self._gpus else uuid

    def _identity(self, run: ChunkGroup | BufferGroup | EventGroup) -> str:
        """Where a run is, in words that mean the same in another process."""
        distinct = list(dict.fromkeys(map(run.place_of, range(run.count))))
        if all(each.kind is LocationKind.GPU for each in distinct):
            return ",".join(self._gpus[each.id] for each in distinct)
        return ", ".join(map(str, distinct))


def _kind(kind: str, via: str) -> str:
    """What is offered or wanted, with the one thing that no driver looks at: the type of a semaphore (fact 55)."""
    types = {"timeline_fd": "timeline semaphore", "opaque_fd": "binary semaphore"}
    return types.get(via, kind) if kind == "semaphore" else kind


def _told(run: Run) -> str:
    """A run by what the spec calls it: `import 'w'`, `external 'frame'`, `semaphore 'ready'`."""
    section = {ExternalObject: "external", ImportedSemaphore: "semaphore"}.get(type(run), "import")
    return f"{section} {run.name!r}"
