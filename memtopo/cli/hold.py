"""Options of `memtopo apply --hold`; what serves a layout is imported when one is held."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Literal

from memtopo.common.errors import UsageError
from memtopo.sharing.endpoints import is_folder

LogLevel = Literal["quiet", "info"]


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """Options of a holder as a service: its log, the descriptor for readiness, reloads, and a process of its own."""

    log: str | None = None
    log_level: LogLevel = "info"
    ready_fd: int | None = None
    reload: bool = False
    detach: bool = False


@dataclass(frozen=True, slots=True)
class HoldOptions:
    """Options of a held layout: socket path, seconds until its deadline, grace in seconds, and trusted users."""

    socket: str | None
    lasting: float | None
    grace: float
    allow_uids: tuple[int, ...]
    metrics: str | None = None
    """File, or `unix:` and the path of a socket, for metrics."""
    service: ServiceOptions = field(default_factory=ServiceOptions)


def hold_options(options: HoldOptions, *, hold: bool) -> HoldOptions | None:
    """Return the options of `--hold`, or None without it. Raises `UsageError` for options that need it."""
    if hold:
        return options
    service = options.service
    values = {
        "--for": options.lasting,
        "--socket": None if options.socket and is_folder(options.socket) else options.socket,
        "--metrics": options.metrics,
        "--log": service.log,
        "--ready-fd": service.ready_fd,
        "--reload": service.reload or None,
        "--detach": service.detach or None,
    }
    for flag, given in ((flag, value is not None) for flag, value in values.items()):
        # The variables may be set for other commands, or by a memtopo that started this one.
        if given and f"MEMTOPO_{flag.removeprefix('--').replace('-', '_').upper()}" not in os.environ:
            raise UsageError(f"{flag} is for held layouts only", hint="add --hold")
    return None
