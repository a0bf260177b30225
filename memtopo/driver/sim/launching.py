"""The calls of the simulated driver that run kernels."""

from __future__ import annotations

from collections.abc import Sequence

from memtopo.driver.kernels import Area, Verified
from memtopo.driver.sim.calling import Callee, driver_call
from memtopo.driver.sim.contexts import Contexts
from memtopo.driver.sim.kernels import ILLEGAL, SimKernels
from memtopo.driver.sim.streams import Streams


class Launching(Callee):
    """A part of the driver: the protocol `Kernels`."""

    _contexts: Contexts
    _kernels: SimKernels
    _streams: Streams

    @driver_call
    def module_load_data(self) -> int:
        return self._kernels.load(self._contexts.current())

    @driver_call
    def module_unload(self, module: int) -> None:
        self._streams.check_done(self._contexts.current())
        self._kernels.unload(module)

    @driver_call
    def fill(self, areas: Sequence[Area]) -> None:
        self._kernels.fill(self._contexts.current(), areas)

    @driver_call
    def verify(self, areas: Sequence[Area]) -> Verified:
        return self._kernels.verify(self._contexts.current(), areas)

    @driver_call
    def store(self, address: int, value: int) -> None:
        self._kernels.store_word(self._contexts.current(), address, value)

    @driver_call
    def load(self, address: int) -> int:
        return self._kernels.load_word(self._contexts.current(), address)

    def doomed(self) -> tuple[str, str] | None:
        """A kernel's forbidden access has ended this process (fact 24); told by the next call, and each one after."""
        return (ILLEGAL, self._kernels.doom) if self._kernels.doom else None
