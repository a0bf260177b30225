"""What a holder says where it does not do what it was asked for."""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice
from typing import Any

from memtopo.common.errors import MemtopoError
from memtopo.common.units import shorten
from memtopo.sharing.faults import BadPacket, ExchangeError
from memtopo.sharing.holder.connection import Connection
from memtopo.sharing.reading import Fields

REQUESTS = ("status", "offers", "importers", "handles", "check", "source", "release")
_TOLD = 1000
_LISTED = 4


def refusal(error: MemtopoError) -> dict[str, Any]:
    """An error as it travels."""
    code = error.code if isinstance(error, ExchangeError) else "failed"
    hint = None if error.hint is None else shorten(error.hint, _TOLD)
    return {"error": {"code": code, "message": shorten(error.message, _TOLD), "hint": hint}}


def request_of(fields: Fields) -> str:
    """Which request a message is. Raises `BadPacket`."""
    try:
        return fields.word("request", *REQUESTS)
    except BadPacket as error:
        raise BadPacket(error.message, "request") from error


def attached(bound: Collection[Connection]) -> ExchangeError:
    """A release was asked for, and some are bound to the layout."""
    told = ", ".join(f"process {each.peer.pid}" for each in islice(bound, _LISTED))
    more = f" and {len(bound) - _LISTED} more" if len(bound) > _LISTED else ""
    return ExchangeError(
        "attached",
        f"what it exports over ipc is in use by {told}{more}",
        hint="--force tells them, and takes it from them after --grace",
    )


def too_many_in_flight() -> ExchangeError:
    """The system took no more descriptors for longer than the holder is patient."""
    return ExchangeError(
        "limit",
        "too many descriptors of the holder's user lie unread in sockets",
        hint="clients that read sooner, or a higher limit of open files (RLIMIT_NOFILE) of the holder",
    )
