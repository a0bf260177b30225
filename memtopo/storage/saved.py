"""Saved folders: named pieces of bytes with a checksum of each chunk, replaced all at once.

A save writes files with new names beside those of the save before. The rename of `index.json`, once all else is on the
disk, is the moment from which the folder has the new bytes; the old files are removed after it. A file whose pieces
have not changed stays, and is named by the new index as well.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from typing import Annotated, Protocol, TypeVar

from msgspec import Meta, Struct
from msgspec.structs import replace

from memtopo.common.decoding import Mismatch, decode, encode
from memtopo.common.errors import Failed, on_failure, reason
from memtopo.common.files import closing_fd, read_descriptor
from memtopo.common.text import first_words
from memtopo.common.units import rounded, rounded_up
from memtopo.storage.direct import BLOCK, BUFFER

INDEX = "index.json"
VERSION = 1
_NEW_INDEX = f"{INDEX}.new"
_LARGEST_INDEX = 1 << 30
_LISTED = 20
DAMAGED = "copy the folder from where it is whole, or remove it and save the layout again"
"""What to do about a folder that is not as it was saved."""
_OWN = r"[0-9a-f]{16}-[A-Za-z0-9_.-]+\.(bin|json)"
"""Names of the files of saves, besides the index."""

_ROOM = "free some space there, or name another folder"
_REMEDIES = {
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.ENOTDIR: "name a folder",
    errno.ENOENT: "name a folder that exists",
    errno.EACCES: "name a folder that this user may use",
    errno.EROFS: "name a folder of another file system",
}
"""What to do about errors of the system in the use of a folder."""

T = TypeVar("T")
Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]
FileName = Annotated[str, Meta(pattern=rf"^{_OWN}$", max_length=255)]


class FolderRefused(Failed):
    """A folder that cannot be written or read, or whose bytes are not those that were saved."""


class Piece(Struct, frozen=True):
    """Named memory of a layout, with its size in bytes."""

    name: str
    size: int


class PieceMemory(Protocol):
    """Memory of pieces; several threads call it."""

    def read(self, piece: str, offset: int, size: int, address: int) -> None:
        """Copy bytes of a piece to an address of this process."""

    def write(self, piece: str, offset: int, size: int, address: int) -> None:
        """Copy bytes from an address of this process to a piece."""


class SavedPiece(Struct, frozen=True, forbid_unknown_fields=True):
    """Bytes of a piece from an offset of a file on, with the SHA-256 of each chunk."""

    name: str
    size: Count
    offset: Count
    digests: tuple[Digest, ...]

    @property
    def piece(self) -> Piece:
        """Name and size."""
        return Piece(self.name, self.size)

    @property
    def consistent(self) -> bool:
        """True if there is a digest for each chunk, and direct I/O can read it."""
        return self.size > 0 and not self.offset % BLOCK and len(self.digests) == len(range(0, self.size, BUFFER))


class SavedFile(Struct, frozen=True, forbid_unknown_fields=True):
    """File with pieces one after another."""

    name: FileName
    pieces: Annotated[tuple[SavedPiece, ...], Meta(min_length=1)]

    @property
    def size(self) -> int:
        """Size in bytes, in whole blocks."""
        return max(rounded_up(each.offset + each.size, BLOCK) for each in self.pieces)

    @property
    def contents(self) -> tuple[Piece, ...]:
        """Names and sizes of the pieces."""
        return tuple(each.piece for each in self.pieces)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the pieces."""
        return tuple(each.name for each in self.pieces)

    def of(self, names: Collection[str]) -> SavedFile:
        """Return the file with some of its pieces alone, of which there must be one."""
        return replace(self, pieces=tuple(each for each in self.pieces if each.name in names))


class Part(Struct, frozen=True, forbid_unknown_fields=True):
    """Files of one process of a layout; `direct` is false if some were written through the page cache."""

    files: tuple[SavedFile, ...]
    chunk: Count = BUFFER
    direct: bool = True

    @property
    def pieces(self) -> Mapping[str, SavedPiece]:
        """All pieces by name."""
        return {piece.name: piece for file in self.files for piece in file.pieces}


