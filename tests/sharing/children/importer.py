"""An importer as a process of its own, which says what it was given and then stays until its standard input ends."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys

from memtopo.common.errors import MemtopoError
from memtopo.sharing.client import connect
from memtopo.sharing.endpoints import endpoint
from tests.helpers.processes import print_json


def main(
    name: str = "kv",
    export: str = "page",
    count: int | None = None,
    batch: int = 64,
    limit: int = 0,
    hard: int = 0,
    keep: bool = False,
    notices: int = 0,
) -> None:
    """Import an export whole, keeping all descriptors or one at a time."""
    if limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard or limit))
    with connect(endpoint(name)) as client:
        files = set()
        taken = 0
        for handle in client.handles(export, count=count, batch=batch):
            taken += 1
            if handle.fd is not None:
                files.add(os.pread(handle.fd, 32, 0).decode())
                if not keep:
                    handle.close()
        print_json({"taken": taken, "files": [*files], "fds": len(os.listdir("/proc/self/fd"))})
        for _ in range(notices):
            found = client.notice(60)
            print_json({"notice": found and found.kind, "grace": found and found.grace})
        sys.stdin.read()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        main(**json.loads(sys.argv[1]))
    except MemtopoError as error:
        print_json({"error": error.message, "hint": error.hint})
