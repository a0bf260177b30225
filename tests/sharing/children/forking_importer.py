"""An importer that forks: its child exits at once, or at the end of standard input; the importer may leave before."""

from __future__ import annotations

import json
import sys

from memtopo.sharing.client import connect
from memtopo.sharing.endpoints import endpoint
from tests.helpers.processes import print_json
from tests.sharing.children.forking_holder import fork


def main(*, lasting: bool, leaves: bool) -> None:
    """Import an export, fork, and stay an importer until the end of standard input, or leave and stay a process."""
    with connect(endpoint("kv")) as client:
        for handle in client.handles("page"):
            handle.close()
        fork(lasting=lasting)
        if not leaves:
            sys.stdin.read()
    print_json({"left": "kv"})
    sys.stdin.read()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