class PartFile(Struct, frozen=True, forbid_unknown_fields=True):
    """File with a `Part` as JSON, and its SHA-256."""

    name: FileName
    sha256: Digest


class Index(Struct, frozen=True, forbid_unknown_fields=True):
    """Contents of a saved folder: the layout, the fingerprint of its spec, and the part of each process by label.

    `committed` are the exports whose content a writer had committed.
    """

    layout: str
    spec: str
    parts: dict[str, PartFile]
    committed: tuple[str, ...] = ()
    version: int = VERSION


class _SignedIndex(Struct, frozen=True, forbid_unknown_fields=True):
    """The text of an index, with its SHA-256."""

    index: str
    sha256: Digest


class SavedPart(Struct, frozen=True):
    """Result of the save of a process: bytes of new files, and bytes of files that stay unchanged.

    Entries that were `left_out` have memory that is not saved.
    """

    file: PartFile
    pieces: int
    written: int
    unchanged: int
    direct: bool
    left_out: tuple[str, ...] = ()


class Saved(Struct, frozen=True):
    """A layout whose bytes a folder has: the number of pieces, bytes `written` now, and those `unchanged` there.

    `direct` is false if files were written through the page cache. `left_out` has some of the entries whose memory is
    not saved.
    """

    name: Annotated[str, Meta(max_length=256)]
    folder: Annotated[str, Meta(max_length=4096)]
    pieces: Count
    written: Count
    unchanged: Count
    direct: bool
    left_out: Annotated[tuple[Annotated[str, Meta(max_length=256)], ...], Meta(max_length=64)] = ()


