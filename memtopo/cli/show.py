"""`memtopo show`: show a held layout, its exports and its importers."""

from __future__ import annotations

from dataclasses import replace

from memtopo.cli.held import connect_to, held_picture
from memtopo.cli.options import AllowUid, AsJson, LayoutName, Socket
from memtopo.output import json, plain


def command(name: LayoutName = None, socket: Socket = None, allow_uid: AllowUid = None, as_json: AsJson = False) -> int:
    """Show a held layout, its exports and its importers."""
    with connect_to(name, socket, allow_uid or ()) as client:
        status = replace(client.status(), picture=held_picture(client))
    if as_json:
        plain.print_lines(json.dumps(json.marked("layout", status)).splitlines())
    else:
        from memtopo.output import console, held

        console.show(held.layout(status, held.now()))
    return 0
