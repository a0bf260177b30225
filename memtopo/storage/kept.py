"""Bytes that a process keeps in a folder of its own while their memory is gone."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import ExitStack
from itertools import groupby
from secrets import token_hex
from typing import NamedTuple

from memtopo.common.errors import on_failure
from memtopo.common.text import numbered
from memtopo.storage.direct import Transfer
from memtopo.storage.pieces import restore, save_part
from memtopo.storage.saved import (
    Folder,
    FolderRefused,
    Index,
    PartFile,
    Piece,
    PieceMemory,
    refusing,
)


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
