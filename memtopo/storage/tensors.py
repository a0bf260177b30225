"""Tensors in files of the format of safetensors, and in memory, with a table of them at its start.

A file begins with 8 bytes, the length of its header, and the header as JSON of that length: dtype, shape and
`data_offsets` of each tensor, from the end of the header on. The tensors fill the rest of the file, without an overlap
or a hole. A table is a mark, the length and the SHA-256 of a JSON text, and the text; every process that maps the
memory finds it.
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from hashlib import sha256
from itertools import groupby
from pathlib import Path
from typing import Annotated, NamedTuple, NoReturn

from msgspec import DecodeError, Meta, Raw, Struct

from memtopo.common.decoding import Mismatch, decode, decoder
from memtopo.common.errors import Failed, reason
from memtopo.common.files import closing_fd
from memtopo.common.units import rounded_up, shorten
from memtopo.storage.direct import BLOCK, BUFFER, Buffer, DirectFile, Transfer, opened_to_read
from memtopo.storage.saved import PieceMemory

LARGEST_HEADER = 100_000_000
"""Limit of a header, that of the format."""

_LENGTH = 8
BITS = {
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}  # fmt: skip
"""Bits of an element of each dtype."""

Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]


class BadTensors(Failed):
    """A file that is not of the format of safetensors, or tensors that do not fit."""


class _Entry(Struct, frozen=True, forbid_unknown_fields=True):
    """Entry of a header."""

    dtype: str
    shape: Annotated[tuple[Count, ...], Meta(max_length=64)]
    data_offsets: tuple[Count, Count]


class Tensor(NamedTuple):
    """Tensor of a file, with its offset and size in bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    size: int


def read_header(path: str | Path) -> tuple[Tensor, ...]:
    """Return the tensors of a file in the order of their offsets, which are those in the file. Raises `BadTensors`."""
    try:
        with closing_fd(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)) as fd:
            about = os.fstat(fd)
            if stat.S_ISDIR(about.st_mode):
                raise BadTensors(f"{os.fspath(path)!r} is a folder", hint="name the files in it: *.safetensors")
            if not stat.S_ISREG(about.st_mode):
                _refuse(path, "is not a regular file")
            length = int.from_bytes(os.pread(fd, _LENGTH, 0), "little")
            start = _LENGTH + length
            if about.st_size < _LENGTH or start > about.st_size:
                _refuse(path, f"is cut or of another format: it has {about.st_size:,} bytes, and no header fits")
            if length > LARGEST_HEADER:
                _refuse(path, f"has a header of {length:,} bytes; the limit is {LARGEST_HEADER:,}")
            text = os.pread(fd, length, _LENGTH)
    except OSError as error:
        raise BadTensors(f"{os.fspath(path)!r} cannot be read: {reason(error)}") from error
    entries = _entries(path, text)
    found = [_tensor(path, name, each) for name, each in entries.items()]
    found.sort(key=lambda each: (each.offset, each.size))
    end, size = 0, about.st_size - start
    for each in found:
        if each.offset != end:
            what = "overlaps the one before" if each.offset < end else "follows a hole"
            _refuse(path, f"has a tensor {each.name!r} that {what}: it begins at {each.offset:,}, and not at {end:,}")
        end += each.size
    if end != size:
        _refuse(path, f"has {size:,} bytes of data, and its tensors have {end:,}")
    return tuple(each._replace(offset=start + each.offset) for each in found)


def _entries(path: str | Path, text: bytes) -> dict[str, _Entry]:
    """Entries by name, each decoded as its type, so that a hostile header takes little more memory than its text."""
    name, entries = "__metadata__", {}
    try:
        values = decoder(dict[str, Raw]).decode(text)
    except (DecodeError, UnicodeError, RecursionError) as error:
        _refuse(path, f"has a header that is no JSON object: {error}", error)
    try:
        decoder(dict[str, str] | None).decode(values.pop(name, b"null"))
        for name, value in values.items():
            entries[name] = decoder(_Entry).decode(value)
    except (DecodeError, UnicodeError, RecursionError) as error:
        _refuse(path, f"has a header with a wrong entry: {shorten(name)}: {error}", error)
    try:
        json.loads(text, object_pairs_hook=_require_unique)
    except ValueError as error:
        _refuse(path, f"has a header in which {error}", error)
    return entries


