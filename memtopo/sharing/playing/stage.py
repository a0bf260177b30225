"""What Vulkan would be to a layout: memory that is filled, and semaphores that are signalled, made on the simulator."""

from __future__ import annotations

from collections.abc import Mapping

from memtopo.driver.sim import foreign
from memtopo.plans.report import MachineLine
from memtopo.sharing import Handle, place
from memtopo.sharing.playing.script import Memory, Script, Semaphore
from memtopo.sharing.serving import ExternalMemory, Given, GivenShelf, Serving
from memtopo.sharing.serving import Semaphore as Served

PERIOD = 251
"""Byte `n` of played memory is `n` modulo this."""

FILLED = 16 << 20
"""Bytes of an object, the first ones, that are filled; the others are 0, for the most part."""

_AT_ONCE = 4096


def play(script: Script, where: str) -> Serving:
    """Everything that a script says, ready to be served; memory is filled, and nothing is signalled yet."""
    signals = {each.name: each for each in script.semaphores}
    given: dict[str, Given] = {each.name: _allocated(each) for each in script.memory}
    given |= {name: _made(each) for name, each in signals.items()}
    line = MachineLine(script.machine, simulated=True, devices=(), driver="played")
    return Serving(place(socket=where), Stage(given, signals), line)


class Stage(GivenShelf):
    """Signals what an importer waits for when it takes a semaphore, and takes what the one before has signalled."""

    def __init__(self, given: Mapping[str, Given], signals: Mapping[str, Semaphore]) -> None:
        super().__init__(given)
        self._signals = signals

    def handle(self, export: str, index: int) -> Handle:
        found = super().handle(export, index)
        if each := self._signals.get(export):
            _prepare(each, self.given[export].fd)
        return found


def _prepare(semaphore: Semaphore, fd: int) -> None:
    if semaphore.wait is not None:
        if foreign.counter(fd) < (semaphore.wait if semaphore.timeline else 1):  # a timeline never goes back
            foreign.signal(fd, semaphore.wait)
    elif semaphore.signal is not None and not semaphore.timeline:
        foreign.wait(fd, timeout=0)


def _allocated(memory: Memory) -> ExternalMemory:
    fd = foreign.allocate(bytes.fromhex(memory.gpu), memory.size)
    block = bytes(range(PERIOD)) * _AT_ONCE
    for offset in range(0, min(memory.size, FILLED), len(block)):
        foreign.write(fd, offset, block[: memory.size - offset])
    return ExternalMemory(fd, memory.size, memory.gpu, memory.dedicated)


def _made(semaphore: Semaphore) -> Served:
    fd = foreign.make_semaphore(timeline=semaphore.timeline)
    return Served(fd, semaphore.timeline, semaphore.gpu)
