"""Simulated producer: a process that serves external memory, semaphores and files on a simulated machine.

It reads its specification from standard input, and ends with that.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import sys
from collections.abc import Iterator, Mapping

from msgspec import Struct

from memtopo.common.decoding import decode, encode
from memtopo.common.errors import MemtopoError, reason
from memtopo.common.signals import received_signal
from memtopo.driver.handles import Handle
from memtopo.drivers.sim import external_api
from memtopo.machine import MachineLine
from memtopo.sharing.endpoints import endpoint
from memtopo.sharing.external import External, ExternalExports, ExternalMemory, HostMemory, Semaphore, Serving

PERIOD = 251
"""Byte `n` of simulated memory is `n` modulo this."""

FILLED = 16 << 20
"""Leading bytes of an object that are filled; the others are mostly 0."""

_BLOCK_PERIODS = 4096


class SimulatedMemory(Struct, frozen=True):
    """External memory of `size` bytes on the GPU with this UUID, in hexadecimal digits."""

    name: str
    size: int
    gpu: str
    dedicated: bool


class SimulatedSemaphore(Struct, frozen=True):
    """A semaphore, and the values that importers wait for and signal, if they do."""

    name: str
    timeline: bool
    gpu: str
    wait: int | None
    signal: int | None


class SimulatedFile(Struct, frozen=True):
    """Memory of the host of `size` bytes in a file."""

    name: str
    size: int


class ProducerSpec(Struct, frozen=True):
    """The exports of one holder on a simulated machine."""

    machine: str
    memory: tuple[SimulatedMemory, ...]
    semaphores: tuple[SimulatedSemaphore, ...]
    files: tuple[SimulatedFile, ...] = ()

    def encode(self) -> bytes:
        """Return the specification as one line for the producer's process."""
        return encode(self) + b"\n"

    @staticmethod
    def decode(line: bytes) -> ProducerSpec:
        """Return the specification of such a line."""
        return decode(line, ProducerSpec)


class SimulatedExports(ExternalExports):
    """External exports whose semaphores are prepared for each importer.

    When an importer takes a semaphore, the value that it waits for is signalled, and a binary one that it signals is
    reset from the importer before.
    """

    def __init__(self, objects: Mapping[str, External], semaphores: Mapping[str, SimulatedSemaphore]) -> None:
        super().__init__(objects)
        self._semaphores = semaphores

    def handle(self, export: str, index: int) -> Handle:
        handle = super().handle(export, index)
        if semaphore := self._semaphores.get(export):
            _prepare(semaphore, self.objects[export].fd)
        return handle


def simulated_serving(spec: ProducerSpec, socket: str) -> Serving:
    """Allocate and fill the memory of a producer, and create its semaphores, unsignalled, to be served at a socket."""
    semaphores = {each.name: each for each in spec.semaphores}
    objects: dict[str, External] = {each.name: _allocate(each) for each in spec.memory}
    objects |= {name: _create(each) for name, each in semaphores.items()}
    objects |= {each.name: _make_file(each) for each in spec.files}
    line = MachineLine(spec.machine, simulated=True, devices=(), driver="simulated")
    return Serving(endpoint(socket=socket), SimulatedExports(objects, semaphores), line)


def main() -> None:
    """Serve the producer of the specification on standard input at the socket in MEMTOPO_SOCKET."""
    stopped = received_signal(signal.SIGTERM)
    spec = ProducerSpec.decode(sys.stdin.buffer.readline())
    try:
        simulated_serving(spec, os.environ["MEMTOPO_SOCKET"]).run(lambda: stopped() or _orphaned())
    except MemtopoError as error:
        sys.exit(f"memtopo: simulated producer: {error.message}")
    except OSError as error:
        sys.exit(f"memtopo: simulated producer: {reason(error)}")


def _prepare(semaphore: SimulatedSemaphore, fd: int) -> None:
    if semaphore.wait is not None:
        if external_api.counter(fd) < (semaphore.wait if semaphore.timeline else 1):  # a timeline only increases
            external_api.signal(fd, semaphore.wait)
    elif semaphore.signal is not None and not semaphore.timeline:
        external_api.wait(fd, timeout=0)


def _allocate(memory: SimulatedMemory) -> ExternalMemory:
    fd = external_api.allocate(bytes.fromhex(memory.gpu), memory.size)
    for offset, block in _content(memory.size):
        external_api.write(fd, offset, block)
    return ExternalMemory(fd, memory.size, memory.gpu, memory.dedicated)


def _make_file(file: SimulatedFile) -> HostMemory:
    """Make a memfd that cannot shrink."""
    fd = os.memfd_create(f"memtopo-{file.name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, file.size)
    for offset, block in _content(file.size):
        os.pwrite(fd, block, offset)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return HostMemory(fd, file.size)


def _content(size: int) -> Iterator[tuple[int, bytes]]:
    """Blocks of the bytes that are filled, by their offsets."""
    block = bytes(range(PERIOD)) * _BLOCK_PERIODS
    return ((offset, block[: size - offset]) for offset in range(0, min(size, FILLED), len(block)))


def _create(semaphore: SimulatedSemaphore) -> Semaphore:
    fd = external_api.make_semaphore(timeline=semaphore.timeline)
    return Semaphore(fd, semaphore.timeline, semaphore.gpu)


def _orphaned() -> int:
    """Return SIGTERM once standard input has ended, as it does with the parent process."""
    return signal.SIGTERM if select.select([sys.stdin], [], [], 0)[0] else 0
