"""What dead holders left: found, since nobody has locked it and nobody answers, and removed."""

from __future__ import annotations

import os
import stat
from contextlib import suppress

from memtopo.sharing.dialling import answers
from memtopo.sharing.faults import ExchangeError
from memtopo.sharing.locking import hidden, lock_of
from memtopo.sharing.places import Place


def sweep(place: Place) -> bool:
    """Remove what a dead holder left at a place. Whether nobody lives there; what cannot be removed may stay."""
    try:
        folder = place.open()
    except FileNotFoundError:
        return True
    try:
        lock = lock_of(folder, place.lock, make=_there(folder, place.file))
        if lock is None:
            return False
        try:
            clear(folder, place, lock)
            os.unlink(place.lock, dir_fd=folder)
        finally:
            os.close(lock)
    except OSError:
        return True
    except ExchangeError as error:
        return error.code != "held"
    finally:
        os.close(folder)
    return True


def clear(folder: int, place: Place, lock: int) -> None:
    """Remove the sockets that a dead holder left. Raises `ExchangeError` where somebody still answers there."""
    with suppress(FileNotFoundError):
        os.unlink(hidden(lock), dir_fd=folder)
    try:
        found = os.stat(place.file, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode) or found.st_uid != os.geteuid():
        raise ExchangeError("folder", f"{place.path!r} is there, and it is no socket of this user")
    if answers(folder, place.file):  # a lock that was removed by hand says nothing
        raise held(place, None)
    os.unlink(place.file, dir_fd=folder)


def held(place: Place, pid: int | None) -> ExchangeError:
    """An error for a place that another process has."""
    what = f"layout {place.name!r}" if place.name else f"socket {place.path!r}"
    command = f"'memtopo release {place.name or f'--socket {place.path}'}'"
    return ExchangeError(
        "held",
        f"{what} is already held by {f'process {pid}' if pid else 'another process'}",
        hint=f"{command} lets it go; {'another name' if place.name else '--socket'} goes beside it",
    )


def _there(folder: int, file: str) -> bool:
    with suppress(FileNotFoundError):
        os.stat(file, dir_fd=folder, follow_symlinks=False)
        return True
    return False
