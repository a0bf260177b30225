"""Many holds in one process, one after another: prints how many descriptors were open before and after."""

from __future__ import annotations

import json
import os
import sys
import threading

from memtopo.sharing.claims import claim
from memtopo.sharing.client import connect
from memtopo.sharing.endpoints import endpoint
from memtopo.sharing.holder import HolderInfo, hold
from tests.helpers.memfd_exports import MACHINE, Memfds


def main(rounds: int) -> None:
    """Hold, attach, release, and again; the client is a thread, so that the hold is in the main one."""
    shelf = Memfds()
    once(shelf)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(rounds):
        once(shelf)
    sys.stdout.write(json.dumps([before, len(os.listdir("/proc/self/fd"))]) + "\n")


def once(shelf: Memfds) -> None:
    client = threading.Thread(target=attach)
    with claim(endpoint("kv")) as claimed:
        hold(shelf, claimed, HolderInfo("kv", None, MACHINE), stop=lambda: 0, ready=client.start)
    client.join()


def attach() -> None:
    with connect(endpoint("kv")) as client:
        for each in client.handles("page", count=10):
            each.close()
        list(client.handles("block"))
        assert client.release().gone


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
