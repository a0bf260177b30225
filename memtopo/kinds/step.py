"""Steps: state-changing calls, each with its undo, its check, and its description in a plan."""

from __future__ import annotations

import fcntl
import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from functools import cache
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple, cast

from msgspec import Struct

from memtopo.common.errors import InternalError, MemtopoError, system_errors
from memtopo.diagnostics.model import Path
from memtopo.driver.handles import Handle
from memtopo.driver.protocol import Driver
from memtopo.driver.types import Location
from memtopo.geometry.groups import Group
from memtopo.kinds.layout import HandleSource, Layout, LayoutTable, current


class Phase(StrEnum):
    """Phases of building, in order; teardown goes through them in reverse."""

    OPEN = "open"
    RESERVE = "reserve"
    CREATE = "create"
    EXPORT = "export"
    IMPORT = "import"
    MAP = "map"
    GRANT = "grant"
    BIND = "bind"
    SETTLE = "settle"

    @property
    def uses_imports(self) -> bool:
        """True if its steps use what other processes created; these undo them before the creators release it."""
        return self in _USING_IMPORTS


_USING_IMPORTS = (Phase.IMPORT, Phase.MAP, Phase.GRANT, Phase.BIND, Phase.SETTLE)


class ErrorHint(NamedTuple):
    """Likely cause of an error, with the number of the fact in `docs/driver-facts.md`, and what to do.

    A cause may have the placeholders `{subject}`, `{where}` and `{bytes}`, filled from the description of the step.
    """

    cause: str | None
    advice: str


PROBE_ADVICE = "'memtopo probe' shows which features work here"
"""Advice for an error that depends on the machine."""

DEFECT_ADVICE = "'memtopo validate' should have found this: please report it, with the spec"
"""Advice for an error that only a defect of memtopo can cause."""


class StepDescription(Struct, frozen=True):
    """Step as a plan shows it. Consecutive steps with equal `like`, `bytes_each` and `note` are folded into one row."""

    subject: str
    where: str
    bytes_each: int = 0
    like: Hashable = None
    note: str = ""


class Finding(NamedTuple):
    """Comparison after building: the expected and the observed value of an `aspect` of a `subject`.

    `hint` says what to do if they differ. Without a difference, one finding may stand for several, `times` of them.
    """

    aspect: str
    subject: str
    expected: object
    observed: object
    path: Path = ()
    hint: str | None = None
    times: int = 1

    @classmethod
    def equal(cls, aspect: str, times: int = 1) -> Finding:
        """Return a finding without a difference, of which only the aspect is counted, so many times."""
        return cls(aspect, "", "", "", times=times)


