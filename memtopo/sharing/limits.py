"""The limit of open descriptors: raised as far as this process may where more are needed, and named where not."""

from __future__ import annotations

import os
import resource

from memtopo.sharing.faults import ExchangeError

_SLACK = 64
"""Descriptors that are left to others, where that can be."""


def room(wanted: int, least: int | None = None) -> int:
    """Make room for descriptors beside those that are open; how many there is room for, at most `wanted`.

    The soft limit is raised where it has to be. Raises `ExchangeError` where there is no room even for `least`.
    """
    least = wanted if least is None else least
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = _used(soft)
    target = used + wanted + _SLACK
    if _short(target, soft) and soft != hard:
        soft = target if hard == resource.RLIM_INFINITY else min(target, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    free = wanted if soft == resource.RLIM_INFINITY else min(soft - used, wanted)
    if free < least:
        raise ExchangeError(
            "limit",
            f"the limit of open files is {soft:,}, of which {used:,} are in use; {least:,} more are needed",
            hint=f"raise the hard limit (RLIMIT_NOFILE) to {used + least:,} or more: "
            "'ulimit -Hn', LimitNOFILE= in a systemd unit, --ulimit nofile= of a container",
        )
    return free


def _used(soft: int) -> int:
    try:
        return len(os.listdir("/proc/self/fd")) - 1  # the listing itself has one
    except OSError:  # there is none left for it
        return soft


def _short(wanted: int, limit: int) -> bool:
    return limit != resource.RLIM_INFINITY and wanted > limit
