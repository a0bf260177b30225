"""Tables of the tensors in memory, at its start, where every process that maps it finds them.

A table is a mark, the length and the SHA-256 of a JSON text, and the text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256

from msgspec import Struct

from memtopo.common.decoding import Mismatch, decode
from memtopo.common.units import rounded_up
from memtopo.storage.safetensors import LARGEST_HEADER, Tensor

PREFIX = 64
"""Bytes of the mark, the length and the digest."""

Table = Mapping[str, Tensor]
"""Tensors by name, with their offsets in the memory."""

_MARK = b"memtopo\1"
_ALIGNED = 256
"""Alignment of each tensor, as that of allocations of CUDA."""

_LARGEST = 1 << 62


class Loaded(Struct, frozen=True):
    """Result of a load: the number of tensors, and of their bytes, in an export of a layout."""

    name: str
    into: str
    tensors: int
    size: int


def placed(tensors: Sequence[Tensor]) -> tuple[Table, int]:
    """Place tensors one after another behind their table; return the table, and the end of the last one."""
    longest = [each._replace(offset=_LARGEST) for each in tensors]
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
