"""What a worker is told when it starts, and what it says when it ends: documents larger than a packet.

They travel as files in memory, whose descriptors the packets carry.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from pydantic import TypeAdapter

from memtopo.common.errors import InternalError
from memtopo.plans.report import Check, Checks, Report
from memtopo.sharing import Offer

LARGEST = 64 << 20

Document = TypeVar("Document", Report, Checks, tuple[Offer, ...])


@dataclass(frozen=True, slots=True)
class Briefing:
    """Which process a worker is, of which spec, on which machine, and how many seconds of silence mean a death.

    `visible` are the ordinals of the only GPUs that it is to see, as the launching process counts them, and `gpus` the
    UUIDs of all of that one's, as hex text. `check` and `seed` are the job's.
    """

    process: str
    spec: str
    text: str
    machine: str
    machine_name: str
    simulated: bool
    visible: tuple[int, ...]
    timeout: float
    gpus: tuple[str, ...]
    sockets: dict[str, str]
    allow_uids: tuple[int, ...]
    check: Check = "fast"
    seed: int = 0

    def pack(self) -> int:
        """A descriptor of a file with all of it, which the caller closes."""
        return _written(json.dumps(asdict(self)).encode())

    @staticmethod
    def unpack(fd: int) -> Briefing:
        """Read and close one."""
        fields: dict[str, Any] = json.loads(_read(fd))
        return Briefing(**fields | {key: tuple(fields[key]) for key in ("visible", "gpus", "allow_uids")})


def pack(document: Report | Checks | tuple[Offer, ...]) -> int:
    """A descriptor of a file with what a worker found, which the caller closes."""
    type_: Any = tuple[Offer, ...] if isinstance(document, tuple) else type(document)
    return _written(TypeAdapter(type_).dump_json(document))


def unpack(type_: type[Document], fd: int) -> Document:
    """Read and close one. Raises `ValueError` where it is damaged."""
    return TypeAdapter(type_).validate_json(_read(fd))


def _written(data: bytes) -> int:
    fd = os.memfd_create("memtopo-briefing", os.MFD_CLOEXEC)
    with os.fdopen(os.dup(fd), "wb") as file:
        file.write(data)
    return fd


def _read(fd: int) -> bytes:
    try:
        size = os.fstat(fd).st_size
        if size > LARGEST:
            raise InternalError(f"a briefing of {size:,} bytes")
        return os.pread(fd, size, 0)
    finally:
        os.close(fd)