class Folder:
    """Folder at a path that is open, locked, and of this user."""

    def __init__(self, path: str, fd: int) -> None:
        self.path, self.fd = path, fd

    def read_index(self) -> Index | None:
        """Return the index; None if nothing was saved yet. Raises `FolderRefused`."""
        try:
            signed = self._parsed(INDEX, _SignedIndex, self._content(INDEX))
        except FileNotFoundError:
            return None
        text = signed.index.encode()
        if sha256(text).hexdigest() != signed.sha256:
            raise self.changed(INDEX)
        with suppress(ValueError, RecursionError, AttributeError, KeyError, TypeError):
            if (version := json.loads(text)["version"]) != VERSION:
                message = f"{self.path}/{INDEX} has version {version}, and this memtopo reads version {VERSION}"
                raise FolderRefused(message, hint="use the version that saved it, or save the layout to another folder")
        return self._parsed(INDEX, Index, text)

    def read_part(self, index: Index, process: str) -> Part | None:
        """Return the part of a process; None if none was saved. Raises `FolderRefused`."""
        if process not in index.parts:
            return None
        file = index.parts[process]
        with self.requiring(file.name):
            text = self._content(file.name)
        if sha256(text).hexdigest() != file.sha256:
            raise self.changed(file.name)
        part = self._parsed(file.name, Part, text)
        if part.chunk != BUFFER or not all(each.consistent for each in part.pieces.values()):
            raise self.changed(file.name)
        return part

    def write_index(self, index: Index) -> None:
        """Replace the index, which makes a save complete, and remove the files of earlier ones. Raises `OSError`."""
        text = encode(index)
        self.write(_NEW_INDEX, encode(_SignedIndex(text.decode(), sha256(text).hexdigest())))
        os.fsync(self.fd)
        os.rename(_NEW_INDEX, INDEX, src_dir_fd=self.fd, dst_dir_fd=self.fd)
        os.fsync(self.fd)
        self.remove_unused()

    def remove_unused(self) -> None:
        """Remove files of saves that the index does not name, as far as possible."""
        used = set()
        if index := self.read_index():
            used = {file.name for file in index.parts.values()}
            for process in index.parts:
                used |= {file.name for file in (self.read_part(index, process) or Part(())).files}
        for name in os.listdir(self.fd):
            if (re.fullmatch(_OWN, name) and name not in used) or name == _NEW_INDEX:
                with suppress(OSError):
                    os.unlink(name, dir_fd=self.fd)

    def require_own(self, layout: str) -> None:
        """Raise `FolderRefused` for files that no save of the layout has written: they are someone's."""
        for name in os.listdir(self.fd):
            if name not in (INDEX, _NEW_INDEX) and not re.fullmatch(_OWN, name):
                message = f"{self.path!r} has other files, such as {name!r}"
                first = f"move {name!r} out of it, or " if os.access(INDEX, os.F_OK, dir_fd=self.fd) else ""
                raise FolderRefused(message, hint=f"{first}name an empty folder, or one that does not exist yet")
        if (index := self.read_index()) and index.layout != layout:
            message = f"{self.path!r} has a save of {index.layout!r}, which one of {layout!r} would replace"
            raise FolderRefused(message, hint="name another folder, or remove this one if nobody needs its bytes")

    @property
    def used(self) -> int:
        """Bytes of the files of the folder."""
        return sum(os.stat(name, dir_fd=self.fd, follow_symlinks=False).st_size for name in os.listdir(self.fd))

    def require_room(self, needed: int) -> None:
        """Raise `FolderRefused` unless so many bytes are free, beside the save that the folder may have."""
        about = os.fstatvfs(self.fd)
        free = about.f_bavail * about.f_frsize
        if needed > free:
            beside = " beside the last one" * os.access(INDEX, os.F_OK, dir_fd=self.fd)
            message = f"{self.path!r} has {rounded(free)} free, and the save needs {rounded(needed)}{beside}"
            raise FolderRefused(message, hint=_ROOM)

    def create(self, name: str) -> int:
        """Create a file, and return its descriptor. Raises `OSError`."""
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(name, flags, 0o600, dir_fd=self.fd)

    def open(self, name: str, access: int = os.O_RDONLY) -> int:
        """Open a regular file, for reading by default. Raises `OSError`, and `FolderRefused`."""
        fd = os.open(name, access | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self.fd)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise self.changed(name)
        return fd

    def write(self, name: str, data: bytes) -> None:
        """Write a small file to the disk. Raises `OSError`."""
        with closing_fd(self.create(name)) as fd:
            while data:
                data = data[os.write(fd, data) :]
            os.fsync(fd)

    def changed(self, name: str) -> FolderRefused:
        """Return the error for a file that is not as it was saved."""
        return FolderRefused(f"{self.path}/{name} is not as it was saved", hint=DAMAGED)

    @contextmanager
    def requiring(self, name: str) -> Iterator[None]:
        """Raise `FolderRefused` if the code inside finds no file `name`, or a link."""
        try:
            yield
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise self.changed(name) from None
            if error.errno != errno.ENOENT:
                raise
            raise FolderRefused(f"{self.path}/{name} is missing", hint=DAMAGED) from None

    def _content(self, name: str) -> bytes:
        with closing_fd(self.open(name)) as fd:
            return read_descriptor(fd, _LARGEST_INDEX, None)

    def _parsed(self, name: str, kind: type[T], text: bytes) -> T:
        try:
            return decode(text, kind)
        except Mismatch as error:
            raise self.changed(name) from error


@contextmanager
def refusing(path: str) -> Iterator[None]:
    """Raise an error of the system in the code inside as `FolderRefused`."""
    try:
        yield
    except OSError as error:
        raise FolderRefused(f"{path!r}: {reason(error)}", hint=_REMEDIES.get(error.errno or 0)) from error


def make_folder(path: str) -> None:
    """Make a folder, if it is missing. Raises `FolderRefused` if there is no folder that it could be in."""
    try:
        os.mkdir(path, 0o700)  # noqa: PTH102 the path as it is named
    except FileExistsError:
        pass
    except FileNotFoundError:
        raise FolderRefused(f"{path!r} is in a folder that does not exist", hint="make that one first") from None


