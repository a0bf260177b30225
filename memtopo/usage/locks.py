"""Layouts of other users, found by their lock files: their holders answer their own users alone.

Only root may look into the runtime folders of other users.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from memtopo.common.processes import PROC
from memtopo.usage.report import LayoutUse

_FOLDERS = ("run/user/*/memtopo", "tmp/memtopo-*")
_LOCK = ".sock.lock"

_File = tuple[int, int, int]
"""Major and minor number of a device, and an inode."""


def locked_layouts(root: Path = Path("/"), proc: Path = PROC) -> Iterator[tuple[int, LayoutUse]]:
    """Yield layouts in the runtime folders of all users that may be read, each with the process that has its lock.

    A lock counts only if it belongs to the user of that process, since any user may make such a folder in /tmp.
    """
    owners = dict(_flocks(proc / "locks"))
    for file in sorted(file for pattern in _FOLDERS for file in root.glob(f"{pattern}/*{_LOCK}")):
        with suppress(OSError):
            found = file.lstat()
            pid = owners.get((os.major(found.st_dev), os.minor(found.st_dev), found.st_ino))
            if pid and (proc / str(pid)).stat().st_uid == found.st_uid:
                socket = str(file.with_suffix(""))
                yield pid, LayoutUse(file.name.removesuffix(_LOCK), "holder", pid, None, None, None, socket)


def _flocks(file: Path) -> Iterator[tuple[_File, int]]:
    """Files that are locked by `flock`, and the process that has the lock."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        words = line.split()
        if words[1:2] == ["FLOCK"]:
            major, minor, inode = words[5].split(":")
            yield (int(major, 16), int(minor, 16), int(inode)), int(words[4])
