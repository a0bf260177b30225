"""The views of one layout: made, counted, and ended with it."""

from __future__ import annotations

import weakref

from memtopo.api import tensors
from memtopo.api.errors import Unsuitable
from memtopo.api.loans import Loans
from memtopo.api.memory import Found, Memory
from memtopo.api.session import Session
from memtopo.api.views import GpuView, HostView, View
from memtopo.api.windows import Window, pieces
from memtopo.api.wishes import Wish
from memtopo.common.units import exact
from memtopo.driver.types import Access, Location, LocationKind


class Lending:
    """Makes views, and knows which are in use: the views themselves, and the tensors that others took from them.

    On a simulator each range is mapped into this process once for each device that views it.
    """

    def __init__(self, session: Session, memory: Memory) -> None:
        self.closed = False
        self._session, self._memory = session, memory
        self._views: weakref.WeakSet[View] = weakref.WeakSet()
        self._loans = Loans()
        self._windows: dict[tuple[str, Location], Window] = {}

    def view(self, name: str, found: Found, wish: Wish) -> View:
        """A view of what was found. Raises `Unsuitable` where shape or alignment do not fit."""
        shape = wish.fit(name, found.size)
        address = self._start(found) + found.offset
        if address % wish.dtype.itemsize:
            told = (
                f"{name} from {exact(found.offset)} on is not aligned to the {wish.dtype.itemsize} bytes of an element"
            )
            raise Unsuitable(told)
        on_gpu = found.place.kind is LocationKind.GPU and not self._session.machine.simulated
        view = (GpuView if on_gpu else HostView)(
            name,
            address,
            shape,
            wish.dtype,
            str(found.place),
            dl_device=(tensors.CUDA, found.place.id) if on_gpu else (tensors.CPU, 0),
            read_only=found.access is not Access.RW,
            lender=self,
        )
        self._views.add(view)
        return view

    def lend(self, name: str, block: int, *, versioned: bool) -> object:
        """A capsule with a tensor, which is counted until it is given back."""
        return self._loans.lend(name, block, versioned=versioned)

    def outlived(self) -> list[str]:
        """The names of the views that somebody still uses, each once."""
        return sorted({*(view.name for view in self._views), *self._loans.out()})

    def close(self, *, in_use: bool) -> None:
        """Have no view work any more; where some are `in_use`, a simulator's memory gives way to zeros."""
        self.closed = True
        for window in self._windows.values():
            if in_use:
                window.blank()
            else:
                window.close()
        self._windows.clear()

    def _start(self, found: Found) -> int:
        """Where the range, or whatever it is, begins for whoever views it."""
        simulator = self._session.simulator
        if simulator is None:
            return self._session.layout.address(found.label)
        label, shift = self._memory.behind(found.label)
        key = label, found.place
        if key not in self._windows:
            address, size = self._session.layout.place(label)
            self._windows[key] = Window(size, pieces(simulator, address, self._memory.mappings(label, found.place)))
        return self._windows[key].address + shift