def make_parent(path: str) -> None:
    """Make the folder for those of several processes, if it is missing. Raises `FolderRefused`, also for a save."""
    with refusing(path):
        make_folder(path)
    if os.path.lexists(os.path.join(path, INDEX)):  # noqa: PTH118
        message = f"{path!r} has a save of a layout, from which 'memtopo apply --from' would restore"
        raise FolderRefused(message, hint="name another folder, or remove this one if nobody needs its bytes")


@contextmanager
def opened_folder(path: str, *, write: bool = False, lock: bool = True) -> Iterator[Folder]:
    """Open a folder of this user, and lock it: alone to `write`, which makes it if it is missing, else with others.

    Raises `FolderRefused` for a link, a folder of another user or that others may write, and one that is in use.
    """
    with refusing(path):
        if write:
            make_folder(path)
        try:
            opened = os.open(path.rstrip("/") or "/", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except NotADirectoryError:
            if os.path.islink(path.rstrip("/")):  # noqa: PTH114 as it is named
                raise FolderRefused(f"{path!r} is a link", hint="name the folder that it leads to") from None
            raise
        with closing_fd(opened) as fd:
            about = os.fstat(fd)
            if about.st_uid != os.geteuid():
                message = f"{path!r} belongs to uid {about.st_uid}, and this process has uid {os.geteuid()}"
                raise FolderRefused(message, hint="name a folder of this user" if write else "copy it as this user")
            if about.st_mode & stat.S_IWOTH:
                hint = f"name a folder in it: {path}/NAME" if write else f"'chmod o-w {path}', if you trust its bytes"
                raise FolderRefused(f"every user may write to {path!r}", hint=hint)
            try:
                if lock:
                    fcntl.flock(fd, (fcntl.LOCK_EX if write else fcntl.LOCK_SH) | fcntl.LOCK_NB)
            except BlockingIOError:
                message = f"{path!r} is in use: a layout offloads to it, or is being saved to it or restored from it"
                raise FolderRefused(message, hint="try again when it has ended, or name another folder") from None
            yield Folder(path, fd)


def folder_of(path: str, process: str) -> str:
    """Path of the folder with the bytes of a process: a folder of states has one for each of several processes."""
    own = os.path.join(path, process)  # noqa: PTH118
    is_saved = os.path.lexists(os.path.join(path, INDEX))  # noqa: PTH118
    return own if os.path.isdir(own) and not is_saved else path  # noqa: PTH112


def require_saved(path: str, processes: Collection[str]) -> None:
    """Raise `FolderRefused` for a folder without bytes of any of the processes of a layout; one alone has no name."""
    found: dict[str, str] = {}
    for each in dict.fromkeys(folder_of(path, process) for process in processes):
        with opened_folder(each) as folder:
            index = folder.read_index()
        if index:
            found |= dict.fromkeys(index.parts, index.layout)
    if not found:
        raise FolderRefused(f"{path!r} has no saved layout", hint="'memtopo save NAME FOLDER' writes one")
    if found.keys().isdisjoint(processes):
        layout = next(iter(found.values()))
        message = f"{path!r} has layout {layout!r}, and nothing of it is of a process of this layout"
        names = [[each or "one process without a name" for each in some] for some in (found, processes)]
        there, here = (", ".join(first_words(some, _LISTED)) for some in names)
        raise FolderRefused(message, hint=f"it has {there}, and this layout has {here}")


@contextmanager
def saving_to(path: str, layout: str) -> Iterator[Folder]:
    """Open a folder for a save of a layout, without the files of one that was not finished, nor of this if it fails."""
    with opened_folder(path, write=True) as folder:
        folder.require_own(layout)
        folder.remove_unused()
        with on_failure(folder.remove_unused):
            yield folder
