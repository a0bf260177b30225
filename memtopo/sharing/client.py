"""Client of a holder: its status, its handles, a check, and its release."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from msgspec.structs import asdict, replace

from memtopo.common.errors import BadPacket, ExchangeError, Exit, on_failure
from memtopo.common.processes import pid_namespace
from memtopo.driver.handles import Handle, close_handles
from memtopo.kinds.layout import LentBlock
from memtopo.plans.progress import PhasePart, Progress
from memtopo.plans.report import Checks
from memtopo.sharing import messages, wire
from memtopo.sharing.connection import HolderConnection, connected_socket
from memtopo.sharing.endpoints import Endpoint
from memtopo.sharing.messages import LARGEST_COUNT, LONGEST_WAIT, Acknowledgement
from memtopo.sharing.offers import Offer, unknown_export
from memtopo.sharing.sockets import SYSTEM, System, reserve_descriptors
from memtopo.sharing.status import Changed, Importer, LayoutEnd, Notice, Released, Statistics, Status, Switched
from memtopo.sharing.wire import MOST_FDS, Packet
from memtopo.storage.saved import Saved

TIMEOUT = 5.0
"""Seconds that a holder has for an answer."""

CHECK_TIMEOUT = 120.0
LET_GO_TIMEOUT = 120.0
"""Seconds for the answer to `let_go`, which comes after a change that was forced meanwhile."""

SWITCH_TIMEOUT = CHANGE_TIMEOUT = 600.0
SAVE_TIMEOUT = 3600.0
IN_FLIGHT = 64
"""Handles that are requested at a time; each open descriptor pins its memory (fact 29)."""

_LOOK = 0.5
"""Seconds between two looks for processes that still have memory of a released layout."""

_BLOCKS = 1000
"""Lent objects that one request names."""


class Client(HolderConnection):
    """A connection to a holder. It is the importer's lease: the holder counts the importer while it is open.

    It is not thread-safe. Every method raises `ExchangeError`, which names both ends.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._offers: Mapping[str, Offer] | None = None
        self.generation: int | None = None
        """Generation of the layout when its offers were received; None before, and from a holder that reports none."""
        self.generations: dict[str, int | None] = {}
        """Generation in which the objects of each export were made whose handles were received last."""

    def status(self) -> Status:
        """Return the status of the holder, with its offers and its importers."""
        told = self.request("status", messages.StatusAnswer)
        ours = pid_namespace()
        # Where a namespace is not known, the holder's own number is another one in another namespace.
        same = told.pid_namespace == ours if told.pid_namespace is not None and ours else told.pid == self.pid
        with self.validated():
            own: dict[str, Any] = {
                "socket": self.path,
                "pid": self.pid or None,
                "uid": self.uid,
                "offers": tuple(self.offers().values()),
                "importers": tuple(self._importers()),
                "pid_namespace": "same" if same else "another",
                "nodes": messages.decode_nodes(self._text("nodes")) if told.nodes else (),
            }
        return Status(**asdict(told) | own)

    def offers(self) -> Mapping[str, Offer]:
        """Return the exports by name. They are requested again after a notice that the layout was changed."""
        if self._offers is not None:
            return self._offers
        found: dict[str, Offer] = {}
        generation: int | None = None
        total = 1
        while len(found) < total:
            before = len(found)
            answer = self.request("offers", messages.OffersAnswer, first=before)
            if before and answer.generation != generation:
                raise self.error("changed", "the layout was changed while its offers were received")
            generation, total = answer.generation, answer.total
            found |= {offer.name: offer for offer in answer.offers}
            if total and not before < len(found) <= total:
                raise self.untrusted(f"it announced {total} offers, and sent another number")
        self._offers, self.generation = found, generation
        return found

    def fresh_offers(self) -> Mapping[str, Offer]:
        """Request the exports by name again."""
        self._offers = None
        return self.offers()

    def _importers(self) -> Iterator[Importer]:
        """Request all importers, by ascending id."""
        after, more = 0, True
        while more:
            answer = self.request("importers", messages.ImportersAnswer, after=after)
            more = answer.more
            if more and not answer.importers:
                raise BadPacket("it announced more importers, and sent none")
            for each in answer.importers:
                if not after < each.id < LARGEST_COUNT:
                    raise BadPacket("its importers are not in ascending order")
                after = each.id
                yield each

    def _text(self, name: str) -> str:
        """Request a text in parts: the source of a layout, or the statuses of its nodes."""
        found: list[str] = []
        length, total = 0, 1
        while length < total:
            answer = self.request(name, messages.TextAnswer, first=length)
            total = answer.total
            found.append(answer.text)
            length += len(answer.text)
            if length > total or (total and not answer.text):
                raise BadPacket(f"it announced a text of {total} characters, and sent another number")
        return "".join(found)

    def handles(
        self, export: str, first: int = 0, count: int | None = None, *, batch: int = IN_FLIGHT
    ) -> Iterator[Handle]:
        """Return handles of an export in their order, requested `batch` at a time; the caller closes each.

        Closing the iterator closes the handles that it has not returned. An unknown export is an error at once. If the
        layout was changed since the offers were received, the error has the code `changed`.
        """
        offer = self.offers().get(export)
        if offer is None:
            raise self.error("unknown", *unknown_export(export, self.offers()))
        stop = offer.count if count is None else first + count
        if not 0 <= first <= stop <= offer.count:
            message = (
                f"export {export!r} has {offer.count:,} handles, counted from 0; {first:,} to {stop:,} do not exist"
            )
            raise self.error("range", message)
        return self._handles(offer, first, stop, min(max(batch, 1), MOST_FDS))

    def lend(
        self, export: str, count: int, *, key: str | None = None, first: int = 0, epoch: int | None = None
    ) -> tuple[Sequence[LentBlock], int]:
        """Be lent at most `count` objects of an export, whose handles the caller closes, or see whether any are left.

        With a key, they are ones that are sealed under it, from the first on, and of that epoch; their number in all
        is returned, too. The code of the error is `full`, `absent`, `unknown`, `sealed` or `stale`.
        """
        offer = self.offers().get(export)
        if offer is None:
            raise self.error("unknown", *unknown_export(export, self.offers()))
        count = min(count, IN_FLIGHT)
        terms: dict[str, Any] = {"key": key, "first": first, "epoch": epoch} if key else {}
        with self._received("lend", offer, count=count, **terms) as packet:
            answer = wire.read(messages.LentAnswer, packet.message, "the answer to 'lend'")
            if len(answer.handles) != len(answer.blocks) or not min(count, 1) <= len(answer.blocks) <= count:
                raise BadPacket(f"{len(answer.blocks)} objects of {offer.name!r} are lent in place of {count}")
            has = {"descriptors": offer.descriptors, "secrets": offer.secrets}
            handles = messages.decode_handles(answer.handles, packet.fds, **has, of=offer.name)
        self.name_lease()
        self.generations[offer.name] = answer.generation
        pairs = zip(answer.blocks, handles, strict=True)
        return [LentBlock(block.number, block.epoch, handle) for block, handle in pairs], answer.total

    def give_back(self, export: str, blocks: Mapping[int, int]) -> None:
        """Give lent objects back, by number with their epoch, of which nothing is left here.

        The code of the error is `stale` if one of them is not lent to this client in that epoch; the others are given
        back.
        """
        refusals = [error for part in _parts(blocks) for error in self._give_back(export, part)]
        if refusals:
            raise refusals[0]

    def _give_back(self, export: str, part: Sequence[dict[str, int]]) -> Sequence[ExchangeError]:
        """Give back the objects of a packet, each alone if one of them is not lent; return the refusals."""
        try:
            self.request("let_go", Acknowledgement, timeout=LET_GO_TIMEOUT, exports=[export], blocks=part)
        except ExchangeError as error:
            if error.code != "stale":
                raise
            return [error] if len(part) == 1 else [each for one in part for each in self._give_back(export, [one])]
        return []

    def seal(self, export: str, blocks: Mapping[int, int], key: str | None) -> None:
        """Have the holder keep lent objects under a key when they are given back; without one, no longer.

        The code of the error is `stale`, or `sealed` for a key of others.
        """
        for part in _parts(blocks):
            self.request("seal", Acknowledgement, export=export, blocks=part, key=key)

    def check(self, *, timeout: float = CHECK_TIMEOUT) -> Checks:
        """Let the holder check by queries that everything is as declared."""
        return self.request("check", Checks, timeout=timeout)

    def let_go(self, exports: Collection[str]) -> None:
        """Report that this process has closed everything that it imported of some exports.

        The holder forgets the handles. It sends a notice when these exports change, until they are requested again.
        """
        for part in messages.parts(exports):
            self.request("let_go", Acknowledgement, timeout=LET_GO_TIMEOUT, exports=part)

    def write(self, exports: Collection[str], *, wait: float = 0.0) -> None:
        """Lease exports that are declared `commit: required` as their writer, until the end of the connection.

        Waits up to `wait` seconds for another writer. The code of the error is `writing` or `committed`.
        """
        self._await("write", exports, wait)

    def await_commit(self, exports: Collection[str], *, wait: float = 0.0) -> None:
        """Wait up to some seconds until a writer has committed exports; then the code of the error is `uncommitted`."""
        self._await("await", exports, wait)

    def commit(self, exports: Collection[str], generations: Mapping[str, int | None] | None = None) -> None:
        """Commit exports that this process leases and has written, in some generations of their objects.

        They are by default those of the handles that it received last; 1 if unknown. The code of the error is `lease`
        or `stale`, and then none of them is committed.
        """
        written = self.generations if generations is None else generations
        named = [{"name": name, "generation": written.get(name) or 1} for name in exports]
        self.request("commit", Acknowledgement, exports=named)

    def _await(self, name: str, exports: Collection[str], wait: float) -> None:
        names = list(exports)
        until = self.system.now() + wait
        while True:
            left = min(max(until - self.system.now(), 0.0), LONGEST_WAIT)
            try:
                more: dict[str, object] = {"exports": names, "wait": left}
                answer = self.request(name, Acknowledgement, timeout=left + CHECK_TIMEOUT, **more)
                self._follow(answer.generation)
            except ExchangeError as error:
                if left < LONGEST_WAIT or error.code not in ("writing", "uncommitted"):
                    raise
            else:
                return

    def _follow(self, generation: int | None) -> None:
        """Request the offers again next time, if the layout is of another generation."""
        if generation != self.generation:
            self._offers, self.generation = None, generation

    def switch(
        self, state: str, *, full: bool = False, force: bool = False, wait: float = 0.0, timeout: float = SWITCH_TIMEOUT
    ) -> Switched:
        """Let the holder bring the layout to one of its states, and return the results of its check.

        A `full` check compares all bytes that are kept with what they were.
        Importers of memory that goes have `wait` seconds to let go of it. The holder refuses if one still has handles
        then; with `force` it goes on, and they keep the old memory.
        """
        more: dict[str, object] = {"wait": wait} if wait else {}
        more |= {"check": "full"} if full else {}
        more |= {"state": state, "force": force}
        return self.request("switch", Switched, timeout=timeout + wait, **more)

    def save(self, folder: str) -> Saved:
        """Let the holder save the bytes of the layout to a folder, by its absolute path."""
        return self.request("save", Saved, timeout=SAVE_TIMEOUT, folder=folder)

    def change(
        self,
        source: str,
        *,
        generation: int | None = None,
        full: bool = False,
        force: bool = False,
        wait: float = 0.0,
        timeout: float = CHANGE_TIMEOUT,
    ) -> Changed:
        """Let the holder bring the layout to the spec in a source, and return the results of its check.

        A `full` check verifies bytes as well. A `generation` that is not the layout's is refused. `force` and `wait`
        are as for `switch`.
        """
        terms = {"generation": generation, "check": "full" if full else "fast", "force": force, "wait": wait}
        starts = range(0, len(source), messages.TEXT_CHARACTERS)
        *parts, last = [{"first": first, **messages.text_part(source, first)} for first in starts]
        for part in parts:
            self.request("change", Acknowledgement, timeout=timeout + wait, source=part, **terms)
        self._offers = None
        return self.request("change", Changed, timeout=timeout + wait, source=last, **terms)

    @contextmanager
    def followed(self, progress: Progress) -> Iterator[None]:
        """Call hooks with the progress of the requests that are made inside, as far as the holder reports it."""
        before, self.progress = self.progress, _Followed(progress).update
        try:
            yield
        finally:
            self.progress = before

    def statistics(self) -> Statistics | None:
        """Return the statistics of the layout; None if its holder reports none, and has ended the connection."""
        try:
            return self.request("metrics", Statistics)
        except ExchangeError as error:
            if error.code == "request":
                return None
            raise

    def source(self) -> str:
        """Return the source from which the layout can be drawn; empty if the holder does not report it."""
        with self.validated():
            return self._text("source")

    def release(
        self,
        *,
        force: bool = False,
        grace: float = 5.0,
        wait: float = 60.0,
        end: Callable[[], LayoutEnd | None] = lambda: None,
    ) -> Released:
        """Request the release of the layout, and wait up to `wait` seconds for the end of its teardown.

        `end` returns the processes of a user that still have memory. Those of a lost layout are waited for only once:
        a process that does not leave by itself has to be ended. The holder refuses while others are bound to the
        layout over ipc; with `force` it notifies them, and they have `grace` seconds.
        """
        patience = min(wait or self.timeout, self.timeout) + (grace if force else 0.0)
        answer = self.request("release", messages.ReleaseAnswer, timeout=patience, force=force, grace=grace)
        until, found = self.system.now() + wait, None
        gone, notice = self.wait_closed(min(wait, _LOOK))
        while not gone and not notice and self.fileno() >= 0:
            found = end()
            left = until - self.system.now()
            if left <= 0 or (found and found.lost):
                break
            gone, notice = self.wait_closed(min(left, _LOOK))
        done = Released(answer.name, answer.lost, answer.kept, gone=gone, end=None if gone else found)
        if notice:
            with self.validated():
                told = wire.read(messages.EndNotice, notice, "the notice of its end")
            return replace(done, outcome=told.outcome, exit_code=told.exit_code, reason=told.reason)
        if gone and answer.reports:
            return replace(done, outcome="died", exit_code=Exit.FAILED, reason="its holder ended without a report")
        return done

    def notice(self, timeout: float = 0.0) -> Notice | None:
        """Return a notice of the holder, if one arrives within `timeout` seconds."""
        notice = super().notice(timeout)
        if notice and notice.kind == "changed":
            self._follow(notice.generation)
        return notice

    def _handles(self, offer: Offer, first: int, stop: int, batch: int) -> Iterator[Handle]:
        """Request and yield handles, each of which the caller owns.

        Raises `ExchangeError`, with the code `changed` if the export was changed since the earlier ones, or the offer.
        """
        self.generations.pop(offer.name, None)
        while first < stop:
            count = min(batch, stop - first)
            with self._received("handles", offer, first=first, count=count) as packet:
                answer = wire.read(messages.HandlesAnswer, packet.message, "the answer to 'handles'")
                generation = answer.generation
                if self.generations.setdefault(offer.name, generation) != generation:
                    self._offers = None
                    raise self._changed(offer)
                if answer.offer != offer and self.fresh_offers().get(offer.name) != offer:
                    raise self._changed(offer)
                if answer.offer != offer or answer.first != first or len(answer.handles) > count:
                    raise BadPacket(f"{offer.name!r} differs from its offer")
                if not answer.handles:
                    raise BadPacket(f"0 handles of {offer.name!r} came with {len(packet.fds)} descriptors")
                has = {"descriptors": offer.descriptors, "secrets": offer.secrets}
                pending = deque(messages.decode_handles(answer.handles, packet.fds, **has, of=offer.name))
            first += len(pending)
            try:
                self.name_lease()
                while pending:
                    yield pending.popleft()
            finally:
                close_handles(pending)

    @contextmanager
    def _received(self, request: str, offer: Offer, **terms: Any) -> Iterator[Packet]:
        """Request handles of an export; their descriptors are closed if the code inside fails."""
        if offer.descriptors:
            reserve_descriptors(terms["count"])
        packet = self.exchange(request, export=offer.name, **terms)
        with self.validated(), on_failure(packet.close):
            yield packet

    def _changed(self, offer: Offer) -> ExchangeError:
        """Return the error for an export that was changed since its offer or earlier handles were received."""
        message = f"export {offer.name!r} was changed while its handles were received"
        return self.error("changed", message, "close them, and request all of them again")


