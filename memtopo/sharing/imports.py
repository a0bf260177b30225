"""Imports from holders outside of the spec: a connection to each, and its handles in the order of the steps."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress

from msgspec import Struct

from memtopo.common.errors import ExchangeError, MemtopoError, NoLayout, at_entry, on_failure
from memtopo.common.text import process_name
from memtopo.driver.handles import Handle, close_handles
from memtopo.geometry import Geometry
from memtopo.geometry.groups import Group, from_outside
from memtopo.kinds.layout import HandleSource, LentBlock
from memtopo.sharing.client import IN_FLIGHT, Client, connect
from memtopo.sharing.endpoints import endpoint
from memtopo.sharing.sockets import SYSTEM, System
from memtopo.sharing.status import Notice
from memtopo.sharing.terms import correction, described, differences

NOT_NOW = ("absent", "changed", "changing", "releasing", "uncommitted", "unknown")
"""Codes of errors of exports that their holder does not provide at present."""


COMMIT_POLL = 0.2
"""Seconds of one request to wait for a commit, between which a run looks for signals."""


def attend(client: Client, exports: Iterable[str]) -> None:
    """Be an importer of exports that lend, and know their generation, before anything is lent."""
    for export in exports:
        try:
            client.lend(export, 0)
        except ExchangeError as error:
            if error.code not in NOT_NOW:
                raise


class ImportMismatch(MemtopoError):
    """An offer of a holder that differs from the import's declaration."""


class Version(Struct, frozen=True):
    """Objects of an export, as they are until they are made anew: the connection to their holder, and their generation.

    The generation is 0 if it is unknown.
    """

    client: Client
    generation: int


class CommitWait(Struct, frozen=True):
    """Wait for the commit of imports, for at most `seconds`.

    `report` is called when it begins, with the reason, and `advance` every `COMMIT_POLL` seconds; it may raise to end
    the wait.
    """

    seconds: float = 0.0
    advance: Callable[[], None] = lambda: None
    report: Callable[[str], None] = lambda _: None


