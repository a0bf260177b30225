"""Endpoints: the folder and the file name of a layout's socket and of its lock, and the access checks of the folder.

The runtime folder belongs to this user and is closed to others, or it is not used. A folder that the user names may be
open to others, as long as they cannot replace what is in it.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import Struct

from memtopo.common.errors import ExchangeError, UsageError, reason
from memtopo.common.files import closing_fd
from memtopo.common.processes import is_unmapped
from memtopo.common.units import shorten

NAME = re.compile("[A-Za-z][A-Za-z0-9_-]{0,127}")
"""Copy of `language.fields.NAME`, whose import takes longer than most commands; a test compares the two."""

_BESIDE = re.compile(rf"{NAME.pattern}(\.[A-Za-z0-9_-]+)+")
_SOCKET = ".sock"
_LOCK = ".lock"
_LONGEST_FILE = 255 - len(_LOCK)
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_ANY_ACCESS_OF_OTHERS = 0o077
_WRITE_ACCESS_OF_OTHERS = 0o022


class Endpoint(Struct, frozen=True):
    """The socket `file` in `folder`; `name` is the layout's name if the socket is in the runtime folder."""

    folder: str
    file: str
    name: str | None = None

    @property
    def path(self) -> str:
        """The path of the socket, for messages; the socket is opened through its folder."""
        return str(Path(self.folder, self.file))

    @property
    def layout(self) -> str:
        """The name of the layout, or that of the socket without its suffix."""
        return self.name or self.file.removesuffix(_SOCKET)

    @property
    def lock(self) -> str:
        """The name of the lock file beside the socket."""
        return self.file + _LOCK

    def open_folder(self, *, make: bool = False, allow_uids: Collection[int] = ()) -> int:
        """Open the folder and check its access; the owner may be one of `allow_uids` if the user named the folder.

        Raises `FileNotFoundError` if it does not exist, `ExchangeError` if it cannot be trusted.
        """
        return _open_runtime_folder(self.folder, make=make) if self.name else _open_folder(self.folder, allow_uids)


def endpoint(name: str | None = None, socket: str | None = None) -> Endpoint:
    """Return the endpoint of a layout's name, of the path of a socket, or of a name in a folder that `socket` names.

    Raises `UsageError`.
    """
    if socket is not None and is_folder(socket):
        if name is None:
            hint = f"'memtopo ls --socket {shorten(socket)}' lists the layouts in it; name one of them"
            raise UsageError(f"{shorten(socket)!r} is a folder", hint=hint)
        return Endpoint(os.path.abspath(socket), _checked_name(name) + _SOCKET)  # noqa: PTH100 links are not resolved
    if socket is not None:
        folder, file = os.path.split(os.path.abspath(socket))  # noqa: PTH100 as above
        if not file or not socket or "\0" in socket or len(os.fsencode(file)) > _LONGEST_FILE:
            raise UsageError(f"{shorten(socket)!r} is not a path for a socket", hint="write a path: FOLDER/FILE")
        return Endpoint(folder, file)
    return Endpoint(_runtime_folder(), _checked_name(name or "") + _SOCKET, name)


def usual_endpoint(name: str, socket: str | None = None) -> Endpoint:
    """Return the endpoint of a layout for a program, which may have named a socket or a folder. Raises `UsageError`.

    Otherwise the layout is in the folder of MEMTOPO_SOCKET. If that is the path of a socket, it is ignored: a producer
    that `--with` started listens there itself.
    """
    variable = os.environ.get("MEMTOPO_SOCKET")
    return endpoint(name, socket or (variable if variable and is_folder(variable) else None))


def is_folder(socket: str) -> bool:
    """Return whether a path is that of a folder of sockets, `FOLDER/NAME.sock`, and not of a socket."""
    return "\0" not in socket and (socket.endswith("/") or os.path.isdir(socket))  # noqa: PTH112 it may be empty


def endpoints(socket: str | None = None, allow_uids: Collection[int] = ()) -> list[Endpoint]:
    """Return the endpoints of all layouts in the runtime folder or in a named folder, or that of a socket.

    Sockets that dead processes left are included. Raises `ExchangeError` if the folder cannot be trusted, or if a named
    one does not exist.
    """
    if socket is None:
        return [endpoint(name) for name in endpoint_names()]
    if not is_folder(socket):
        return [endpoint(socket=socket)]
    try:
        folder = _open_folder(os.path.abspath(socket), allow_uids)  # noqa: PTH100 links are not resolved
    except FileNotFoundError:
        raise no_folder(socket) from None
    return [endpoint(name, socket) for name in _names(folder)]


def endpoints_beside(socket: str | None = None, allow_uids: Collection[int] = ()) -> list[Endpoint]:
    """Return the endpoints of processes beside those of layouts, `kv.join.sock` and `kv.engine.0.sock`.

    They are in the runtime folder or in a named one. Raises `ExchangeError` if the folder cannot be trusted.
    """
    if socket is not None and not is_folder(socket):
        return []
    where = _runtime_folder() if socket is None else os.path.abspath(socket)  # noqa: PTH100 links are not resolved
    try:
        folder = _open_runtime_folder(where) if socket is None else _open_folder(where, allow_uids)
    except FileNotFoundError:
        return []
    owner = {name: name.partition(".")[0] if socket is None else None for name in _names(folder, _BESIDE)}
    return [Endpoint(where, name + _SOCKET, layout) for name, layout in owner.items()]


