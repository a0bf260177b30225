"""`memtopo who`: the processes that use GPU memory."""

from __future__ import annotations

from memtopo.cli.options import AllowUid, AsJson, Socket
from memtopo.output import json as documents
from memtopo.output import plain
from memtopo.sharing.client import Client
from memtopo.sharing.surveys import answers


def who_command(socket: Socket = None, allow_uid: AllowUid = None, as_json: AsJson = False) -> int:
    """List the processes of this machine that use GPU memory.

    As far as NVML, /proc and the holders of layouts show them: bytes by GPU, open device files and dma-bufs, held
    layouts, and importers whose holder has ended. What cannot be read is listed. Root sees the descriptors of all
    users.
    """
    from memtopo.drivers.cuda import gpu_usage
    from memtopo.usage import locked_layouts, usage

    found = usage(gpu_usage(), answers(Client.status, socket, allow_uids=allow_uid or ()), locked=locked_layouts())
    if as_json:
        plain.print_document(documents.dumps(documents.marked("usage", found)).splitlines())
    else:
        from memtopo.output import console
        from memtopo.output.held import now
        from memtopo.output.usage import page

        console.show(page(found, now()))
    return 0