def _parts(blocks: Mapping[int, int]) -> Iterator[list[dict[str, int]]]:
    """Yield blocks, by number with their epoch, in parts that fit into one packet each."""
    entries = [{"number": number, "epoch": epoch} for number, epoch in blocks.items()]
    for first in range(0, len(entries), _BLOCKS):
        yield entries[first : first + _BLOCKS]


class _Followed:
    """Calls hooks as the notices of a holder come."""

    def __init__(self, hooks: Progress) -> None:
        self._hooks, self._phase, self._counted = hooks, "", PhasePart(0, 0)

    def update(self, phase: str, part: PhasePart) -> None:
        if phase != self._phase or part.done < self._counted.done:
            self._phase, self._counted = phase, PhasePart(0, 0)
            self._hooks.phase(phase, 0)
        self._hooks.extend(max(part.total - self._counted.total, 0))
        self._hooks.advance(part.done - self._counted.done)
        self._counted = part


def connect(
    endpoint: Endpoint,
    *,
    timeout: float = TIMEOUT,
    allow_uids: Collection[int] = (),
    suggest: bool = True,
    system: System = SYSTEM,
) -> Client:
    """Connect to the holder at an endpoint.

    Raises `NoLayout` if no process holds a layout there, with a name that was probably meant if it is to `suggest` one,
    and `ExchangeError` if the holder is another user's or does not answer.
    """
    sock = connected_socket(endpoint, timeout=timeout, allow_uids=allow_uids, suggest=suggest)
    return Client(sock, endpoint.path, timeout=timeout, allow_uids=allow_uids, system=system)
