"""Where a layout is found: the folder and the name of its socket, with the lock that goes with it."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from memtopo.common.errors import UsageError
from memtopo.common.units import shorten
from memtopo.sharing.errors import ExchangeError, reason

NAME = re.compile("[A-Za-z][A-Za-z0-9_-]{0,127}")
"""What `fields.NAME` is, whose import takes longer than most of what is done here; a test holds the two together."""

_ENDING = ".sock"
_LOCK = ".lock"
_LONGEST = 255 - len(_LOCK)


@dataclass(frozen=True, slots=True)
class Endpoint:
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
        return open_runtime(self.folder, make=make) if self.name else open_given(self.folder, also)


def endpoint(name: str | None = None, socket: str | None = None) -> Endpoint:
    """Where a layout of this name stands, or what a path of a socket names. Raises `UsageError`."""
    if socket is not None:
        folder, file = os.path.split(os.path.abspath(socket))  # noqa: PTH100 links stay as they are
        if not file or socket.endswith("/") or not socket or "\0" in socket or len(os.fsencode(file)) > _LONGEST:
            raise UsageError(f"{shorten(socket)!r} is no path for a socket", hint="write --socket FOLDER/FILE")
        return Endpoint(folder, file)
    if name is None or not NAME.fullmatch(name):
        raise UsageError(
            f"{shorten(name or '')!r} is not a layout's name",
            hint="a name begins with a letter and goes on with letters, digits, _ and -; --socket takes a path",
        )
    return Endpoint(runtime(), name + _ENDING, name)


def names() -> list[str]:
    """The names of which there is a socket or a lock in the runtime directory, of whomever, alive or not.

    Raises `ExchangeError` where the directory is not to be trusted.
    """
    try:
        folder = open_runtime(runtime())
    except FileNotFoundError:
        return []
    try:
        found = {file.removesuffix(_LOCK).removesuffix(_ENDING) for file in os.listdir(folder) if _ENDING in file}
    finally:
        os.close(folder)
    return sorted(name for name in found if NAME.fullmatch(name))


_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OTHERS = 0o077
_WRITABLE = 0o022


def runtime() -> str:
    """Where this user's sockets stand: `$XDG_RUNTIME_DIR/memtopo`, else `memtopo-UID` in `$TMPDIR` or /tmp."""
    given = os.environ.get("XDG_RUNTIME_DIR", "")
    if Path(given).is_absolute() and Path(given).is_dir():
        return str(Path(given, "memtopo"))
    temporary = os.environ.get("TMPDIR", "")
    return str(Path(temporary if Path(temporary).is_absolute() else "/tmp", f"memtopo-{os.geteuid()}"))  # noqa: S108


def open_runtime(folder: str, *, make: bool = False) -> int:
    """A descriptor of our folder, after a look that it is ours alone; made first where `make` says so.

    Raises `FileNotFoundError` where it is not there, `ExchangeError` where it is not to be trusted.
    """
    parent, name = os.path.split(folder)
    above = open_given(parent)
    try:
        if make:
            _make(name, above, folder)
        fd = os.open(name, _FOLDER, dir_fd=above)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _distrusted(folder, f"it cannot be opened as a folder ({reason(error)})") from error
    finally:
        os.close(above)
    return _checked(fd, folder, _ours)


def open_given(folder: str, also: Collection[int] = ()) -> int:
    """A descriptor of a folder, after a look that nobody but us, root and `also` can move away what is in it.

    Raises `FileNotFoundError` where it is not there, `ExchangeError` where others may change what is in it.
    """
    try:
        fd = os.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _distrusted(folder, f"it cannot be opened ({reason(error)})") from error
    return _checked(fd, folder, lambda found: _steady(found, also))


def _make(name: str, above: int, folder: str) -> None:
    try:
        os.mkdir(name, 0o700, dir_fd=above)
    except FileExistsError:
        pass
    except OSError as error:
        raise _distrusted(folder, f"it cannot be made ({reason(error)})") from error


def _checked(fd: int, folder: str, fault: Callable[[os.stat_result], str | None]) -> int:
    found = fault(os.fstat(fd))
    if found:
        os.close(fd)
        raise _distrusted(folder, found)
    return fd


def _ours(found: os.stat_result) -> str | None:
    if found.st_uid != os.geteuid():
        return f"it belongs to uid {found.st_uid}, and this process to uid {os.geteuid()}"
    if found.st_mode & _OTHERS:
        return f"others may enter it (mode {stat.S_IMODE(found.st_mode):o}); 'chmod 700' closes it"
    return None


def _steady(found: os.stat_result, also: Collection[int]) -> str | None:
    """A folder where only who made a file can take it away: ours or root's, and sticky where all may write."""
    if found.st_uid not in (0, os.geteuid(), *also):
        return f"it belongs to uid {found.st_uid}, and this process to uid {os.geteuid()}"
    if found.st_mode & _WRITABLE and not found.st_mode & stat.S_ISVTX:
        return f"others may change what is in it (mode {stat.S_IMODE(found.st_mode):o})"
    return None


def _distrusted(folder: str, why: str) -> ExchangeError:
    return ExchangeError(
        "folder",
        f"folder {folder!r} is not used for sockets: {why}",
        hint="put that right, or let XDG_RUNTIME_DIR name a folder of your own",
    )
