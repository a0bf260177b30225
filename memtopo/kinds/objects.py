"""Steps of objects that are one handle of the driver: created or imported, kept by label, exported, and ended."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import Any, ClassVar

from memtopo.driver.handles import Handle
from memtopo.driver.protocol import Driver
from memtopo.driver.types import HandleType
from memtopo.geometry.groups import Group
from memtopo.kinds.layout import Layout, Reservation, current
from memtopo.kinds.step import HandleReference, Phase, Step, StepDescription, TableStep, Undoing, method


class ObjectStep(TableStep, frozen=True):
    """Base of steps that create or import one object, which a table of the layout has under its label."""

    label: str

    size = 0
    """Bytes of its memory, a field of objects that have memory."""
    noun: ClassVar[str]
    """Noun for the objects in resources."""
    addressed: ClassVar[bool] = False
    """True if each object has an address of its own, which the driver chooses."""

    @property
    def provides(self) -> Hashable:
        return (self.noun, self.label)

    @property
    def own_address(self) -> int | None:
        return 0 if self.addressed else None

    def kept(self, made: int) -> Any:
        return Reservation(made, self.size) if self.addressed else made

    def end(self, driver: Driver, layout: Layout, found: Any) -> None:
        super().end(driver, layout, found.address if self.addressed else found)

    def leak_name(self) -> str:
        return self.leak(self.label)


class GpuObjectStep(ObjectStep, frozen=True):
    """Base of steps that make their object in the context of a GPU; `size` is 0 if it has no memory."""

    device: int
    size: int

    in_context = "device"


class ImportStep(ObjectStep, frozen=True):
    """Base of steps that take a handle from another process, their `source`, and import an object by it."""

    phase = Phase.IMPORT
    required: ClassVar = {"holder": "source.holder"}

    @property
    def source(self) -> HandleReference:
        raise NotImplementedError

    @property
    def note(self) -> str:
        """Transport of the handle, in a plan."""
        raise NotImplementedError

    @property
    def imports(self) -> tuple[str, Hashable] | None:
        return self.source.imported

    def arguments(self, layout: Layout) -> tuple[Any, ...]:
        return (self.source.fetch_bytes(layout.handle_source),)

    def describe(self) -> StepDescription:
        return StepDescription(self.label, self.source.text, self.size, self.source.holder, self.note)

    def await_import(self, layout: Layout) -> None:
        layout.handle_source.await_handle(self.source.holder, self.source.export, self.source.number)


class ImportShareable(ImportStep, frozen=True):
    """Base of steps that import the object of a shareable handle of a `kind`, a descriptor or bytes."""

    verb = "import"
    call = "cuMemImportFromShareableHandle"

    @property
    def kind(self) -> HandleType:
        raise NotImplementedError

    def arguments(self, layout: Layout) -> tuple[int | bytes, HandleType]:
        return self.source.fetch(layout.handle_source).shared, self.kind


class Alias(Step, frozen=True):
    """Base of steps that use an object `own` of this process as one that it imports from itself, without a call.

    Neither of legacy IPC nor of pools can a process import what it exports (facts 31, 47, 82).
    """

    label: str
    device: int
    size: int
    own: str

    opens: ClassVar[type[ImportStep]]
    """Step that would import the object in another process."""
    phase = Phase.IMPORT
    undoing = Undoing(verb="end use")
    calls = 0

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.verb, cls.call = f"use own {cls.opens.noun}", cls.opens.call

    @property
    def provides(self) -> Hashable:
        return (self.opens.noun, self.label)

    @property
    def needs(self) -> tuple[Hashable, ...]:
        return ((self.opens.noun, self.own),)

    def do(self, driver: Driver, layout: Layout) -> None:
        objects = self.opens.objects(layout)
        objects[self.label] = objects[self.own]

    def undo(self, driver: Driver, layout: Layout) -> None:
        self.opens.objects(layout).pop(self.label, None)

    def describe(self) -> StepDescription:
        return StepDescription(self.label, self.own, self.size, self.own.partition(".")[0])


class TryExport(Step, frozen=True):
    """Base of steps that export one of `count` handles as a test, so that a driver error occurs while building.

    The handle is closed: an open descriptor counts against the limit of the process and pins memory (fact 29), and
    bytes are secret. Each importer gets a new one on request, by the `export` of such a step.
    """

    label: str
    noun: str
    object: str
    via: str
    count: int

    phase = Phase.EXPORT

    @property
    def needs(self) -> tuple[Hashable, ...]:
        return ((self.noun, self.object),)

    def export(self, driver: Driver, layout: Layout) -> Handle:
        """Export the handle, which the caller closes."""
        raise NotImplementedError

    def do(self, driver: Driver, layout: Layout) -> None:
        self.export(driver, layout).close()

    def describe(self) -> StepDescription:
        note = f"{self.via}, one of {self.count:,} tried" if self.count > 1 else self.via
        return StepDescription(self.label, self.object.partition(".")[0], note=note)


class TryExportIpc(TryExport, frozen=True):
    """Base of steps that export an object of a GPU via legacy IPC, in the context of the GPU."""

    device: int

    creates: ClassVar[type[ObjectStep]]
    """Step that creates the object."""

    def export(self, driver: Driver, layout: Layout) -> Handle:
        found = self.creates.objects(layout)[self.object]
        with current(driver, layout.contexts[self.device]):
            return Handle.of(method(driver, self.call)(found.address if self.creates.addressed else found))


def import_each(groups: Iterable[Group], opening: type[Any], alias: type[Alias]) -> Iterator[Step]:
    """Yield the import of each object of some groups; an object that this process has itself is used in its place."""
    for group in groups:
        if group.origin is None:
            continue
        for index in range(group.count):
            fields = group.path, group.label(index), group.location_of(index).id, group.size
            own = group.origin.own_label(index)
            yield alias(*fields, own) if own else opening(*fields, HandleReference.of(group, index))