class HolderHandles(HandleSource):
    """Source of handles from holders. `bound` has paths of sockets by names of holders (`--with NAME=PATH`).

    `gpus` are the UUIDs of this process's GPUs in hexadecimal digits, which are the same in every process (fact 38).
    Attaching to a holder waits until what is imported from it is committed, as `commits` says; without it, handles of
    what is not committed are refused, except to its writer.
    """

    def __init__(
        self,
        geometry: Geometry,
        gpus: Sequence[str],
        bound: Mapping[str, str] | None = None,
        allow_uids: Collection[int] = (),
        commits: CommitWait | None = None,
        system: System = SYSTEM,
    ) -> None:
        self.expect(geometry)
        self._commits, self.system = commits, system
        self._gpus, self._bound, self._allow_uids = gpus, bound or {}, allow_uids
        self._clients: dict[str, Client] = {}
        self._handles: dict[tuple[str, str], Iterator[Handle]] = {}
        self._open: list[Handle] = []
        self._required: Mapping[tuple[str, str], Version] = {}

    def expect(self, geometry: Geometry) -> None:
        self._imports = [group for group in geometry.every if from_outside(group)]

    def attach(self, holder: str) -> int:
        imports = [(each, export) for each, source, export in self._sources() if source == holder]
        client = self._clients[holder] = self._connect(holder, [each for each, _ in imports])

        def compare() -> None:
            for each, export in imports:
                self._check_offer(each, export, client, holder)

        with on_failure(self.detach, holder):
            compare()
            if self._commits and _await_commits(client, [export for _, export in imports], self._commits):
                compare()
            if growing := [export for each, export in imports if each.growing]:
                attend(client, growing)
                client.fresh_offers()  # of that generation
                compare()
        return client.pid

    def detach(self, holder: str) -> None:
        self.settle()
        self._clients.pop(holder).close()

    def take(self, holder: str, export: str, index: int) -> Handle:
        if index == 0:
            self._compare(holder, export)
        key = (holder, export)
        try:
            if index == 0 or key not in self._handles:
                self._handles[key] = self._clients[holder].handles(export, index)
            handle = next(self._handles[key])
        except ExchangeError as error:
            imports = " and ".join(map(described, self._imports_from(holder, export)))
            message = f"{imports} cannot be imported: {error.message}"
            raise ExchangeError(error.code, message, hint=error.hint) from error
        if (required := self._required.get(key)) and self.version(holder, export) != required:
            handle.close()
            message = f"export {export!r} has other memory now than the memory that this process had of it"
            raise self._clients[holder].error("changed", message, "attach anew")
        if len(self._open) == IN_FLIGHT:
            self._close_taken()
        self._open.append(handle)
        return handle

    def lend(
        self, holder: str, export: str, count: int, *, key: str | None = None, first: int = 0, epoch: int | None = None
    ) -> tuple[Sequence[LentBlock], int]:
        self._close_taken()
        client, before = self._clients[holder], self.version(holder, export).generation
        blocks, total = client.lend(export, count, key=key, first=first, epoch=epoch)
        self._open += [block.handle for block in blocks]
        if before not in (0, client.generations[export]):
            try:  # a change, whose notice is not followed yet, may have given the export another pool
                client.fresh_offers()
                self._compare(holder, export, but="count")
            except BaseException:
                client.generations[export] = before
                self._close_taken()
                with suppress(ExchangeError):
                    client.give_back(export, {block.number: block.epoch for block in blocks})
                raise
        return blocks, total

    def give_back(self, holder: str, export: str, blocks: Mapping[int, int]) -> None:
        self._clients[holder].give_back(export, blocks)

    def seal(self, holder: str, export: str, blocks: Mapping[int, int], key: str | None) -> None:
        self._clients[holder].seal(export, blocks, key)

    def gone(self, holder: str) -> bool:
        return self._clients[holder].gone()

    def settle(self) -> None:
        self._close_taken()
        for handles in self._handles.values():
            with closing(handles):  # type: ignore[type-var]
                pass
        self._handles.clear()

    def notice(self, timeout: float) -> tuple[str, Notice] | None:
        """Return the next notice of an attached holder, with the holder's name, if one arrives in time.

        Raises `ExchangeError` once if a holder is gone, and whenever all of them are.
        """
        until = self.system.now() + timeout
        while True:
            some = [holder for holder, client in self._clients.items() if client.fileno() >= 0]
            for holder in some or self._clients:
                if notice := self._clients[holder].notice(0.0):
                    return holder, notice
            if (left := until - self.system.now()) <= 0:
                return None
            self.system.wait([client for client in self._clients.values() if client.fileno() >= 0], left)

    def version(self, holder: str, export: str) -> Version:
        """Return the version of the objects whose handles were received last."""
        client = self._clients[holder]
        return Version(client, client.generations.get(export) or 0)

    @contextmanager
    def requiring(self, versions: Mapping[tuple[str, str], Version]) -> Iterator[None]:
        """Refuse handles of other versions of some exports, by holder and name, in the code inside."""
        self._required = versions
        try:
            yield
        finally:
            self._required = {}

    def available(self, holder: str, export: str, imported: Version | None) -> bool:
        """Return whether the holder provides an export now, by the request of one handle.

        Raises `ImportMismatch` if its offer is not as declared; one that stays `imported` may have another count.
        """
        client = self._clients[holder]
        try:
            if export not in client.offers():
                return False
            self._compare(holder, export, but="count" if imported else "")
            if client.offers()[export].lends:
                client.lend(export, 0)
            else:
                for handle in client.handles(export, 0, 1):
                    handle.close()
            if imported != self.version(holder, export):
                client.fresh_offers()
                self._compare(holder, export)
        except ExchangeError as error:
            if error.code not in NOT_NOW:
                raise
            return False
        return True

    def let_go(self, holder: str, exports: Iterable[str]) -> None:
        """Close all received handles, and report that nothing of some exports is imported."""
        self.settle()
        if names := list(exports):
            self._clients[holder].let_go(names)

    def _close_taken(self) -> None:
        close_handles(self._open)
        self._open.clear()

    def _compare(self, holder: str, export: str, but: str = "") -> None:
        """Compare an import with its offer, `but` for a property; a change may have added it to a connection."""
        for each in self._imports_from(holder, export):
            self._check_offer(each, export, self._clients[holder], holder, but)

    def _imports_from(self, holder: str, export: str) -> list[Group]:
        return [each for each, *source in self._sources() if source == [holder, export]]

    def _sources(self) -> Iterator[tuple[Group, str, str]]:
        """Yield each import with each of the holders, and the name of the export there, that it is from."""
        for each in self._imports:
            assert each.origin
            yield from ((each, *source) for source in each.origin.sources)

    def _connect(self, holder: str, imports: Sequence[Group]) -> Client:
        path = self._bound.get(holder, holder if "/" in holder else None)
        try:
            where = endpoint(socket=path) if path else endpoint(holder)
            return connect(where, allow_uids=self._allow_uids, system=self.system)
        except NoLayout as error:
            external = next((each for each in imports if each.produced), None)
            if external is None or path:
                raise
            message = f"no process offers {described(external)}: {error.message}"
            hint = f"--with {holder}=/path/to/its/socket, or --with '{holder}=COMMAND'; in Python, bind="
            raise NoLayout(message, hint=hint) from error

    def _check_offer(self, each: Group, export: str, client: Client, holder: str, but: str = "") -> None:
        with at_entry(each.path):
            offer = client.offers().get(export)
            if offer is None:
                client.handles(export)  # raises an error with the nearest name
                return
            if wrong := differences(each, export, offer, self._gpus, but):
                declared = " and ".join(f"{one.what} {one.declared}" for one in wrong)
                offered = " and ".join(one.offered for one in wrong)
                message = f"{described(each)} declares {declared}; {holder}/{export} has {offered}"
                with at_entry((*each.path, wrong[0].key)):
                    raise ImportMismatch(f"{message} (holder: {process_name(client.pid)})", hint=correction(wrong))


def _await_commits(client: Client, exports: Sequence[str], terms: CommitWait) -> bool:
    """Wait until all imports from a holder are committed; return whether any was not. Raises `ExchangeError`."""
    offers = client.offers()
    awaited = [name for name in dict.fromkeys(exports) if offers[name].commit not in (None, "committed")]
    if not awaited:
        return False
    until = client.system.now() + terms.seconds
    if terms.seconds and (why := _uncommitted(client, awaited, 0.0)):
        terms.report(f"waiting for up to {terms.seconds:g} s: {why.message}")
        while (left := until - client.system.now()) > 0 and _uncommitted(client, awaited, min(left, COMMIT_POLL)):
            terms.advance()
    if why := _uncommitted(client, awaited, 0.0):
        raise why
    return True


def _uncommitted(client: Client, exports: Sequence[str], wait: float) -> ExchangeError | None:
    """Wait for the commit of exports; return the error if they are not committed. Raises `ExchangeError` for others."""
    try:
        client.await_commit(exports, wait=wait)
    except ExchangeError as error:
        if error.code != "uncommitted":
            raise
        return error
    return None
