"""A layout that stands in this process, for whoever uses its memory."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from types import MappingProxyType, TracebackType
from typing import Generic, TypeVar, Unpack

from memtopo.api.dtypes import dtype as known_dtype
from memtopo.api.errors import NotApplied, Unsuitable, ViewOutlived
from memtopo.api.memory import Found, Memory, Part, Shape, Wish, extents, unknown
from memtopo.api.session import Session
from memtopo.api.synchronization import Event, ExternalSemaphore
from memtopo.api.views import Lending, View
from memtopo.kinds.layout import Reservation
from memtopo.plans.report import Checks, MachineLine, PlanSummary, Report


class Live:
    """What is there, by the labels of the spec: `kv`, or `page.3` of a counted entry.

    Of the methods that give a view: `dtype` is a name such as `float16` or NumPy's or PyTorch's object for it, `offset`
    and `size` are bytes, and one extent of `shape` may be -1. `device` is a name of the spec, `gpu0` or an ordinal, and
    `host`; without one it is whichever may do most with the memory. They raise `Unsuitable` where something is not
    there, has holes, or is out of the device's reach, and once the layout was taken down.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._memory = Memory(session.geometry)
        self._lending = Lending(session, self._memory)
        self.report: Report | None = None
        """What happened, from building to taking down; None until that is over."""

    @property
    def name(self) -> str:
        """The layout's name."""
        return self._session.geometry.name

    @property
    def machine(self) -> MachineLine:
        """The machine, in the words of a report."""
        return self._session.machine

    @property
    def plan(self) -> PlanSummary:
        """What was carried out, with what it takes of each location and the spec's warnings."""
        return self._session.plan

    @property
    def ranges(self) -> Mapping[str, Reservation]:
        """Address and size of each range."""
        return MappingProxyType(self._session.layout.ranges)

    @property
    def buffers(self) -> Mapping[str, Reservation]:
        """Address and size of each buffer, and of all that is mapped of external memory."""
        return MappingProxyType(self._session.layout.buffers)

    def address(self, name: str) -> int:
        """Where a range, a buffer or managed memory begins, for the GPU; on a simulator, no address of this process."""
        self._stands()
        managed = self._session.layout.managed
        found = self.ranges.get(name) or self.buffers.get(name) or managed.get(name)
        if found is None:
            raise unknown("range, buffer or managed memory", name, [*self.ranges, *self.buffers, *managed])
        return found.address

    def range(self, name: str, dtype: object = "uint8", **part: Unpack[Part]) -> View:
        """A range, or a part of it; it must be mapped throughout."""
        return self._view("range", name, self._memory.range, self._wish(dtype, **part))

    def chunk(self, name: str, dtype: object = "uint8", **part: Unpack[Part]) -> View:
        """A chunk, or a part of it, at one of the places where it is mapped."""
        return self._view("chunk", name, self._memory.chunk, self._wish(dtype, **part))

    def buffer(self, name: str, dtype: object = "uint8", **part: Unpack[Part]) -> View:
        """A buffer, or a part of it, for its own GPU."""
        return self._view("buffer", name, self._memory.buffer, self._wish(dtype, **part))

    def managed(self, name: str, dtype: object = "uint8", **part: Unpack[Part]) -> View:
        """Managed memory, or a part of it, for the host or for one of its GPUs; without a `device`, for the first."""
        return self._view("managed memory", name, self._memory.managed, self._wish(dtype, **part))

    def external(self, name: str, dtype: object = "uint8", **part: Unpack[Part]) -> View:
        """What another API made, as a whole (`frame`) or one of its buffers (`frame.y`), for its own GPU."""
        return self._view("external memory", name, self._memory.external, self._wish(dtype, **part))

    def event(self, name: str) -> Event:
        """An event, to be recorded, waited for and asked."""
        self._stands()
        devices = self._session.events
        if name not in devices:
            raise unknown("event", name, devices)
        return Event(name, devices[name], self._session.driver, self._session.layout)

    def semaphore(self, name: str) -> ExternalSemaphore:
        """A semaphore of another API, to be waited for and signalled once more: the check did what the spec says."""
        self._stands()
        found = self._session.geometry.semaphores.get(name)
        if found is None:
            raise unknown("semaphore", name, self._session.geometry.semaphores)
        return ExternalSemaphore(name, found.place.id, self._session.driver, self._session.layout)

    def check(self) -> Checks:
        """Ask the driver about everything once more; queries only. Raises `StepFailed`."""
        self._stands()
        return self._session.run.look()

    def end(self) -> tuple[Report, Iterable[str]]:
        """Take everything down; the report, and the names of the views that are still in use."""
        outlived = self._lending.outlived()
        self.report = self._session.end()
        self._lending.close(in_use=bool(outlived))
        return self.report, outlived

    def _wish(
        self,
        dtype: object,
        *,
        shape: Shape = None,
        offset: int = 0,
        size: int | None = None,
        device: str | int | None = None,
    ) -> Wish:
        self._stands()
        return Wish(known_dtype(dtype), extents(shape), offset, size, device)

    def _view(self, what: str, name: str, find: Callable[[str, Wish], Found], wish: Wish) -> View:
        return self._lending.view(f"{what} {name!r}", find(name, wish), wish)

    def _stands(self) -> None:
        if self._lending.closed:
            raise Unsuitable(f"layout {self.name!r} was taken down, and with it all that is in it")

    def __repr__(self) -> str:
        state = "taken down" if self._lending.closed else "simulated" if self.machine.simulated else "live"
        return f"<layout {self.name} on {self.machine.name}: {state}>"


L = TypeVar("L", bound=Live)


class Standing(Generic[L]):
    """Something for a `with`: builds on entering, takes down on leaving, once."""

    def __init__(self) -> None:
        self._live: L | None = None
        self._entered = False
        self._around = ExitStack()
        """What has to be there for as long as the layout is."""

    def __enter__(self) -> L:
        if self._entered:
            raise Unsuitable("a layout is entered once; call again for another one")
        self._entered = True
        with ExitStack() as stack:
            stack.push(self._around)
            self._live = self._build()
            stack.pop_all()
        return self._live

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        live, self._live = self._live, None
        if live is None:
            return
        with self._around:
            report, outlived = live.end()
        live.report = report = self._over(report)
        if outlived:
            told = f"layout {live.name!r} was taken down under views that are still in use: {', '.join(outlived)}"
            warnings.warn(f"{told}; delete them within the 'with'", ViewOutlived, stacklevel=2)
        if not report.exit_code:
            return
        if error is None:
            raise NotApplied(report)
        error.add_note(str(NotApplied(report)))

    def _over(self, report: Report) -> Report:
        """The report, once what was around the layout is gone as well."""
        return report

    def _build(self) -> L:
        raise NotImplementedError