def _require_unique(pairs: list[tuple[str, object]]) -> None:
    if len({name for name, _ in pairs}) < len(pairs):
        raise ValueError("a name is there twice")


def _tensor(path: str | Path, name: str, entry: _Entry) -> Tensor:
    """Tensor with its offset in the data. Raises `BadTensors` if the size is not that of the shape."""
    if entry.dtype not in BITS:
        _refuse(path, f"has a tensor {name!r} of dtype {entry.dtype!r}, which is not known")
    begin, end = entry.data_offsets
    if (end - begin) * 8 != math.prod(entry.shape) * BITS[entry.dtype]:
        _refuse(path, f"has {end - begin:,} bytes for tensor {name!r}, which is {entry.dtype} of {list(entry.shape)}")
    return Tensor(name, entry.dtype, entry.shape, begin, end - begin)


def _refuse(path: str | Path, what: str, cause: BaseException | None = None) -> NoReturn:
    raise BadTensors(f"{os.fspath(path)!r} {what}", hint="is it a whole file of safetensors?") from cause


def copy_tensors(
    path: str | Path, tensors: Sequence[Tensor], places: Sequence[int], piece: str, memory: PieceMemory, copy: Transfer
) -> None:
    """Copy tensors of a file to offsets of a piece. Raises `BadTensors`, and `DriverError`."""
    pairs = zip(tensors, places, strict=True)
    parts: list[tuple[int, int, int]] = []
    # Tensors that lie one after another in the file and in the piece are one run, mostly all of a file.
    for distance, some in groupby(pairs, key=lambda pair: pair[1] - pair[0].offset):
        run = [tensor for tensor, _ in some]
        start, end = run[0].offset, run[-1].offset + run[-1].size
        while start < end:  # a buffer has a part with whole blocks
            size = min(BUFFER - start % BLOCK, end - start)
            parts.append((start, start + distance, size))
            start += size

    def copy_part(file: DirectFile, start: int, place: int, size: int, buffer: Buffer) -> None:
        before = start % BLOCK
        if file.read(buffer.part(rounded_up(before + size, BLOCK)), start - before) < before + size:
            _refuse(path, "was cut while it was read")
        memory.write(piece, place, size, buffer.address + before)

    try:
        with closing_fd(os.open(path, os.O_RDONLY | os.O_CLOEXEC)) as fd, opened_to_read(fd) as file:
            copy.run([partial(copy_part, file, *part) for part in parts])
    except OSError as error:
        raise BadTensors(f"{os.fspath(path)!r} cannot be read: {reason(error)}") from error


PREFIX = 64
"""Bytes of the mark, the length and the digest."""

Table = Mapping[str, Tensor]
"""Tensors by name, with their offsets in the memory."""

_MARK = b"memtopo\1"
_ALIGNED = 256
"""Alignment of each tensor, as that of allocations of CUDA."""

_LARGEST_OFFSET = 1 << 62


class Loaded(Struct, frozen=True):
    """Result of a load: the number of tensors, and of their bytes, in an export of a layout."""

    name: str
    into: str
    tensors: int
    size: int


def placed(tensors: Sequence[Tensor]) -> tuple[Table, int]:
    """Place tensors one after another behind their table; return the table, and the end of the last one."""
    longest = [each._replace(offset=_LARGEST_OFFSET) for each in tensors]
    end, found = PREFIX + len(json.dumps(longest)), {}
    for each in tensors:
        found[each.name] = each._replace(offset=rounded_up(end, _ALIGNED))
        end = found[each.name].offset + each.size
    return found, end


def encoded(tensors: Iterable[Tensor]) -> bytes:
    """Return the bytes of a table."""
    data = json.dumps(list(tensors)).encode()
    head = _MARK + len(data).to_bytes(8, "little") + sha256(data).digest()
    return head.ljust(PREFIX, b"\0") + data


def read_table(prefix: bytes, read: Callable[[int, int], bytes], size: int) -> Table:
    """Read the table after a prefix from memory of a size, by offset and size; empty if there is none."""
    length = int.from_bytes(prefix[8:16], "little")
    if prefix[:8] != _MARK or length > min(LARGEST_HEADER, size - PREFIX):
        return {}
    data = read(PREFIX, length)
    if sha256(data).digest() != prefix[16:48]:
        return {}
    try:
        return {each.name: each for each in decode(data, list[Tensor])}
    except Mismatch:
        return {}
