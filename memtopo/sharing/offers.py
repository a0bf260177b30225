"""Offers of a process to others: exports by name, and the handles of a live layout, made on request."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Protocol, runtime_checkable

from msgspec import Meta, Struct
from msgspec.structs import replace

from memtopo.common.errors import ExchangeError, Exit, MemtopoError
from memtopo.common.text import nearest
from memtopo.common.units import NamedPart, shorten
from memtopo.diagnostics.messages import COMPARED, LISTED, choose
from memtopo.driver.handles import DESCRIPTORS, Handle, OfferedKind, Via
from memtopo.driver.protocol import Driver
from memtopo.driver.recorder import CallContext
from memtopo.driver.types import LocationKind
from memtopo.geometry import Geometry
from memtopo.geometry.groups import RangeGroup, in_turns, property_words
from memtopo.kinds.elastic import ELASTIC_POOLS
from memtopo.kinds.exportable import ExportGroup
from memtopo.kinds.layout import Layout
from memtopo.language.limits import LARGEST_PARTS
from memtopo.plans.report import Checks
from memtopo.sharing.wire import Count, Name, Pid, Positive, Text

if TYPE_CHECKING:
    from memtopo.storage.saved import Saved

CommitState = Literal["empty", "writing", "committed"]
"""Content of an export that a writer commits: none, some that its writer may change, or complete."""


_POOLED: OfferedKind = "allocation"


MOST_RANGES = 512
"""Elastic ranges that an offer names."""


class LentRange(Struct, frozen=True):
    """Elastic range of the holder, in which lent objects may be mapped, with its bytes of addresses."""

    name: Name
    size: Positive


class _Terms(Struct, frozen=True):
    """Base of terms, which are equal if all fields are but those of the present `state`."""

    state: ClassVar[frozenset[str]]

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._terms() == other._terms()

    def __hash__(self) -> int:
        return hash(self._terms())

    def _terms(self) -> tuple[object, ...]:
        return tuple(getattr(self, name) for name in self.__struct_fields__ if name not in self.state)


class Lending(_Terms, frozen=True):
    """Terms on which objects are lent: the largest number for one client, and the ranges in which they are mapped.

    The first `kept` exist also if they are not lent. `lent` are chunks that clients have now, `sealed` chunks that are
    kept for a successor, which nobody has.
    """

    state = frozenset({"lent", "sealed"})
    quota: Positive | None
    kept: Count = 0
    ranges: Annotated[tuple[LentRange, ...], Meta(max_length=MOST_RANGES)] = ()
    lent: Count = 0
    sealed: Count = 0


class Offer(_Terms, frozen=True):
    """One export: `count` equal objects of `size` bytes each, at a `location` (`gpu0`, `host:0`).

    The size of events and semaphores is 0. `gpu` is the UUID of the GPU in hexadecimal digits, since ordinals differ
    between processes (fact 38). `properties` are words: the flags of a chunk; of external memory, dedicated. `declared`
    is the size before it was rounded up to whole blocks, if it is known. `parts` are those of each object, which are
    names only, so that they change without the generation of the layout. `commit` is None unless a writer commits the
    content, and `writer` the process that is writing it, by its number in the pid namespace of the holder; both change
    without the generation of the layout. The handles are those of the objects from number `first` on of the spec's
    `entry`, which is None if it is unknown. Objects that are lent have terms for that, and at most `count` exist.
    """

    state = frozenset({"parts", "commit", "writer", "entry", "first"})
    foreign: ClassVar = "writer"
    name: Name
    kind: OfferedKind
    via: Via
    count: Positive
    size: Count
    location: Annotated[str, Meta(max_length=300)]
    gpu: Text | None = None
    properties: Annotated[tuple[Text, ...], Meta(max_length=16)] = ()
    declared: Count | None = None
    parts: Annotated[tuple[NamedPart, ...], Meta(max_length=LARGEST_PARTS)] = ()
    commit: CommitState | None = None
    writer: Pid = None
    entry: Text | None = None
    first: Count = 0
    lends: Lending | None = None

    def __post_init__(self) -> None:
        if (self.declared or 0) > self.size:
            raise ValueError("'declared' is more than its size")
        if not all(each.offset >= 0 and 0 < each.size <= self.size - each.offset for each in self.parts):
            raise ValueError("one of its 'parts' is not within its size")

    def of_process(self, label: str, name: str) -> Offer:
        """Return the offer of a process of several, by a name of the layout."""
        lends = self.lends
        if lends:
            ranges = tuple(replace(each, name=f"{label}.{each.name}") for each in lends.ranges)
            lends = replace(lends, ranges=ranges)
        return replace(self, name=name, entry=f"{label}.{self.entry}", lends=lends)

    @property
    def objects(self) -> Hashable:
        """Identity of the entry whose objects are exported; exports of one have some of them in common."""
        return self.kind, self.size, self.entry, None if self.entry else self.name

    @property
    def descriptors(self) -> bool:
        """True if the handles are file descriptors."""
        return self.via in DESCRIPTORS

    @property
    def secrets(self) -> bool:
        """True if the handles are bytes, or have some beside the descriptor of a pool."""
        return not self.descriptors or self.kind == _POOLED

    @property
    def single(self) -> bool:
        """True if a process has to import each of the objects once: the first free would end all imports (fact 82)."""
        return self.kind == _POOLED

    @property
    def bound(self) -> bool:
        """True if importers have to let go of the objects before the holder does (facts 31, 32, 82)."""
        return ends_with_holder(self.kind, self.via)


def ends_with_holder(kind: OfferedKind, via: Via) -> bool:
    """Return whether what is imported becomes invalid when the holder releases it (facts 31, 32, 82)."""
    return via == "ipc" or kind == _POOLED


def unknown_export(name: str, offers: Iterable[str]) -> tuple[str, str]:
    """Message and hint for an export that is not among the offers."""
    known = list(offers)
    meant = nearest(name, known[:COMPARED])
    hint = choose(name, [meant] if meant else known[:LISTED]) if known else "nothing is exported"
    return f"there is no export {shorten(name)!r}", hint


def exported_bytes(offers: Iterable[Offer]) -> int:
    """Bytes of the objects of some offers; one that several exports have counts once, and one that exists if lent."""
    total, ends = 0, dict[Hashable, int]()
    for each in sorted(offers, key=lambda offer: offer.first):
        if each.lends:
            total += each.size * (each.lends.lent + each.lends.sealed)
            continue
        end = each.first + each.count
        before = ends.get(each.objects, 0)
        total += each.size * max(end - max(before, each.first), 0)
        ends[each.objects] = max(before, end)
    return total


class ExportProvider(Protocol):
    """The exports that a holder serves."""

    def offers(self) -> Sequence[Offer]:
        """Return the exports in the order of the spec; they do not change while they are served."""

    def handle(self, export: str, index: int) -> Handle:
        """Return a new handle of one object, whose descriptor the caller closes. Raises `MemtopoError`."""

    def check(self) -> Checks:
        """Check by queries that everything is as declared. Raises `MemtopoError`."""


@runtime_checkable
class Lender(Protocol):
    """Provider of exports that are lent."""

    def lend(self, export: str, count: int) -> Sequence[int]:
        """Have objects of an export for a client, and return their numbers.

        Raises `MemtopoError`, which is an `ExchangeError` (`full`) if there are not as many.
        """

    def take_back(self, export: str, numbers: Sequence[int]) -> None:
        """Have objects that no client has any more, and all that the export lent of another pool before a change.

        Raises `MemtopoError`.
        """

    def lent(self, export: str) -> Collection[int]:
        """Return the numbers of the objects of an export that were lent and not taken back. Raises `MemtopoError`."""


class ChangeFailed(MemtopoError):
    """Failed change or switch of a layout; `broken` if it can only be taken down, else it is as it was before."""

    exit_code = Exit.FAILED

    def __init__(self, message: str, *, broken: bool, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.broken = broken


class LayoutChange(Protocol):
    """A change or a switch of a held layout that is planned and not yet made."""

    @property
    def touched(self) -> frozenset[str]:
        """Names of the exports whose objects it releases or replaces."""

    @property
    def lost(self) -> frozenset[str]:
        """Names of the exports whose bytes it does not keep."""

    @property
    def reused(self) -> frozenset[str]:
        """Names of the exports that it empties, though some of their memory stays, which others will write."""

    def give_up(self) -> None:
        """Give back the contexts that planning has retained (fact 73): the change is not made."""

    def make(self, *, full: bool, in_use: frozenset[str] = frozenset()) -> Checks:
        """Make the change, and return the results of its check: by queries or, if `full`, also by bytes.

        Importers keep the memory of the `in_use` exports. Raises `ChangeFailed`, or another `MemtopoError` before the
        first call if the change does not fit.
        """


class ChangeableLayout(ExportProvider, Protocol):
    """A held layout that can be brought to another spec or to one of its states; its exports may differ afterwards."""

    @property
    def spec(self) -> str | None:
        """Path of the spec that the layout has now."""

    @property
    def source(self) -> str:
        """Text from which clients can draw the layout as it is now; empty if it is not reported."""

    @property
    def generation(self) -> int:
        """Number of the layout: 1 when it is built, and one more after each change that touched it."""

    @property
    def state(self) -> str:
        """Name of the state that the layout is in."""

    @property
    def states(self) -> Sequence[str]:
        """Names of all states, 'awake' first; only that one if the spec has no states."""

    def switch(self, state: str) -> LayoutChange:
        """Plan a switch to a state. Raises `MemtopoError` if there is no such state."""

    def save(self, folder: str, committed: Collection[str]) -> Saved:
        """Save the bytes of the layout to a folder, and the names of committed exports. Raises `MemtopoError`."""

    def renewal(self, exports: frozenset[str]) -> LayoutChange:
        """Plan the release and the new creation of the memory of some exports. Raises `MemtopoError`."""

    def change(self, source: str, generation: int | None) -> LayoutChange:
        """Plan a change to the spec in a source, which is the JSON text of `source` in docs/protocol/requests.md.

        Raises `MemtopoError` for an invalid spec, one of another layout, and a `generation` that is not the current
        one.
        """


SEND = "send"
"""Verb of the calls that make a handle for another process."""


class LayoutExports:
    """Export provider of a live layout; `check` compares everything with what the driver reports.

    No handle is kept: an open descriptor pins memory (fact 29), and IPC and fabric handles are secrets.
    """

    def __init__(
        self,
        geometry: Geometry,
        layout: Layout,
        driver: Driver,
        check: Callable[[], Checks],
        context: CallContext | None = None,
    ) -> None:
        self._geometry, self._exports = geometry, geometry.of(ExportGroup)
        self._layout, self._driver, self._check = layout, driver, check
        self._context = context or CallContext()

    def offers(self) -> Sequence[Offer]:
        return [
            offer_of(self._geometry, name, lambda n: self._driver.device_get_uuid(n).hex()) for name in self._exports
        ]

    def handle(self, export: str, index: int) -> Handle:
        group = self._exports[export]
        if not group.lends and not 0 <= index < group.count:  # a pool whose limit was lowered has larger numbers
            raise MemtopoError(f"export {export!r} has {group.count} handles, and none of number {index}")
        try:
            with self._context.within(SEND, f"{export}.{index}"):
                return group.exporter.handle(self._driver, self._layout, group, index)
        except KeyError as error:
            raise _absent(export) from error

    def lend(self, export: str, count: int) -> Sequence[int]:
        from memtopo.kinds.chunks.pools import NoneLeft, lend  # noqa: PLC0415 few layouts lend

        try:
            return lend(self._driver, self._layout, self._exports[export].group.name, count, export)
        except NoneLeft as error:
            raise ExchangeError("full", f"export {export!r}: {error.message}") from error
        except KeyError as error:
            raise _absent(export) from error

    def take_back(self, export: str, numbers: Sequence[int]) -> None:
        from memtopo.kinds.chunks.pools import take_back  # noqa: PLC0415 as above

        group = self._exports.get(export)
        own = group.group.name if group else None
        for name, pool in self._layout.of(ELASTIC_POOLS).items():  # a change may have given the export another one
            take_back(self._driver, self._layout, name, numbers if name == own else [*pool.lent], export)

    def lent(self, export: str) -> Collection[int]:
        group = self._exports.get(export)
        pool = self._layout.of(ELASTIC_POOLS).get(group.group.name) if group else None
        return [number for number, lender in pool.lent.items() if lender == export] if pool else ()

    def check(self) -> Checks:
        return self._check()


def offer_of(geometry: Geometry, name: str, uuid: Callable[[int], str]) -> Offer:
    """Return the offer of an export of a process; `uuid` returns that of a GPU by ordinal, in hexadecimal digits."""
    group = geometry.of(ExportGroup)[name]
    locations = in_turns(group.locations)
    # By UUID if all are GPUs; else by their names, which are the same in all processes of a machine.
    uuids = None
    if all(each.kind is LocationKind.GPU for each in locations):
        uuids = ",".join(uuid(each.id) for each in locations)
    words = ", ".join(map(str, locations))
    objects = group.group
    assert objects.offered_as
    whole = group.size == objects.size
    ranges = (
        LentRange(each.label(index), each.size)
        for each in geometry.of(RangeGroup).values()
        if each.elastic and any(chunk.name == objects.name for chunk in each.elastic.chunks)
        for index in range(each.count)
    )
    lending = Lending(group.quota, objects.count, tuple(islice(ranges, MOST_RANGES))) if group.lends else None
    return Offer(
        name=name,
        kind=objects.offered_as,
        via=group.via,
        count=group.count,
        size=group.size,
        location=words,
        gpu=uuids,
        properties=property_words(objects),
        declared=objects.declared_size if whole else group.size,
        parts=tuple(objects.parts) if whole else (),
        commit="empty" if group.commit else None,
        entry=objects.name,
        first=group.first,
        lends=lending,
    )


def _absent(export: str) -> ExchangeError:
    message = f"export {export!r} has no memory in the current state of the layout"
    return ExchangeError("absent", message, hint="'memtopo switch NAME awake' restores it")
