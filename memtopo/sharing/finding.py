"""From a place to its holder: whether somebody is there, and what it means where nobody is."""

from __future__ import annotations

import os
from collections.abc import Collection

from memtopo.common.text import nearest
from memtopo.diagnostics.messages import COMPARED
from memtopo.sharing.dialling import dial
from memtopo.sharing.faults import ExchangeError, NoLayout, reason
from memtopo.sharing.locking import holder
from memtopo.sharing.places import Place, names
from memtopo.sharing.sweeping import sweep
from memtopo.sharing.talking import Talk


def reach(place: Place, *, timeout: float, allow_uids: Collection[int] = ()) -> Talk:
    """A connection to the holder at a place.

    Raises `NoLayout` where nobody holds one there, `ExchangeError` where the holder is another user's or does not
    answer.
    """
    try:
        folder = place.open(also=allow_uids)
    except FileNotFoundError:
        raise _nobody(place) from None
    try:
        sock = dial(folder, place.file, timeout)
    except (FileNotFoundError, ConnectionRefusedError):
        raise _not_served(place, holder(folder, place.lock)) from None
    except BlockingIOError:
        told = f"no answer to 'connect' within {timeout:g} s {_ends(place, holder(folder, place.lock))}"
        raise ExchangeError("timeout", told, hint="its holder may be stopped; 'memtopo ls' shows it") from None
    except PermissionError as error:
        told = f"socket {place.path!r} is another user's: {reason(error)} {_ends(place, None)}"
        raise ExchangeError("forbidden", told, hint="its holder has to let this user in: --allow-uid") from error
    except OSError as error:
        raise ExchangeError("folder", f"socket {place.path!r} is of no use: {reason(error)}") from error
    finally:
        os.close(folder)
    return Talk(sock, place.path, timeout=timeout, allow_uids=allow_uids)


def _not_served(place: Place, pid: int | None) -> ExchangeError | NoLayout:
    """What a place means where nobody listens: the holder is dead, or it has the name and serves nobody yet."""
    if sweep(place):
        return _nobody(place)
    what = f"layout {place.name!r}" if place.name else f"the layout at {place.path!r}"
    told = f"{what} is being built or taken down, and not served {_ends(place, pid)}"
    return ExchangeError("starting", told, hint="try again in a moment")


def _nobody(place: Place) -> NoLayout:
    if place.name is None:
        return NoLayout(f"nobody holds a layout at {place.path!r}", hint="'memtopo ls' shows what is held")
    known = [name for name in names() if name != place.name]
    meant = nearest(place.name, known[:COMPARED])
    hint = f"did you mean {meant!r}? " if meant else ""
    return NoLayout(
        f"no layout {place.name!r} is held (looked for {place.path})", hint=f"{hint}'memtopo ls' shows what is held"
    )


def _ends(place: Place, pid: int | None) -> str:
    return f"(holder: {f'process {pid}' if pid else 'not known'} at {place.path}; asked by process {os.getpid()})"
