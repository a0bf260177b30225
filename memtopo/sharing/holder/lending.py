"""Objects that a holder lends: each is leased to one client, in an epoch of its bytes, which a key may seal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from msgspec import Struct
from msgspec.structs import replace

from memtopo.common.errors import ExchangeError, MemtopoError
from memtopo.common.text import process_name
from memtopo.driver.handles import Handle, close_handles
from memtopo.sharing.holder.clients import ClientConnection
from memtopo.sharing.holder.state import EventFields, HolderEvents
from memtopo.sharing.messages import Block, LendRequest
from memtopo.sharing.offers import ExportProvider, Lender, Offer


class Lease(Struct, eq=False):
    """Lease of one object by its number. Without a client, what is sealed under the key waits for a successor."""

    number: int
    epoch: int
    client: ClientConnection | None
    key: str | None = None


class _Leases:
    """Leases of one export, by number, and by key in the order in which they were sealed."""

    def __init__(self) -> None:
        self.every: dict[int, Lease] = {}
        self.keys: dict[str, list[Lease]] = {}
        self._of: dict[ClientConnection, dict[int, Lease]] = {}

    @property
    def clients(self) -> Sequence[ClientConnection]:
        return [*self._of]

    def of_client(self, client: ClientConnection) -> Collection[Lease]:
        return list(self._of.get(client, {}).values())

    def count(self, client: ClientConnection) -> int:
        return len(self._of.get(client, ()))

    def give(self, lease: Lease, client: ClientConnection) -> None:
        """Have a client hold a lease."""
        self.every[lease.number], lease.client = lease, client
        self._of.setdefault(client, {})[lease.number] = lease

    def end(self, lease: Lease) -> bool:
        """End the lease of a client. Return whether its object is free: what is sealed waits for a successor."""
        if lease.client:
            held = self._of[lease.client]
            del held[lease.number]
            if not held:
                del self._of[lease.client]
        lease.client = None
        if lease.key is None:
            del self.every[lease.number]
        return lease.key is None

    def seal(self, lease: Lease, key: str | None) -> None:
        """Have a lease under a key, or under none."""
        if lease.key is not None:
            self.keys[lease.key].remove(lease)
            if not self.keys[lease.key]:
                del self.keys[lease.key]
        lease.key = key
        if key is not None:
            self.keys.setdefault(key, []).append(lease)


class Lending:
    """Objects of all exports that lend. Epochs increase whenever an object is lent without the bytes of a client.

    At most `keep` handles stay open, of objects that are not released when they are given back: to export an object
    once more after a close takes longer than all else (fact 50).
    """

    def __init__(self, provider: ExportProvider, events: HolderEvents, keep: int) -> None:
        self._provider, self._events, self._keep = provider, events, keep
        self._exports: dict[str, _Leases] = {}
        self._handles: dict[tuple[str, int], Handle] = {}
        self._unsettled: set[str] = set()
        """Exports whose provider was busy: it may have other objects lent than there are leases."""
        self._epoch = 0

    def allocated(self, offer: Offer) -> Mapping[str, int]:
        """Number of objects of an export that exist because they are lent or sealed, by location."""
        kept, locations = offer.lends.kept if offer.lends else 0, offer.location.split(", ")
        numbers = (number for number in self._leases(offer.name).every if number >= kept)
        return Counter(locations[number % len(locations)] for number in numbers)

    def described(self, offer: Offer) -> Offer:
        """Return an offer with the number of objects that are lent and sealed now."""
        if offer.lends is None:
            return offer
        every = self._leases(offer.name).every.values()
        lent = sum(each.client is not None for each in every)
        return replace(offer, lends=replace(offer.lends, lent=lent, sealed=len(every) - lent))

    def lend(
        self, connection: ClientConnection, offer: Offer, request: LendRequest, most: int
    ) -> tuple[Sequence[Lease], int]:
        """Lease at most as many objects as are requested to a client; return also the number of those of a key.

        Raises `ExchangeError`.
        """
        if offer.lends is None:
            raise ExchangeError("lease", f"export {offer.name!r} does not lend", hint="request its handles")
        assert isinstance(self._provider, Lender)
        self._settle(offer.name)
        for export in [*self._unsettled]:  # a change may have removed them
            with suppress(MemtopoError):
                self._settle(export)
        leases = self._exports.setdefault(offer.name, _Leases())
        count = min(request.count, most)
        chosen, total = [], 0
        if request.key is not None:
            sealed = self._sealed(connection, offer.name, request, request.key)
            chosen, total = sealed[request.first :][:count], len(sealed)
            count = len(chosen)
        quota, own = offer.lends.quota, leases.count(connection)
        if quota is not None and own + count > quota:
            message = f"export {offer.name!r} lends {quota:,} to one client, which has {own:,}, and requests {count:,}"
            raise ExchangeError("full", message, hint="give some back first")
        if request.key is None:
            numbers = self._provider.lend(offer.name, count)
            self._epoch += bool(numbers)
            chosen = [Lease(number, self._epoch, None) for number in numbers]
        for lease in chosen:
            leases.give(lease, connection)
        return chosen, total

    @contextmanager
    def handles(self, offer: Offer, numbers: Iterable[int]) -> Iterator[Sequence[Handle]]:
        """Handles of objects of an export, while they are sent. Raises `MemtopoError`."""
        kept, found = offer.lends.kept if offer.lends else 0, list[Handle]()
        closed: list[Handle] = []
        try:
            for number in numbers:
                handle = self._handles.get((offer.name, number)) or self._provider.handle(offer.name, number)
                if number < kept and len(self._handles) < self._keep:
                    self._handles[offer.name, number] = handle
                elif (offer.name, number) not in self._handles:
                    closed.append(handle)
                found.append(handle)
            yield found
        finally:
            close_handles(closed)

    def close_handles(self, exports: Collection[str]) -> None:
        """Close the handles of exports whose objects are about to be released: an open one pins memory (fact 29)."""
        names = [each for each in self._handles if each[0] in exports]
        close_handles([self._handles.pop(each) for each in names])

    def seal(self, connection: ClientConnection, export: str, blocks: Iterable[Block], key: str | None) -> None:
        """Keep objects of a client under a key when its leases end, or no longer. Raises `ExchangeError`."""
        leases = self._leases(export)
        found = self._held(connection, export, blocks)
        if others := [each for each in leases.keys.get(key or "", ()) if each.client is not connection]:
            raise _sealed(export, str(key), others[0])
        for each in found:
            leases.seal(each, key)

    def give_back(self, connection: ClientConnection, export: str, blocks: Iterable[Block]) -> list[int]:
        """End leases of a client, and return their numbers. Raises `ExchangeError` for one that it does not have."""
        found = self._held(connection, export, blocks)
        self.end(export, found)
        return [each.number for each in found]

    def end(self, export: str, leases: Iterable[Lease]) -> None:
        """End leases: objects are free, and sealed ones wait for a successor."""
        of_export = self._leases(export)
        free = [each.number for each in leases if of_export.end(each)]
        try:
            if free:
                self._take_back(export, free)
        except MemtopoError as error:
            self._unsettled.add(export)
            self._report_kept(export, error)

    def let_go(self, connection: ClientConnection, exports: Iterable[str]) -> None:
        """End all leases of a client of some exports."""
        for export in exports:
            if export in self._exports:
                self.end(export, self._exports[export].of_client(connection))

    def leave(self, connected: Callable[[ClientConnection], bool]) -> None:
        """End the leases of clients whose connection has ended."""
        for export, leases in self._exports.items():
            for client in [each for each in leases.clients if not connected(each)]:
                ended = leases.of_client(client)
                sealed = sum(each.key is not None for each in ended)
                counts: EventFields = {"export": export, "freed": len(ended) - sealed, "sealed": sealed}
                self._events.add_of_client("leases ended", {**client.identity, **counts})
                self.end(export, ended)

    def forget(self, exports: Iterable[str]) -> None:
        """Forget the leases of the objects of some exports that have gone in a change, once their provider is free."""
        for export in self._exports.keys() & set(exports):
            self._unsettled.add(export)
            with suppress(MemtopoError):
                self._settle(export)

    def _settle(self, export: str) -> None:
        """End leases of objects that went, and have those taken back that have no lease. Raises `MemtopoError`."""
        if export not in self._unsettled:
            return
        leases, lent = self._leases(export), tuple[int, ...]()
        try:
            if isinstance(self._provider, Lender):
                lent = tuple(self._provider.lent(export))
        except MemtopoError as error:
            if _is_busy(error):
                raise  # else its process has ended, and its memory with it
        self._take_back(export, [each for each in lent if each not in leases.every])
        for each in [lease for lease in leases.every.values() if lease.number not in lent]:
            leases.seal(each, None)
            leases.end(each)
        self._unsettled.remove(export)

    def _take_back(self, export: str, numbers: Sequence[int]) -> None:
        """Have objects taken back; a failure is an event. Raises `MemtopoError` if their process is busy."""
        try:
            if isinstance(self._provider, Lender):
                self._provider.take_back(export, numbers)
        except MemtopoError as error:
            if _is_busy(error):
                raise
            self._report_kept(export, error)

    def _report_kept(self, export: str, error: MemtopoError) -> None:
        self._events.add("lent memory not released", {"export": export, "reason": error.message}, "error")

    def _leases(self, export: str) -> _Leases:
        """Leases of an export. It has no entry until something is lent: a client may have invented its name."""
        return self._exports.get(export) or _Leases()

    def _held(self, connection: ClientConnection, export: str, blocks: Iterable[Block]) -> list[Lease]:
        """Leases that a client holds in some epochs. Raises `ExchangeError` if it does not hold one of them."""
        every, found = self._leases(export).every, dict[int, Lease]()
        for block in blocks:
            lease = every.get(block.number)
            if lease is None or lease.client is not connection or lease.epoch != block.epoch:
                now = "free" if lease is None else f"of epoch {lease.epoch}"
                now += ", and not this client's" * (lease is not None and lease.client is not connection)
                message = f"object {block.number} of export {export!r} was lent in epoch {block.epoch}, and is {now}"
                raise ExchangeError("stale", message, hint="forget it: its lease has ended")
            found[block.number] = lease
        return list(found.values())

    def _sealed(self, connection: ClientConnection, export: str, request: LendRequest, key: str) -> list[Lease]:
        """Leases under a key that a client may have, which has those before the first one. Raises `ExchangeError`."""
        found = self._leases(export).keys.get(key)
        if not found:
            raise ExchangeError("unknown", f"export {export!r} has no objects sealed under {key!r}")
        taken = [each for each in found if each.client not in (None, connection)]
        if taken := taken or [each for each in found[request.first :] if each.client]:
            raise _sealed(export, key, taken[0])
        latest = max(each.epoch for each in found)
        if request.epoch not in (None, latest):
            message = f"the objects sealed under {key!r} have epoch {latest}, but epoch {request.epoch} is requested"
            raise ExchangeError("stale", f"export {export!r}: {message}")
        return found


def _sealed(export: str, key: str, lease: Lease) -> ExchangeError:
    """Return the refusal of a key that another client has."""
    who = process_name(lease.client.peer.pid) if lease.client else "a client that has ended"
    return ExchangeError("sealed", f"{who} has sealed objects of export {export!r} under {key!r}")


def _is_busy(error: MemtopoError) -> bool:
    """Return whether a process of the layout did not take part in time, and nothing was changed."""
    return isinstance(error, ExchangeError) and error.code == "changing"
