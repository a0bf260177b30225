"""`memtopo metrics`, and the place where `apply --hold --metrics` keeps metrics."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from memtopo.cli.files import write
from memtopo.cli.held import connect_to
from memtopo.cli.options import AllowUid, LayoutName, Socket
from memtopo.common.errors import UsageError
from memtopo.output import monitoring, plain
from memtopo.sharing.claims import claim
from memtopo.sharing.client import Client
from memtopo.sharing.endpoints import endpoint, is_folder
from memtopo.sharing.holder import MetricsTarget
from memtopo.sharing.statistics import Statistics
from memtopo.sharing.status import Status
from memtopo.sharing.surveys import Entry, answers

_SOCKET = "unix:"


def metrics_command(name: LayoutName = None, socket: Socket = None, allow_uid: AllowUid = None) -> int:
    """Print metrics of held layouts for Prometheus.

    Of one layout, or of all that are held. A holder that does not answer has only memtopo_layout_up, which is 0.
    """
    if name is not None or (socket is not None and not is_folder(socket)):
        with connect_to(name, socket, allow_uid or ()) as client:
            text = monitoring.metrics([_reported(client)])
    else:
        answered = list(answers(_reported, socket, allow_uids=allow_uid or ()))
        text = monitoring.metrics(
            [each for each in answered if not isinstance(each, Entry)],
            [each for each in answered if isinstance(each, Entry)],
        )
    plain.print_lines(text.splitlines())
    return 0


def _reported(client: Client) -> tuple[Status, Statistics | None]:
    return client.status(), client.statistics()


@contextmanager
def metrics_target(place: str | None) -> Iterator[MetricsTarget | None]:
    """Place for metrics: a file, which is removed at the end, or a socket, which is claimed.

    Raises `UsageError` for a file that memtopo did not write, `ExchangeError` if another process has the socket.
    """
    if place is None:
        yield None
    elif place.startswith(_SOCKET):
        with claim(endpoint(socket=place.removeprefix(_SOCKET))) as claimed:
            yield MetricsTarget(_text, claim=claimed)
    else:
        _require_replaceable(place)
        try:
            yield MetricsTarget(_text, write=lambda text: write(place, text))
        finally:
            _remove(place)


def _text(status: Status, statistics: Statistics) -> str:
    return monitoring.metrics([(status, statistics)])


def _require_replaceable(place: str) -> None:
    if Path(place or ".").is_dir():
        raise UsageError(f"--metrics {place!r} is a folder", hint="write --metrics FOLDER/memtopo.prom")
    if Path(place).is_file() and _start(place) not in ("", monitoring.FIRST):
        raise UsageError(f"{place!r} exists, and memtopo did not write it", hint="name another file, or remove it")


def _remove(place: str) -> None:
    """Remove the file of a layout that is not held any more, if it is one."""
    with suppress(OSError):
        if Path(place).is_file() and _start(place) == monitoring.FIRST:
            os.unlink(os.path.realpath(place))  # noqa: PTH108 a Path of an empty name is the current folder


def _start(place: str) -> str:
    try:
        with Path(place).open("rb") as file:
            return file.read(len(monitoring.FIRST)).decode(errors="replace")
    except OSError:
        return ""
