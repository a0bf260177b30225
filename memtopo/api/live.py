"""Live layouts: access to the memory, events and semaphores of a layout that was built in this process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import MappingProxyType
from typing import Any, Literal, Unpack

from memtopo.api.elastic import ElasticChunks, ElasticMemory, ElasticRange
from memtopo.api.errors import NotChanged, NotSwitched, Unsuitable
from memtopo.api.heaps import Heap
from memtopo.api.memory import LayoutMemory, ViewPart, ViewRequest, unknown
from memtopo.api.objects import DmaBuf, Event, ExternalSemaphore, stream_handle
from memtopo.api.session import IMPORTS_AS_BEFORE, Session, changing
from memtopo.api.specs import Params, SpecLike
from memtopo.api.tensors import LoadedTensors, view_of
from memtopo.api.views import View, ViewFactory
from memtopo.common.arguments import checked
from memtopo.common.signals import deferred
from memtopo.kinds.dmabuf import DMABUF
from memtopo.kinds.exportable import ExportGroup
from memtopo.kinds.external.semaphores import ImportedSemaphore
from memtopo.kinds.ipc import EventGroup
from memtopo.kinds.layout import Reservation
from memtopo.machine import MachineLine
from memtopo.plans.report import Checks, PlanSummary, Report
from memtopo.run.imports import OutsideImports
from memtopo.sharing.status import Notice
from memtopo.storage.pieces import Restored
from memtopo.storage.saved import FolderRefused, Saved
from memtopo.storage.tensors import Tensor

PathLike = str | os.PathLike[str]

Refused = type[NotSwitched] | type[NotChanged] | type[FolderRefused]
"""Error of a switch, a change or a save that is not made."""


class Live:
    """Objects of a layout by their labels in the spec: `kv`, or `page.3` of a counted entry.

    Methods that return a view take a `dtype`, which is a name such as `float16` or the object of NumPy or PyTorch for
    it; `offset` and `size` in bytes; and a `shape`, one extent of which may be -1. `device` is a name of the spec,
    `gpu0`, an ordinal or `host`; by default it is the device with the most access to the memory. All methods raise
    `Unsuitable` if there is no such object, if it is not mapped throughout, if the device has no access, and after the
    layout was taken down.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._memory = LayoutMemory(session.geometry)
        self._views = ViewFactory(session, self._memory)
        self._tensors = LoadedTensors(session)
        self._imports = session.imports(self._views.refresh)
        self.on_change: Callable[[Notice], object] | None = None
        """Function that `poll` calls with a notice before memory goes and after it is back; None if there is none."""
        self._elastic = ElasticMemory(session, self._memory, self._views)
        self.report: Report | None = None
        """Report from building to taking down; None until then."""
        self.completed: Callable[[Report], Report] = lambda report: report
        """Function that completes the report after what the layout needs has ended, too."""

    @property
    def name(self) -> str:
        """Name of the layout."""
        return self._session.geometry.name

    @property
    def machine(self) -> MachineLine:
        """Description of the machine, as in a report."""
        return self._session.machine

    @property
    def plan(self) -> PlanSummary:
        """Summary of the plan, with the memory used at each location and the spec's warnings."""
        return self._session.run.request.summary()

    @property
    def ranges(self) -> Mapping[str, Reservation]:
        """Address and size of each range."""
        ranges = self._session.layout.ranges
        return MappingProxyType({label: ranges[label] for label in self._memory.ranges if label in ranges})

    @property
    def buffers(self) -> Mapping[str, Reservation]:
        """Address and size of each buffer, each allocation of a pool, and each mapped part of external memory."""
        return MappingProxyType(self._session.layout.buffers)

    @checked()
    def address(self, name: str) -> int:
        """Device address of a range, a buffer, managed or pinned memory.

        On a simulator, it is not valid in this process, except for memory of another program.
        """
        self._require_open()
        addressed = self._session.layout.addressed
        if name not in addressed or "@" in name:  # an area of offloaded bytes
            known = [label for label in addressed if "@" not in label]
            raise unknown("range, buffer, managed or pinned memory", name, reversed(known))
        return addressed[name].address

    @checked()
    def range(self, name: str, dtype: object = "uint8", **part: Unpack[ViewPart]) -> Any:
        """View of a range or a part of it, which must be mapped throughout; of an elastic range, an `ElasticRange`."""
        if name in self._elastic.ranges:
            if part or dtype != "uint8":
                raise Unsuitable(f"range {name!r} is elastic", hint=f"view a part of it: range({name!r}).view(…)")
            self._elastic.content(name)
            return ElasticRange(name, self._elastic)
        if name in self._elastic.heaps:
            raise Unsuitable(f"range {name!r} is a heap", hint=f"view an allocation: heap({name!r}).view(address)")
        return self._view("range", name, dtype, part)

    @checked()
    def heap(self, name: str) -> Heap:
        """Return a heap, in which the program allocates memory."""
        self._elastic.heap(name)
        return Heap(name, self._elastic)

    @checked()
    def heap_device(self, name: str) -> int:
        """Ordinal of the GPU of a heap: the one that has its memory, or the first that may write it."""
        return self._elastic.heap(name).step.device

    @checked()
    def chunks(self, name: str) -> ElasticChunks:
        """Return the elastic chunks of an entry, which a program maps in elastic ranges."""
        self._require_open()
        return self._elastic.chunks(name)

    @checked()
    def chunk(self, name: str, dtype: object = "uint8", **part: Unpack[ViewPart]) -> View:
        """View of a chunk or a part of it, at one of the addresses where it is mapped."""
        return self._view("chunk", name, dtype, part)

    @checked()
    def buffer(self, name: str, dtype: object = "uint8", **part: Unpack[ViewPart]) -> View:
        """View of a buffer or a part of it, for its own GPU."""
        return self._view("buffer", name, dtype, part)

    @checked()
    def allocation(self, name: str, dtype: object = "uint8", **part: Unpack[ViewPart]) -> View:
        """View of an allocation of a pool or a part of it, for the pool's own location or a GPU with access to it."""
        return self._view("allocation", name, dtype, part)

    @checked()
    def managed(self, name: str, dtype: object = "uint8", **part: Unpack[ViewPart]) -> View:
        """View of managed memory or a part of it, for the host or one of its GPUs; by default for the first GPU."""
        return self._view("managed memory", name, dtype, part)

    @checked()
    def pinned(self, name: str, dtype: object = "uint8", **part: Unpack[ViewPart]) -> View:
        """View of pinned memory or a part of it, for the host or one of its GPUs; by default for the host.

        Memory of another program is that of its file: a load of the CPU behind the end of a shortened file ends the
        process by SIGBUS, one after the layout was taken down by SIGSEGV.
        """
        return self._view("pinned memory", name, dtype, part)

    @checked()
    def external(self, name: str, dtype: object = "uint8", **part: Unpack[ViewPart]) -> View:
        """View of an external object (`frame`) or of one of its buffers (`frame.y`), for its own GPU."""
        return self._view("external memory", name, dtype, part)

    @checked()
    def event(self, name: str) -> Event:
        """Return an event."""
        self._require_open()
        groups = self._session.geometry.of(EventGroup).values()
        devices = {group.label(i): group.location_of(i).id for group in groups for i in range(group.count)}
        if name not in devices:
            raise unknown("event", name, devices)
        return Event(name, devices[name], self._session.driver, self._session.layout)

    @checked()
    def semaphore(self, name: str) -> ExternalSemaphore:
        """Return an external semaphore; the check has already waited for and signalled it as the spec declares."""
        self._require_open()
        found = self._session.geometry.of(ImportedSemaphore).get(name)
        if found is None:
            raise unknown("semaphore", name, self._session.geometry.of(ImportedSemaphore))
        return ExternalSemaphore(name, found.location.id, self._session.driver, self._session.layout)

    @checked()
    def dma_buf(self, name: str, index: int = 0) -> DmaBuf:
        """Return a new dma-buf of an export via dmabuf, or of one object of a counted one; the caller closes it."""
        self._require_open()
        exports = self._session.geometry.of(ExportGroup)
        found = {each: group for each, group in exports.items() if group.via == DMABUF}
        if name not in found or not 0 <= index < found[name].count:
            raise unknown("export via dmabuf", f"{name}.{index}" if name in found else name, found)
        group, session = found[name], self._session
        try:
            handle = group.exporter.handle(session.driver, session.layout, group, index)
        except KeyError as error:
            raise Unsuitable(f"export {name!r} has no memory in state {self.state!r}") from error
        assert handle.fd is not None
        return DmaBuf(f"{name}.{index}" if group.counted else name, group.size, handle.fd)

    @property
    def state(self) -> str:
        """Name of the state that the layout is in; `awake` is the layout as the spec writes it."""
        return self._session.state

    @checked()
    def switch(self, state: str, *, stream: object = None, device: str | int | None = None) -> Checks:
        """Bring the layout to one of its states, or to `awake`, and return the results of its check by queries.

        Addresses stay. Waits for the work of all GPUs; of the GPU `device`, by default the only one that the layout
        uses, for the work of a `stream` alone if one is given, a handle or an object of cuda.core, PyTorch or CuPy.

        The bytes of offloaded chunks return, those of dropped ones are undefined. Views of memory that is gone stay
        valid objects: on a GPU, accessing them is a fault until the memory is back, on a simulator they read zeros.
        Raises `Unsuitable` for an unknown state, and `NotSwitched` after a
        failure, with the layout as it was.
        """
        self._require_open()
        states = self._session.states
        if state not in states:
            raise unknown("state", state, states)
        with self._requesting(NotSwitched), self._changing(stream, device):
            self._elastic.prepare()
            return self._session.switch(state)

    def _requesting(self, refused: Refused) -> AbstractContextManager[None]:
        """Context of a switch, change or save that this process requests, which raises `refused` if it is not made."""
        del refused
        return nullcontext()

    @contextmanager
    def _changing(self, stream: object, device: str | int | None) -> Iterator[None]:
        """Make one change at a time, which signals do not interrupt, once the work of the GPUs is done."""
        with self._elastic.lock, deferred():
            where = None if device is None else self._memory.location(device).id
            handle = None if stream is None else stream_handle(stream)
            with self._session.awaiting(handle, where), self._changing_memory():
                yield

    @checked()
    @contextmanager
    def switched(self, state: str, *, stream: object = None, device: str | int | None = None) -> Iterator[Checks]:
        """Switch to a state for the duration of a `with`, and then back to the state before, as `switch` does.

        After an error in the `with`, or an interrupt of the way in, it is switched back, too.
        """
        before = self.state
        try:
            yield self.switch(state, stream=stream, device=device)
        finally:
            if not self._views.closed and self.state != before:
                self.switch(before, stream=stream, device=device)

    @property
    def generation(self) -> int:
        """Number of the layout: 1 when it is built, and one more after each change or switch that touched it."""
        return self._session.generation

    @checked(check=("fast", "full"))
    def change(
        self,
        spec: SpecLike,
        *,
        params: Params | None = None,
        check: Literal["fast", "full"] = "fast",
        stream: object = None,
        device: str | int | None = None,
    ) -> Checks:
        """Bring the layout, in state `awake`, to another spec in place, and return the results of its check.

        `spec` and `params` are as for `applied`; name, machine and processes stay. A range of the same name,
        size and alignment keeps its address, a chunk of the same label and properties its memory and bytes; only what
        differs is touched. Waits as `switch` does. The check is by queries and, of new memory, by samples of its bytes
        or by all.

        Views of memory that stays remain valid. A view of memory that is gone raises `BufferError` when it is used
        next; tensors made from it before are not affected: on a GPU, accessing them is a fault, on a simulator they
        read zeros. Raises `InvalidSpec`, `Unsuitable` in another state, and `NotChanged` with the layout as it was.
        """
        self._require_open()
        with self._requesting(NotChanged), self._changing(stream, device):
            return self._session.change(spec, check, params)

    @contextmanager
    def _changing_memory(self) -> Iterator[None]:
        """Follow the session, which the code inside brings to another state or geometry."""
        geometry, before = self._session.geometry, self._views.reservations()
        try:
            yield
        finally:
            if self._session.geometry is not geometry:
                self._memory = LayoutMemory(self._session.geometry)
            self._views.follow(self._memory, before)
            self._elastic.follow(self._memory)
            self._imports = self._imports or self._session.imports(self._views.refresh)
        self._elastic.report_held()

    @property
    def absent(self) -> frozenset[str]:
        """Names of the imports whose memory a holder has taken back; their addresses are kept."""
        return frozenset(self._imports.absent) if self._imports else frozenset()

    @checked()
    def poll(self, timeout: float = 0.0) -> Notice | None:
        """Follow the next notice of a holder that this layout imports from, and return it.

        Waits for one for up to `timeout` seconds.

        - `changing`: calls `on_change`, waits for the work of the GPUs, unmaps and releases the memory of the exports,
          and reports that to the holder, which waits for it.
        - `changed`: imports what the holder has again, maps it at the same addresses, and calls `on_change`.

        Views stay valid objects: on a GPU, accessing them is a fault until the memory is back, on a simulator they read
        zeros. Raises `NotSwitched` if a call fails, and what `on_change` raises: then the memory stays as it is. Raises
        `ExchangeError` if a call of the holder fails, or the holder is gone. After `NotSwitched` and a failure of the
        holder, a later `poll` imports what has changed. Raises `ImportMismatch` if exports do not match the imports any
        more, after it has imported the others, whose notice the next `poll` returns.
        """
        self._require_open()
        found = self._imports.next(timeout) if self._imports else None
        if found is None:
            return None
        assert self._imports
        holder, notice = found
        call = self.on_change if self._imports.concerned(holder, notice) else None
        if call and notice.kind == "changing":
            call(notice)
            self._require_open()  # it may have left the `with`
        with self._elastic.lock, deferred():
            self._follow(self._imports, holder, notice)
        if call and notice.kind == "changed":
            call(notice)
        return notice

    def _follow(self, imports: OutsideImports, holder: str, notice: Notice) -> None:
        with changing(NotSwitched, IMPORTS_AS_BEFORE):
            imports.follow(holder, notice)

    @checked()
    def load(self, files: PathLike | Sequence[PathLike], into: str | None = None) -> Mapping[str, Tensor]:
        """Copy the tensors of files of safetensors to a range, in the order of the files, and return them by name.

        `into` is the range, by default the only one. Its start has the table of the tensors, from which `tensor` finds
        them in every process that maps the range; what the range had is lost. Raises `BadTensors` for a file that is
        not of the format, and for tensors that do not fit, before anything is written.
        """
        self._require_open()
        labels = self._tensor_ranges
        if into in {*self._elastic.ranges, *self._elastic.heaps} or not (into or labels):
            what = f"{into!r} is" if into else "the layout has only"
            hint = "load into a range that chunks are mapped in; programs load what they allocate"
            raise Unsuitable(f"{what} memory that programs allocate, in which no table can be found", hint=hint)
        if into is None and len(labels) != 1:
            raise Unsuitable(f"the layout has {len(labels)} ranges", hint=f"name one: into={labels[0]!r}")
        with self._elastic.lock, deferred():
            several = [files] if isinstance(files, str | os.PathLike) else files
            return self._tensors.load(self._memory, into or labels[0], [os.fspath(each) for each in several])

    @checked()
    def tensor(self, name: str) -> View:
        """View of a tensor that was loaded, by `load` or 'memtopo load', here or by another process.

        One of a type that the views have not is viewed as its bytes.
        """
        self._require_open()
        label, found = self._tensors.find(self._memory, self._tensor_ranges, name)
        dtype, part = view_of(found)
        return self._view("range", label, dtype, part)

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """All tensors that were loaded, by name, with the dtype of the file, the shape, and offset in the range."""
        self._require_open()
        tables = self._tensors.tables(self._memory, self._tensor_ranges)
        return {name: tensor for _, table in tables for name, tensor in table.items()}

    @property
    def _tensor_ranges(self) -> list[str]:
        own = {*self._elastic.ranges, *self._elastic.heaps}
        return [label for label in self._memory.ranges if label not in own]

    @checked()
    def save(self, folder: str | os.PathLike[str]) -> Saved:
        """Write the bytes of the layout's memory to a folder, from which `applied(…, source=folder)` brings them back.

        Saved is what this process has created and a GPU can read, also what a state has offloaded: not what it
        imports, and not what the program allocates in heaps and elastic ranges, which `Saved.left_out` names. Files
        whose memory has not changed since the save before are not written again. Waits for the work of all GPUs; the
        program must not write meanwhile.

        The folder is made if it is missing. After an error or a crash it has the save before, else all of this one.
        Raises `FolderRefused` for a folder that is a link, of another user, in use or too small, or has other files or
        a save of a layout of another name.
        """
        self._require_open()
        with self._requesting(FolderRefused), self._changing(None, None):
            return self._session.save(os.fspath(folder))

    @property
    def restored(self) -> Restored:
        """Names of the pieces whose bytes came back from the folder that was given as `source`, and of the others."""
        return self._session.run.restored

    def check(self) -> Checks:
        """Check the whole layout again, by queries only; several threads may. Raises `MemtopoError`."""
        self._require_open()
        with self._elastic.lock:
            return self._session.run.recheck()

    def begin(self) -> None:
        """Build everything. Raises as `Session.begin`."""
        self._session.begin()
        if self._imports:
            self._imports.note_made()

    def end(self) -> tuple[Report, Iterable[str]]:
        """Take everything down; return the report, and the names of the views that are still in use."""
        self._elastic.end()
        self._views.close()
        self.report = self._session.end()
        self._elastic.keep_addresses()
        return self.report, self._views.release()

    def _view(self, noun: str, name: str, dtype: object, part: ViewPart) -> View:
        self._require_open()
        request = ViewRequest.of(dtype, **part)
        return self._views.view(f"{noun} {name!r}", self._memory.part(noun, name, request), request)

    def _require_open(self) -> None:
        if self._views.closed:
            raise Unsuitable(f"layout {self.name!r} was taken down")
        self._views.require_own(f"layout {self.name!r}")

    def __repr__(self) -> str:
        state = "simulated" if self.machine.simulated else "live"
        if self._views.closed:
            state = "taken down"
        return f"<layout {self.name} on {self.machine.name}: {state}>"
