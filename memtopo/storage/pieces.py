"""Copies of pieces of memory to the files of a saved folder, and back, with a checksum of each chunk."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from hashlib import sha256
from itertools import groupby
from secrets import token_hex
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from memtopo.common.decoding import encode
from memtopo.common.errors import on_failure
from memtopo.common.files import closing_fd
from memtopo.common.text import numbered
from memtopo.common.units import exact, rounded_up
from memtopo.storage.direct import BLOCK, BUFFER, Buffer, DirectFile, Transfer, opened_to_read
from memtopo.storage.saved import (
    DAMAGED,
    Folder,
    FolderRefused,
    Index,
    Part,
    PartFile,
    Piece,
    PieceMemory,
    SavedFile,
    SavedPart,
    SavedPiece,
    refusing,
)

_OPEN = 64
"""Files that a save has open at once."""


def save_part(
    folder: Folder,
    process: str,
    save: str,
    groups: Sequence[Sequence[Piece]],
    memory: PieceMemory,
    transfer: Transfer,
    left_out: tuple[str, ...] = (),
    staying: Collection[str] = (),
) -> SavedPart:
    """Write the pieces of a process, a file for each group of them, and its part of the index, all to the disk.

    `save` is the number of the save, of 16 hexadecimal digits. The index still names the save before, of which the
    pieces that are `staying` are in the new one as well. Raises `FolderRefused`, and what `beat` raises; what was
    written is left to `Folder.remove_unused`.
    """
    writer = _Writer(folder, memory, transfer)
    index = folder.read_index()
    before = (folder.read_part(index, process) if index else None) or Part(())
    stays = tuple(file.of(staying) for file in before.files if not {*staying}.isdisjoint(file.names))
    old = {file.contents: file for file in before.files}
    kept = {tuple(group): old[tuple(group)] for group in groups if tuple(group) in old}
    kept = {contents: file for contents, file in kept.items() if writer.is_unchanged(file)}
    changed = [group for group in groups if tuple(group) not in kept]
    prefix = f"{save}-{process or 'layout'}"
    with refusing(folder.path):
        written = writer.write([(f"{prefix}-{number}.bin", group) for number, group in enumerate(changed)])
        part = Part((*stays, *kept.values(), *written), direct=writer.direct and (before.direct or not kept))
        text = encode(part)
        folder.write(f"{prefix}.json", text)
    file = PartFile(f"{prefix}.json", sha256(text).hexdigest())
    new, same = (sum(each.size for each in files) for files in (written, kept.values()))
    return SavedPart(file, len(part.pieces), new, same, part.direct, left_out)


class _Writer:
    def __init__(self, folder: Folder, memory: PieceMemory, transfer: Transfer) -> None:
        self._folder, self._memory, self._transfer = folder, memory, transfer
        self.direct = True

    def is_unchanged(self, file: SavedFile) -> bool:
        """Return true if the memory has the bytes that a file of the save before has, by their digests."""
        with suppress(OSError, FolderRefused), closing_fd(self._folder.open(file.name)) as fd:
            if os.fstat(fd).st_size == file.size:
                try:
                    self._transfer.run([partial(self._compare, each) for each in _chunks(file)])
                except _Differs:
                    return False
                return True
        return False

    def _compare(self, chunk: _Chunk, buffer: Buffer) -> None:
        if self._read(chunk, buffer) != chunk.digest:
            raise _Differs

    def _read(self, chunk: _Chunk, buffer: Buffer) -> str:
        """Copy a chunk of the memory to a buffer, and return its digest."""
        self._memory.read(chunk.piece.name, chunk.start, chunk.size, buffer.address)
        return sha256(buffer.part(chunk.size)).hexdigest()

    def write(self, files: Sequence[tuple[str, Sequence[Piece]]]) -> list[SavedFile]:
        """Reserve room for files, write them, and wait until the disk has them. Raises `OSError`."""
        planned = []
        for name, pieces in files:
            saved, offset = [], 0
            for each in pieces:  # one after another; their digests are not known yet
                saved.append(SavedPiece(each.name, each.size, offset, ("",) * len(range(0, each.size, BUFFER))))
                offset += rounded_up(each.size, BLOCK)
            planned.append(SavedFile(name, tuple(saved)))
        self._folder.require_room(sum(each.size for each in planned))
        self._transfer.run([partial(self._reserve, each) for each in planned])
        parts = [planned[first : first + _OPEN] for first in range(0, len(planned), _OPEN)]
        written = [each for part in parts for each in self._written(part)]
        os.fsync(self._folder.fd)
        return written

    def _reserve(self, file: SavedFile, _: Buffer) -> None:
        with closing_fd(self._folder.create(file.name)) as fd:
            os.posix_fallocate(fd, 0, file.size)

    def _written(self, planned: Sequence[SavedFile]) -> Iterator[SavedFile]:
        """Write files that are open at once, and wait until the disk has them; yield them with their digests."""
        with ExitStack() as stack:
            fds = [stack.enter_context(closing_fd(self._folder.open(each.name, os.O_WRONLY))) for each in planned]
            files = [DirectFile(fd) for fd in fds]
            for file in files:
                file.set_direct()
            pairs = list(zip(planned, files, strict=True))
            chunks = [partial(self._write_chunk, file, chunk) for each, file in pairs for chunk in _chunks(each)]
            digests = iter(self._transfer.run(chunks))
            self._transfer.run([partial(_sync, fd) for fd in fds])
            self.direct &= all(each.direct for each in files)
        for each in planned:
            pieces = (replace(piece, digests=tuple(next(digests) for _ in piece.digests)) for piece in each.pieces)
            yield replace(each, pieces=tuple(pieces))

    def _write_chunk(self, file: DirectFile, chunk: _Chunk, buffer: Buffer) -> str:
        digest = self._read(chunk, buffer)
        file.write(buffer.padded(chunk.size), chunk.piece.offset + chunk.start)
        return digest


class _Differs(Exception):
    """A chunk has other bytes than before."""


def _sync(fd: int, _: Buffer) -> None:
    os.fsync(fd)


class _Chunk(NamedTuple):
    """Chunk of a piece of a file, with its number, and its offset in the piece."""

    piece: SavedPiece
    number: int
    start: int
    size: int

    @property
    def digest(self) -> str:
        return self.piece.digests[self.number]


def _chunks(file: SavedFile) -> Iterator[_Chunk]:
    for each in file.pieces:
        for number, start in enumerate(range(0, each.size, BUFFER)):
            yield _Chunk(each, number, start, min(BUFFER, each.size - start))


class Restored(Struct, frozen=True):
    """Names of the pieces whose bytes came back; of saved ones that the layout has not, and that were not saved.

    A piece of another size counts as another one. `direct` is false if files were read through the page cache. The
    folder is empty if nothing was to come back.
    """

    pieces: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    size: int = 0
    direct: bool = True
    folder: str = ""

    @property
    def resized(self) -> dict[str, None]:
        """Names of the pieces that were saved with another size, in order."""
        here = {*self.without}
        return {name: None for name in self.unused if name in here}


def restore(folder: Folder, part: Part, wanted: Sequence[Piece], memory: PieceMemory, transfer: Transfer) -> Restored:
    """Copy saved bytes to the pieces of the same name and size, each chunk after its checksum was compared.

    Raises `FolderRefused` with the name of the piece and the number of the chunk that is not as it was saved.
    """
    sizes, direct = {each.name: each.size for each in wanted}, True

    def restore_chunk(name: str, file: DirectFile, chunk: _Chunk, buffer: Buffer) -> None:
        file.read(buffer.part(rounded_up(chunk.size, BLOCK)), chunk.piece.offset + chunk.start)
        if sha256(buffer.part(chunk.size)).hexdigest() != chunk.digest:
            message = f"{folder.path}/{name}: chunk {chunk.number} of {chunk.piece.name!r} is not as it was saved"
            raise FolderRefused(message, hint=DAMAGED)
        memory.write(chunk.piece.name, chunk.start, chunk.size, buffer.address)

    for file in part.files:
        some = replace(file, pieces=tuple(each for each in file.pieces if sizes.get(each.name) == each.size))
        if not some.pieces:
            continue
        with (
            refusing(f"{folder.path}/{file.name}"),
            folder.requiring(file.name),
            closing_fd(folder.open(file.name)) as fd,
            opened_to_read(fd) as opened,
        ):
            length = os.fstat(fd).st_size
            for chunk in _chunks(file):
                if length < rounded_up(chunk.piece.offset + chunk.start + chunk.size, BLOCK):
                    where = f"chunk {chunk.number} of {chunk.piece.name!r} ends beyond its end"
                    message = f"{folder.path}/{file.name} was cut to {exact(length)}: {where}"
                    raise FolderRefused(message, hint=DAMAGED)
            transfer.run([partial(restore_chunk, file.name, opened, each) for each in _chunks(some)])
            direct &= opened.direct
    saved = [each.piece for file in part.files for each in file.pieces]
    found = tuple(each.name for each in saved if sizes.get(each.name) == each.size)
    unused = tuple(each.name for each in saved if sizes.get(each.name) != each.size)
    without = tuple(name for name in sizes if name not in set(found))
    return Restored(found, unused, without, sum(sizes[name] for name in found), direct)


class FolderKeeper:
    """Pieces of the process `label` in an open folder. `written` is what the index may name: the last save.

    While an index is replaced, and after an error of that, it is the last save or the one before.
    """

    def __init__(self, folder: Folder, layout: str, label: str = "") -> None:
        self.folder, self.layout, self.label = folder, layout, label
        self.written: Sequence[PartFile] = ()

    def save(
        self, pieces: Sequence[Piece], memory: PieceMemory, transfer: Transfer, staying: Collection[str] = ()
    ) -> None:
        """Write pieces, and have the folder keep them and the `staying` ones alone. Returns once the disk has them.

        What has not changed since the last save is not written. Raises `FolderRefused`, `DriverError`, and what `beat`
        raises, with the last save in the folder, or this one.
        """
        folder, label = self.folder, self.label
        groups = [list(some) for _, some in groupby(pieces, key=lambda each: numbered(each.name)[0])]
        with on_failure(folder.remove_unused):
            part = save_part(folder, label, token_hex(8), groups, memory, transfer, staying=staying)
            self.written = (*self.written[-1:], part.file)
            with refusing(folder.path):
                folder.write_index(Index(self.layout, "", {label: part.file}))
        self.written = (part.file,)

    def restore(self, pieces: Sequence[Piece], memory: PieceMemory, transfer: Transfer) -> None:
        """Copy kept bytes to memory, each chunk after its checksum was compared. Raises `FolderRefused`.

        Pieces that were not saved stay as they are.
        """
        if not self.written:
            return
        index = self.folder.read_index()
        part = self.folder.read_part(index, self.label) if index else None
        if index is None or part is None or index.parts[self.label] not in self.written:
            raise FolderRefused(f"{self.folder.path!r} has not the bytes that were saved last")
        restore(self.folder, part, pieces, memory, transfer)


class LockedFolder(NamedTuple):
    """Keeper of bytes, and the lock of its folder, which is closed when nobody needs the bytes any more."""

    keeper: FolderKeeper
    lock: ExitStack
