"""Steps of objects that are one handle of the driver: created or imported, kept by label, exported, and ended."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, ClassVar

from memtopo.driver.handles import Handle
from memtopo.driver.protocol import Driver
from memtopo.geometry.groups import Group
from memtopo.kinds.layout import Layout, LayoutTable, Reservation, current
from memtopo.kinds.step import HandleReference, Phase, Step, StepDescription, Undoing


class ObjectStep(Step, frozen=True):
    """Base of steps that create or import one object, which a table of the layout has under its label.

    A subclass describes its object: `call` is made with the fields that it `passes` and returns the object, and the
    call of `undoing` ends it.
    """

    label: str

    size = 0
    """Bytes of its memory, a field of objects that have memory."""
    noun: ClassVar[str]
    """Noun for the objects in resources."""
    table: ClassVar[LayoutTable[str, Any] | str]
    """Table of the layout with the objects of the kind, or the field of the layout that has them."""
    addressed: ClassVar[bool] = False
    """True if each object has an address of its own, which the driver chooses."""
    passes: ClassVar[tuple[str, ...]] = ()
    """Fields that are the arguments of `call`, in order."""
    ended_in_context: ClassVar[bool] = False
    """True if the object is ended in the context that it is created in."""

    @property
    def provides(self) -> Hashable:
        return (self.noun, self.label)

    @property
    def own_address(self) -> int | None:
        return 0 if self.addressed else None

    @classmethod
    def objects(cls, layout: Layout) -> dict[str, Any]:
        """Live objects of the kind, by label."""
        found: dict[str, Any] = getattr(layout, cls.table) if isinstance(cls.table, str) else layout.of(cls.table)
        return found

    def arguments(self, layout: Layout) -> tuple[Any, ...]:
        """Arguments of `call`, which may be taken from the layout or from another process."""
        return tuple(getattr(self, name) for name in self.passes)

    def context(self, driver: Driver, layout: Layout) -> AbstractContextManager[None]:
        """Context that is current while `call` is made; by default it needs none."""
        return nullcontext()

    def do(self, driver: Driver, layout: Layout) -> None:
        arguments = self.arguments(layout)
        with self.context(driver, layout):
            self.objects(layout)[self.label] = self.kept(method(driver, self.call)(*arguments))

    def kept(self, made: int) -> Any:
        """Value in the table of the layout for what `call` has returned."""
        return made

    def undo(self, driver: Driver, layout: Layout) -> None:
        objects = self.objects(layout)
        if self.label in objects:
            with self.context(driver, layout) if self.ended_in_context else nullcontext():
                self.end(driver, objects[self.label])
                del objects[self.label]

    def end(self, driver: Driver, found: Any) -> None:
        """End an object: a handle, or an address and size."""
        method(driver, self.undoing.call)(found.address if self.addressed else found)

    def leak_name(self) -> str:
        return self.leak(self.label)


class GpuObjectStep(ObjectStep, frozen=True):
    """Base of steps that make their object in the context of a GPU; `size` is 0 if it has no memory."""

    device: int
    size: int

    def context(self, driver: Driver, layout: Layout) -> AbstractContextManager[None]:
        return current(driver, layout.contexts[self.device])

    def kept(self, made: int) -> Any:
        return Reservation(made, self.size) if self.addressed else made


def method(driver: Driver, call: str) -> Callable[..., Any]:
    """Method of a driver for a C function: `mem_free` for `cuMemFree`."""
    found: Callable[..., Any] = getattr(driver, _method_name(call))
    return found


@cache
def _method_name(call: str) -> str:
    return re.sub("(?<=.)(?=[A-Z])", "_", call.removeprefix("cu")).lower()


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

    def describe(self) -> StepDescription:
        return StepDescription(self.label, self.source.text, self.size, self.source.holder, self.note)

    def await_import(self, layout: Layout) -> None:
        layout.handle_source.await_handle(self.source.holder, self.source.export, self.source.number)


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
    """Export the first of `count` handles as a test, so that a driver error occurs while building.

    The handle is closed: an open descriptor counts against the limit of the process and pins memory (fact 29), and
    bytes are secret. Each importer gets a new one on request.
    """

    label: str
    noun: str
    object: str
    via: str
    count: int
    export: Callable[[Driver, Layout], Handle]

    apart = frozenset({"path", "export"})
    phase = Phase.EXPORT

    def __eq__(self, other: Any) -> bool:  # noqa: PYI032 a field is called object
        return type(self) is type(other) and (self.path, self.effect) == (other.path, other.effect)

    def __hash__(self) -> int:
        return hash(self.effect)

    @property
    def needs(self) -> tuple[Hashable, ...]:
        return ((self.noun, self.object),)

    def do(self, driver: Driver, layout: Layout) -> None:
        self.export(driver, layout).close()

    def describe(self) -> StepDescription:
        note = f"{self.via}, one of {self.count:,} tried" if self.count > 1 else self.via
        return StepDescription(self.label, self.object.partition(".")[0], note=note)


def import_each(groups: Iterable[Group], opening: type[Any], alias: type[Alias]) -> Iterator[Step]:
    """Yield the import of each object of some groups; an object that this process has itself is used in its place."""
    for group in groups:
        for index in range(group.count if group.origin else 0):
            assert group.origin
            of = group.path, group.label(index), group.location_of(index).id, group.size
            own = group.origin.own_label(index)
            yield alias(*of, own) if own else opening(*of, HandleReference.of(group, index))
