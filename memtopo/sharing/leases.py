"""Names of importers' sockets: an importer is found by the name of its lease, also after the holder has ended.

The name is an address in the abstract namespace. It costs no descriptor, `/proc/net/unix` lists it, and it disappears
with the importer's end of the connection, which stays open until the importer closes it.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from memtopo.common.processes import process_stat

_MARKER = "memtopo-import"
_LONGEST_LAYOUT = 40
_ENTRY_COLUMNS = 8
"""Columns of a line of `/proc/net/unix` whose socket has a name; the last is the name, with @ for its first byte."""


@dataclass(frozen=True, slots=True)
class LeaseName:
    """Layout of a lease (its name, or the file of its socket), when it began, and its holder by pid and start.

    `since` is in seconds of the epoch, `start` in ticks since boot. A holder of another pid namespace has pid 0.
    """

    layout: str
    holder: int
    start: int
    since: int

    @property
    def address(self) -> str:
        """Address of a socket with this name, different for each call."""
        unique = secrets.token_hex(6)
        layout = quote(self.layout, safe="")[:_LONGEST_LAYOUT]
        return f"\0{_MARKER}/{unique}/{self.holder}/{self.start}/{self.since}/{layout}"


def name_lease(sock: socket.socket, path: str, holder: int) -> None:
    """Name the socket of an importer. Without effect if it has a name, or if the system refuses one."""
    found = process_stat(holder) if holder else None
    layout = Path(path).name.removesuffix(".sock")
    with suppress(OSError):
        sock.bind(LeaseName(layout, holder, found.start if found else 0, int(time.time())).address)


def lease_names(file: Path) -> dict[int, LeaseName]:
    """Return the leases in a file such as `/proc/net/unix`, by the inodes of their sockets."""
    try:
        lines = os.fsdecode(file.read_bytes()).split("\n")
    except OSError:
        return {}
    columns = (line.split(maxsplit=_ENTRY_COLUMNS - 1) for line in lines if f"@{_MARKER}/" in line)
    found = ((int(each[6]), _parsed(each[7])) for each in columns if len(each) == _ENTRY_COLUMNS)
    return {inode: lease for inode, lease in found if lease}


def _parsed(name: str) -> LeaseName | None:
    try:
        marker, _, holder, start, since, layout = name.strip().split("/")
        return LeaseName(unquote(layout), int(holder), int(start), int(since)) if marker == f"@{_MARKER}" else None
    except ValueError:
        return None
