"""What a built-in producer plays: everything that a spec takes from one holder, and what it is to have signalled."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from memtopo.driver.sim import foreign
from memtopo.plans.report import MachineLine
from memtopo.sharing import Handle, endpoint
from memtopo.sharing.external import ExternalExports, ExternalMemory, Given, Serving
from memtopo.sharing.external import Semaphore as Served


@dataclass(frozen=True, slots=True)
class Memory:
    """External memory of `size` bytes on the GPU with this UUID, as hex text."""

    name: str
    size: int
    gpu: str
    dedicated: bool


@dataclass(frozen=True, slots=True)
class Semaphore:
    """A semaphore, and what importers wait for and signal, where they do."""

    name: str
    timeline: bool
    gpu: str
    wait: int | None
    signal: int | None


@dataclass(frozen=True, slots=True)
class ProducerSpec:
    """The exports of one holder on a simulated machine."""

    machine: str
    memory: tuple[Memory, ...]
    semaphores: tuple[Semaphore, ...]

    def text(self) -> bytes:
        """One line that another process can read."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @staticmethod
    def read(line: bytes) -> ProducerSpec:
        """Read such a line."""
        fields = json.loads(line)
        memory = tuple(Memory(**each) for each in fields["memory"])
        return ProducerSpec(fields["machine"], memory, tuple(Semaphore(**each) for each in fields["semaphores"]))


PERIOD = 251
"""Byte `n` of played memory is `n` modulo this."""

FILLED = 16 << 20
"""Bytes of an object, the first ones, that are filled; the others are 0, for the most part."""

_AT_ONCE = 4096


def play(script: ProducerSpec, where: str) -> Serving:
    """Everything that a script says, ready to be served; memory is filled, and nothing is signalled yet."""
    signals = {each.name: each for each in script.semaphores}
    given: dict[str, Given] = {each.name: _allocated(each) for each in script.memory}
    given |= {name: _made(each) for name, each in signals.items()}
    line = MachineLine(script.machine, simulated=True, devices=(), driver="played")
    return Serving(endpoint(socket=where), Stage(given, signals), line)


class Stage(ExternalExports):
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


def main() -> None:
    """Allocate, fill and serve what the script says; the socket's path is in MEMTOPO_SOCKET."""
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: told.append(number))
    script = ProducerSpec.read(sys.stdin.buffer.readline())
    play(script, os.environ["MEMTOPO_SOCKET"]).run(lambda: told[0] if told else _abandoned())


def _abandoned() -> int:
    """SIGTERM's number once whoever started this is gone."""
    return signal.SIGTERM if select.select([sys.stdin], [], [], 0)[0] else 0


if __name__ == "__main__":
    main()
