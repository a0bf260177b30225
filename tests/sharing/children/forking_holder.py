"""A holder that forks when it reads a line: its child exits at once, or at the end of standard input.

It serves in a thread (`memtopo.serve`) or in its main thread, and prints the process of its child.
"""

from __future__ import annotations

import json
import os
import select
import sys

from msgspec.structs import replace

import memtopo
from memtopo.sharing.claims import claim
from memtopo.sharing.endpoints import endpoint
from memtopo.sharing.holder import hold
from memtopo.sharing.holder.state import HolderInfo
from tests.helpers.memfd_exports import MACHINE, OFFERS, POOL, Memfds
from tests.helpers.processes import print_json

LENT = replace(POOL, lends=replace(POOL.lends, kept=2)) if POOL.lends else POOL
"""A pool of which two objects stay allocated."""


def main(where: str, *, thread: bool, lasting: bool) -> None:
    """Serve at a path until a signal."""
    if thread:
        fd = os.memfd_create("given", os.MFD_CLOEXEC)
        with memtopo.serve(where, {"frame": memtopo.ExternalMemory(fd, 4096, gpu=bytes(16))}):
            print_json({"serving": where})
            while sys.stdin.readline():
                fork(lasting=lasting)
        return

    def stop() -> int:
        if select.select([sys.stdin], [], [], 0)[0] and sys.stdin.readline():
            fork(lasting=lasting)
        return 0

    with claim(endpoint(socket=where)) as claimed:
        about = HolderInfo("kv", None, MACHINE)
        hold(Memfds((*OFFERS, LENT)), claimed, about, stop=stop, ready=lambda: print_json({"serving": where}))


def fork(*, lasting: bool) -> None:
    """Fork a child, which leaves all `with` blocks of the holder as it exits.

    A lasting one prints its own process: until then it may still have what handlers of forks close.
    """
    child = os.fork()
    if not child:
        if lasting:
            print_json({"child": os.getpid()})
            sys.stdin.read()
        sys.exit()
    if not lasting:
        assert os.waitpid(child, 0) == (child, 0)
        print_json({"child": child})


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
