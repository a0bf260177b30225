"""`memtopo release`: release a held layout, and wait until it is taken down."""

from __future__ import annotations

from typing import Annotated

import typer

from memtopo.cli.held import connect_to
from memtopo.cli.options import AllowUid, AsJson, Grace, LayoutName, Socket, duration
from memtopo.output import json, plain

UNFINISHED = 4

Force = Annotated[
    bool, typer.Option("--force", envvar="MEMTOPO_FORCE", help="Release it even if it is in use over ipc.")
]
Wait = Annotated[
    str, typer.Option("--wait", envvar="MEMTOPO_WAIT", metavar="TIME", help="Time limit for its teardown.")
]


def command(
    name: LayoutName = None,
    socket: Socket = None,
    force: Force = False,
    grace: Grace = "5s",
    wait: Wait = "60s",
    allow_uid: AllowUid = None,
    as_json: AsJson = False,
) -> int:
    """Release a held layout, and wait until it is taken down.

    Refused while it is used over ipc; with --force its importers are notified, and have --grace to let go.
    """
    limits = {"grace": duration(grace), "wait": duration(wait)}
    with connect_to(name, socket, allow_uid or ()) as client:
        done = client.release(force=force, **limits)
    if as_json:
        plain.print_lines(json.dumps(json.marked("release", done)).splitlines())
    else:
        from memtopo.output import console, held

        console.show(held.released(done))
    return 0 if done.gone else UNFINISHED