def endpoint_names() -> list[str]:
    """Return the names of all sockets and locks in the runtime folder, also of the ones that dead processes left.

    Raises `ExchangeError` if the folder cannot be trusted.
    """
    try:
        return _names(_open_runtime_folder(_runtime_folder()))
    except FileNotFoundError:
        return []


def _names(folder: int, pattern: re.Pattern[str] = NAME) -> list[str]:
    """Names of the sockets and locks in a folder, which is closed."""
    with closing_fd(folder):
        names = {file.removesuffix(_LOCK).removesuffix(_SOCKET) for file in os.listdir(folder) if _SOCKET in file}
    return sorted(name for name in names if pattern.fullmatch(name))


def is_held(name: str) -> bool:
    """Return whether a layout of a name is held in the runtime folder, or was; false if the folder is not trusted."""
    if NAME.fullmatch(name):
        with suppress(ExchangeError):
            return name in endpoint_names()
    return False


def _checked_name(name: str) -> str:
    if not NAME.fullmatch(name) and os.path.isfile(name):  # noqa: PTH113 a Path raises for what is no path
        message = f"{shorten(name)!r} is a file, and the name of a held layout is expected"
        raise UsageError(message, hint=_A_FILE)
    if not NAME.fullmatch(name):
        raise UsageError(
            f"{shorten(name)!r} is not a layout's name",
            hint="a name begins with a letter and continues with letters, digits, _ and -; --socket accepts a path",
        )
    return name


def _runtime_folder() -> str:
    """Return `$XDG_RUNTIME_DIR/memtopo`, else `memtopo-UID` in `$TMPDIR` or /tmp."""
    given = os.environ.get("XDG_RUNTIME_DIR", "")
    if Path(given).is_absolute() and Path(given).is_dir():
        return str(Path(given, "memtopo"))
    temporary = os.environ.get("TMPDIR", "")
    return str(Path(temporary if Path(temporary).is_absolute() else "/tmp", f"memtopo-{os.geteuid()}"))  # noqa: S108


def _open_runtime_folder(folder: str, *, make: bool = False) -> int:
    """Open the runtime folder, which must be closed to other users; with `make`, create it if necessary."""
    parent, name = os.path.split(folder)
    with closing_fd(_open_folder(parent, named=False)) as above:
        if make:
            with _trusting(folder, "made", _MADE), suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=above)
        with _trusting(folder, "opened as a folder", _MADE):
            fd = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=above)
    found, ours = os.fstat(fd), os.geteuid()
    if found.st_uid != ours:
        why, hint = f"it belongs to uid {found.st_uid}, and this process to uid {ours}", _MADE
    elif found.st_mode & _ANY_ACCESS_OF_OTHERS:
        why, hint = f"other users can enter it (mode {stat.S_IMODE(found.st_mode):o})", _CLOSED
    else:
        return fd
    os.close(fd)
    raise _untrusted(folder, why, hint)


def _open_folder(folder: str, allow_uids: Collection[int] = (), *, named: bool = True) -> int:
    """Open a folder in which only this user, root and `allow_uids` may replace files of others.

    A folder that the user has `named` may be that of another user.
    """
    with _trusting(folder, "opened", _ENTERED if named else _MADE):
        fd = os.open(folder or ".", _FOLDER)
    found, ours = os.fstat(fd), os.geteuid()
    if found.st_uid not in (0, ours, *allow_uids):
        where = ", which represents every unmapped user in this user namespace" * is_unmapped(found.st_uid)
        why = f"it belongs to uid {found.st_uid}{where}, and this process to uid {ours}"
    elif found.st_mode & _WRITE_ACCESS_OF_OTHERS and not found.st_mode & stat.S_ISVTX:
        why = f"other users can change its content (mode {stat.S_IMODE(found.st_mode):o})"
    else:
        return fd
    os.close(fd)
    raise _untrusted(folder, why, _TRUSTED.format(found.st_uid) if named and found.st_uid not in (0, ours) else _MADE)


@contextmanager
def _trusting(folder: str, what: str, denied: str) -> Iterator[None]:
    """Raise `ExchangeError` for a folder that exists, and cannot be opened or made, with a hint if that is `denied`."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        hint = denied if isinstance(error, PermissionError) else _MADE
        raise _untrusted(folder, f"it cannot be {what} ({reason(error)})", hint) from error


def no_folder(folder: str) -> ExchangeError:
    """Return the error for a named folder that does not exist."""
    hint = "create it first, writable only by its owner"
    return ExchangeError("folder", f"folder {folder!r} for a socket does not exist", hint=hint)


_A_FILE = "'memtopo ls' lists the names; 'memtopo validate' checks a file, and 'memtopo diff' compares two"
_MADE = (
    "create one that only its owner can write, 'install -d -m 755 FOLDER', and name it: --socket FOLDER/, "
    "or XDG_RUNTIME_DIR"
)
_CLOSED = "close it, 'chmod 700 FOLDER'; or name another one: --socket FOLDER/, or XDG_RUNTIME_DIR"
_ENTERED = (
    "if it is another user's: that user can hold the layout in a folder that others may enter, "
    "'memtopo apply SPEC --hold --socket FOLDER/ --allow-uid UID'"
)
_TRUSTED = "--allow-uid {0}, if that user is to be trusted; only uid {0} can switch and change the layouts there"


def _untrusted(folder: str, why: str, hint: str) -> ExchangeError:
    return ExchangeError("folder", f"folder {folder!r} is not used for sockets: {why}", hint=hint)