class HandleReference(NamedTuple):
    """One handle of another process: holder, export, and index in the export; `text` is the export as in a spec.

    `resource` is what the holder exports, if it is a process of the same layout.
    """

    holder: str
    export: str
    number: int
    text: str
    resource: Hashable = None

    @classmethod
    def of(cls, group: Group, index: int) -> HandleReference:
        """Return the reference to the handle of one imported object."""
        assert group.origin
        process, number = group.origin.of(index)
        holder, export = group.origin.sources[index // group.origin.each]
        return cls(holder, export, number, group.origin.text(process), group.origin.resource(number))

    @property
    def imported(self) -> tuple[str, Hashable] | None:
        """Label of the exporting process of the layout, and its resource; None if the holder is outside of it."""
        return None if self.resource is None else (self.holder, self.resource)

    def fetch(self, source: HandleSource) -> Handle:
        """Return the handle from its holder. Raises `MemtopoError`."""
        return source.take(self.holder, self.export, self.number)

    def fetch_descriptor(self, source: HandleSource) -> int:
        """Return the descriptor of a handle that must be one. Raises `MemtopoError`."""
        fd = self.fetch(source).fd
        if fd is None:
            raise InternalError(f"{self.text}: received bytes instead of a descriptor")
        return fd

    def duplicate_descriptor(self, source: HandleSource, kind: type[MemtopoError] = MemtopoError) -> int:
        """Return a duplicate of such a descriptor, which the caller closes. Raises `MemtopoError`, of a `kind`."""
        received = self.fetch_descriptor(source)
        what, hint = "the received descriptor cannot be duplicated", "check the descriptor that the producer exports"
        with system_errors(kind, f"{self.text}: {what}", hint):
            return fcntl.fcntl(received, fcntl.F_DUPFD_CLOEXEC, 3)

    def fetch_bytes(self, source: HandleSource) -> bytes:
        """Return the bytes of a handle that must have them. Raises `MemtopoError`."""
        secret = self.fetch(source).secret
        if secret is None:
            raise InternalError(f"{self.text}: received a file descriptor instead of a handle")
        return secret.reveal()


class Readable(Struct, frozen=True):
    """Bytes of a resource at an offset of a range, a buffer or an area, with the GPUs that may read them there.

    Some of the GPUs may be `read_only`.
    """

    resource: Hashable
    label: str
    offset: int
    size: int
    gpus: tuple[int, ...]
    read_only: tuple[int, ...] = ()


class Reading(Struct, frozen=True):
    """Work that reads `resources`, which must not be undone before the step that waits for its end, `wait`, is done.

    Without one, the work has ended with the step that began it.
    """

    resources: tuple[Hashable, ...]
    wait: Step | None = None


class InChange(Struct, frozen=True):
    """Treatment of a step by a change of a layout.

    A `repeated` step is undone first, and done again last if the change does any other. With `renews_needs`, the
    resources that the step needs are created again when it is undone: only their end undoes it, or it has used them
    up. With `ends_with_needs`, the step is in effect for as long as these, whatever else is undone. A step that is
    `undone_late` is undone after all memory is released, so that a failure before that leaves it. If the GPU `runs_on`
    after `do`, the change goes on to create and map memory part by part.
    """

    repeated: bool = False
    renews_needs: bool = False
    ends_with_needs: bool = False
    undone_late: bool = False
    runs_on: bool = False


class Undoing(Struct, frozen=True):
    """Undo of a step in a plan: its driver call, empty if the undo of another step ends it, and a verb.

    The verb is empty if the plan of a change does not show the undo.
    """

    call: str = ""
    verb: str = ""


class Step(Struct, frozen=True):
    """One state-changing call, required by the spec's entry at `path`.

    If `do` raises `DriverError`, it has changed nothing, except access that ends with the mapping (fact 62). `undo`
    runs after success and failure, and has no effect if `do` did not finish. `check` only queries.
    """

    path: Path

    phase: ClassVar[Phase]
    verb: ClassVar[str]
    call: ClassVar[str]
    """Driver call of `do`; empty if `do` and `undo` have no effect, so that changes leave the step out."""
    in_change: ClassVar[InChange] = InChange()
    """Treatment of the step by a change of a layout."""
    undoing: ClassVar[Undoing] = Undoing()
    leaks_as: ClassVar[str] = ""
    """Noun of the resource that leaks if `undo` fails, before its label; empty if there is none."""
    provided: ClassVar[tuple[str, str] | None] = None
    """Noun of the resource that the step `provides`, and the field with its label or ordinal."""
    required: ClassVar[Mapping[str, str]] = {}
    """Nouns of the resources that the step `needs`, each with the field that has its label or ordinal."""
    hints: ClassVar[Mapping[str, ErrorHint]] = {}
    """Hints for errors of `call`, by the error's name without `CUDA_ERROR_`."""
    apart: ClassVar[frozenset[str]] = frozenset({"path"})
    """Fields that differ between steps of the same effect."""

    @property
    def calls(self) -> int:
        """Number of driver calls that `do` makes."""
        return 1

    @property
    def effect(self) -> Hashable:
        """State that the step creates; a change keeps the steps whose effect the new plan has, too.

        None if the state belongs to other steps, as access belongs to mappings; see `Kind.changes`.
        """
        return self.verb, _parameters(cast("Hashable", type(self)))(self)

    @property
    def provides(self) -> Hashable:
        """Resource that the step creates and later steps need; None if none does."""
        return self.provided and (self.provided[0], getattr(self, self.provided[1]))

    @property
    def allocates(self) -> tuple[Location, int] | None:
        """Location and bytes of the physical memory that exists while the step is done; None if there is none."""
        return None

    @property
    def counted(self) -> tuple[Location, int] | None:
        """Location and bytes that plans count while the step is done: its allocated and its managed memory."""
        return self.allocates

    @property
    def needs(self) -> tuple[Hashable, ...]:
        """Resources that have to be undone after this step if they are undone."""
        return tuple([(noun, attrgetter(field)(self)) for noun, field in self.required.items()])

    @property
    def imports(self) -> tuple[str, Hashable] | None:
        """Label of another process of the layout, and the resource of it that has to be undone after this step."""
        return None

    @property
    def own_address(self) -> int | None:
        """Address that the spec requires of the resource; 0 if the driver chooses one, None if it has none."""
        return None

    @property
    def keeps(self) -> Hashable:
        """Resource whose bytes exist while the step is done, even if the resource is gone; None for other steps."""
        return None

    @property
    def readable(self) -> Readable | None:
        """Bytes of a resource that GPUs can read while the step is done; None for other steps."""
        return None

    @property
    def reading(self) -> Reading | None:
        """Work that a change begins before it undoes any step; None for other steps."""
        return None

    @property
    def dry(self) -> Step:
        """Return the step as a list of calls is made of it, without an effect on files."""
        return self

    @property
    def position(self) -> tuple[str, int]:
        """Range and offset by which a change orders the steps of one phase; empty for the order of the plan."""
        return "", 0

    def await_import(self, layout: Layout) -> None:
        """Wait for the handle that `do` takes from another process of the layout. Raises `MemtopoError`."""

    def do(self, driver: Driver, layout: Layout) -> None:
        """Make the call, and add its result to the layout."""
        raise NotImplementedError

    def undo(self, driver: Driver, layout: Layout) -> None:
        """Release what `do` created."""

    def check(self, driver: Driver, layout: Layout) -> Iterator[Finding]:
        """Compare the state that the driver reports with the spec."""
        yield from ()

    def describe(self) -> StepDescription:
        """Describe the step for a plan."""
        raise NotImplementedError

    @classmethod
    def leak(cls, label: str) -> str:
        """Leak name of the resource with a label."""
        return f"{cls.leaks_as} {label}"

    def leak_name(self) -> str | None:
        """Name of the resource that leaks if `undo` fails; None if there is none."""
        return self.leak(self.describe().subject) if self.leaks_as else None

    def blocks(self) -> tuple[str, ...]:
        """Leak names of the steps that cannot be undone before this one is undone."""
        return ()

    def blocked_by_wait(self, device: int) -> tuple[str, ...]:
        """Leak names of resources that cannot be released while a stream of a GPU waits for a semaphore (fact 58)."""
        return ()


class TableStep(Step, frozen=True):
    """Base of steps whose effect is in a table of the layout until it is undone.

    `call` is made with the fields that the step `passes`, and the call of `undoing` ends what it has returned.
    """

    table: ClassVar[LayoutTable[Any, Any] | str]
    """Table of the layout, or the field of the layout that is one."""
    named_by: ClassVar[str] = "label"
    """Field with the key in the table."""
    passes: ClassVar[tuple[str, ...]] = ()
    """Fields that are the arguments of `call`, in order."""
    in_context: ClassVar[str] = ""
    """Field with the ordinal of the GPU in whose context `call` is made; empty if it needs none."""
    ended_in_context: ClassVar[bool] = False
    """True if the call that ends the effect is made in that context, too."""

    @property
    def key(self) -> Any:
        """Key in the table."""
        return getattr(self, self.named_by)

    @classmethod
    def objects(cls, layout: Layout) -> dict[Any, Any]:
        """Table of a layout."""
        found: dict[Any, Any] = getattr(layout, cls.table) if isinstance(cls.table, str) else layout.of(cls.table)
        return found

    def arguments(self, layout: Layout) -> tuple[Any, ...]:
        """Arguments of `call`, which may be taken from the layout or from another process."""
        return tuple(getattr(self, name) for name in self.passes)

    def kept(self, made: Any) -> Any:
        """Value in the table for what `call` has returned."""
        return made

    def end(self, driver: Driver, layout: Layout, found: Any) -> None:
        """End the effect of which the table has a value."""
        method(driver, self.undoing.call)(found)

    def do(self, driver: Driver, layout: Layout) -> None:
        arguments = self.arguments(layout)
        with self._context(driver, layout):
            self.objects(layout)[self.key] = self.kept(method(driver, self.call)(*arguments))

    def undo(self, driver: Driver, layout: Layout) -> None:
        objects = self.objects(layout)
        if self.key in objects:
            with self._context(driver, layout) if self.ended_in_context else nullcontext():
                self.end(driver, layout, objects[self.key])
                del objects[self.key]

    def _context(self, driver: Driver, layout: Layout) -> AbstractContextManager[None]:
        return current(driver, layout.contexts[getattr(self, self.in_context)]) if self.in_context else nullcontext()


def method(driver: Driver, call: str) -> Callable[..., Any]:
    """Method of a driver for a C function: `mem_free` for `cuMemFree`."""
    found: Callable[..., Any] = getattr(driver, _method_name(call))
    return found


@cache
def _method_name(call: str) -> str:
    return re.sub("(?<=.)(?=[A-Z])", "_", call.removeprefix("cu")).lower()


def first_difference(expected: Sequence[object], observed: Sequence[object]) -> int:
    """Index of the first observed value that is not as expected; the number of those observed if there is none."""
    if observed == expected[: len(observed)]:
        return len(observed)
    return next(at for at, (one, other) in enumerate(zip(expected, observed, strict=False)) if one != other)


def is_gone(step: Step, gone: set[Hashable]) -> bool:
    """Return true for a step that needs a resource that is gone; then what it provides is added to these."""
    if step.provides in gone or step.imports in gone or not gone.isdisjoint(step.needs):
        if step.provides is not None:
            gone.add(step.provides)
        return True
    return False


@cache
def _parameters(kind: Any) -> attrgetter[Any]:
    """Getter of the fields of a step that its effect depends on."""
    return attrgetter(*(name for name in kind.__struct_fields__ if name not in kind.apart))
