"""Where a layout is found: the folder and the name of its socket, with the lock that goes with it."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from memtopo.common.errors import UsageError
from memtopo.common.units import shorten
from memtopo.sharing import folders

NAME = re.compile("[A-Za-z][A-Za-z0-9_-]{0,127}")
"""What `fields.NAME` is, whose import takes longer than most of what is done here; a test holds the two together."""

_ENDING = ".sock"
_LOCK = ".lock"
_LONGEST = 255 - len(_LOCK)


@dataclass(frozen=True, slots=True)
class Place:
    """A socket's place: `file` in `folder`. `name` is the layout's, where it goes by one."""

    folder: str
    file: str
    name: str | None = None

    @property
    def path(self) -> str:
        """The path of the socket, for people; nothing is opened by it."""
        return str(Path(self.folder, self.file))

    @property
    def lock(self) -> str:
        """The file beside the socket that its holder has locked."""
        return self.file + _LOCK

    def open(self, *, make: bool = False, also: Collection[int] = ()) -> int:
        """A descriptor of the folder, after a look at who owns it: we, or where a path was given, root or `also`.

        Raises `FileNotFoundError` where it is not there, `ExchangeError` where it is not to be trusted.
        """
        return folders.open_runtime(self.folder, make=make) if self.name else folders.open_given(self.folder, also)


def place(name: str | None = None, socket: str | None = None) -> Place:
    """Where a layout of this name stands, or what a path of a socket names. Raises `UsageError`."""
    if socket is not None:
        folder, file = os.path.split(os.path.abspath(socket))  # noqa: PTH100 links stay as they are
        if not file or socket.endswith("/") or not socket or "\0" in socket or len(os.fsencode(file)) > _LONGEST:
            raise UsageError(f"{shorten(socket)!r} is no path for a socket", hint="write --socket FOLDER/FILE")
        return Place(folder, file)
    if name is None or not NAME.fullmatch(name):
        raise UsageError(
            f"{shorten(name or '')!r} is not a layout's name",
            hint="a name begins with a letter and goes on with letters, digits, _ and -; --socket takes a path",
        )
    return Place(folders.runtime(), name + _ENDING, name)


def names() -> list[str]:
    """The names of which there is a socket or a lock in the runtime directory, of whomever, alive or not.

    Raises `ExchangeError` where the directory is not to be trusted.
    """
    try:
        folder = folders.open_runtime(folders.runtime())
    except FileNotFoundError:
        return []
    try:
        found = {file.removesuffix(_LOCK).removesuffix(_ENDING) for file in os.listdir(folder) if _ENDING in file}
    finally:
        os.close(folder)
    return sorted(name for name in found if NAME.fullmatch(name))
