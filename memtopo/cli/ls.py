"""`memtopo ls`: list the held layouts."""

from __future__ import annotations

from memtopo.cli.options import AllowUid, AsJson, Socket
from memtopo.output import json, plain
from memtopo.sharing import survey


def command(socket: Socket = None, allow_uid: AllowUid = None, as_json: AsJson = False) -> int:
    """List the layouts that are held.

    Sockets of dead holders are removed.
    """
    found = survey(socket, allow_uids=allow_uid or ())
    if as_json:
        plain.print_lines(json.dumps(json.marked("layouts", found)).splitlines())
    else:
        from memtopo.output import console, held

        console.show(held.layout_list(found, held.now()))
    return 0
