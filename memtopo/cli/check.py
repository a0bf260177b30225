"""`memtopo check`: check a held layout."""

from __future__ import annotations

from memtopo.cli.held import connect_to
from memtopo.cli.options import AllowUid, AsJson, LayoutName, Socket
from memtopo.output import json, plain
from memtopo.sharing import Looked

DIFFERENT = 1


def command(name: LayoutName = None, socket: Socket = None, allow_uid: AllowUid = None, as_json: AsJson = False) -> int:
    """Check a held layout, by queries only.

    Nothing is written to its memory. The exit status is 1 if something is not as declared.
    """
    with connect_to(name, socket, allow_uid or ()) as client:
        status = client.status()
        checks = client.check()
    found = Looked(status.name, checks.different == 0, checks)
    if as_json:
        plain.print_lines(json.dumps(json.marked("check", found)).splitlines())
    else:
        from memtopo.output import console, held

        console.show(held.checked(found))
    return 0 if found.ok else DIFFERENT
