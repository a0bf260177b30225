"""Chunks that go from process to process, as file descriptors or fabric handles (facts 25 to 29, 43, 44)."""

from __future__ import annotations

import os

from memtopo.driver.sim import places, tickets
from memtopo.driver.sim.arena import Arena
from memtopo.driver.sim.chunks import Chunk, Chunks
from memtopo.driver.sim.creation import Creation
from memtopo.driver.sim.devices import Devices
from memtopo.driver.sim.files import Files, Tag, nonce
from memtopo.driver.sim.refusal import Refused, invalid
from memtopo.driver.types import HandleType, Properties

_INVALID = "CUDA_ERROR_INVALID_VALUE"
_FABRIC = tickets.Refusals(_INVALID, _INVALID, _INVALID)  # never measured: no machine had fabric that works


class Sharing:
    """Exports chunks of one process, and imports those of others."""

    def __init__(self, devices: Devices, creation: Creation, chunks: Chunks, arena: Arena, files: Files) -> None:
        self._devices, self._creation, self._chunks = devices, creation, chunks
        self._arena, self._files = arena, files

    def export(self, handle: int, kind: HandleType, flags: int) -> int | bytes:
        """A new descriptor of a chunk's memory, or 64 bytes that lead to it (facts 26, 44)."""
        if flags:
            raise invalid("flags must be 0")
        _check_kind(kind)
        chunk = self._chunks.get(handle)
        if chunk.imported:
            raise invalid("an imported chunk cannot be exported again")
        if kind not in chunk.properties.handles:
            raise invalid(f"the chunk was not created with handle type {kind.words[0]}")
        tag = chunk.physical.tag or self._move(chunk)
        return os.dup(chunk.physical.fd) if kind == HandleType.FD else tickets.write(chunk.physical.fd, tag)

    def take(self, shared: int | bytes, kind: HandleType) -> int:
        """A handle to a shared chunk, however often it is here already (facts 27, 43)."""
        _check_kind(kind)
        if kind == HandleType.FD:
            fd, tag = self._described(shared)
        else:
            handle = tickets.sized(shared)
            self._creation.check_fabric()
            ticket = tickets.read(handle, _FABRIC)
            fd, tag = tickets.redeem(ticket, "chunk", self._files, _FABRIC)
        location = places.found(tag.place, self._devices)
        properties = Properties(location, HandleType.NONE, tag.rdma, tag.compressible)
        return self._chunks.adopt(properties, tag.granule, self._arena.adopt(fd, tag))

    def _described(self, fd: int | bytes) -> tuple[int, Tag]:
        """A descriptor of one's own beside the one given, which stays its owner's."""
        if not isinstance(fd, int) or not 0 <= fd < 1 << 31:
            raise invalid("that is no file descriptor")
        found = self._files.adopt(f"/proc/self/fd/{fd}", "chunk", "memory")
        if found is None:
            raise Refused("CUDA_ERROR_UNKNOWN", "the file descriptor is no chunk's")
        if found[1].size % found[1].granule:  # another API's memory (fact 59), but such was never tried
            self._files.close(found[0])
            raise Refused("CUDA_ERROR_UNKNOWN", "the memory's size is not a multiple of the granularity")
        return found

    def _move(self, chunk: Chunk) -> Tag:
        place = places.told(chunk.properties.location, self._devices)
        _, _, rdma, compressible, _ = chunk.properties
        tag = Tag("chunk", chunk.size, chunk.granule, place, nonce(), rdma, compressible)
        self._arena.share(chunk.physical, tag)
        return tag


def _check_kind(kind: HandleType) -> None:
    if kind not in {HandleType.FD, HandleType.FABRIC}:
        raise invalid("a chunk is shared as fd or as fabric, one at a time")
