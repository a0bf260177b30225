"""What every command that asks a held layout begins with: its name or its socket, and a connection."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import ExitStack

from memtopo.common.errors import UsageError
from memtopo.sharing import Client, NoLayout, connect, endpoint


def reached(name: str | None, socket: str | None, allow_uids: Collection[int]) -> Client:
    """A connection to the holder of a layout; where both are given, the one at the socket has to have the name.

    Raises `UsageError` where nothing is named, `NoLayout`, `ExchangeError`.
    """
    if name is None and socket is None:
        raise UsageError("missing argument 'NAME'", hint="name a layout, or --socket PATH; 'memtopo ls' lists them")
    client = connect(endpoint(name if socket is None else None, socket), allow_uids=allow_uids)
    if name is not None and socket is not None:
        _same_name(client, name, socket)
    return client


def _same_name(client: Client, name: str, socket: str) -> None:
    with ExitStack() as stack:
        stack.push(client)
        found = client.status().name
        if found != name:
            raise NoLayout(f"the layout at {socket!r} is {found!r}, not {name!r}", hint="leave one of the two out")
        stack.pop_all()
