"""Write all of the managed memory `m` of a spec by a GPU, and read its ends by the CPU; prints what it read."""

from __future__ import annotations

import sys

import memtopo
from memtopo.kinds.layout import current


def main(spec: str) -> None:
    with memtopo.applied(spec) as layout:
        session = layout._session
        address, size = session.layout.memory["m"]
        with current(session.driver, session.layout.contexts[0]):
            session.driver.memset_d8(address, 0x5A, size)
            session.driver.ctx_synchronize()
            read = session.driver.host_read(address, 2) + session.driver.host_read(address + size - 2, 2)
            sys.stdout.write(read.decode())


if __name__ == "__main__":
    main(sys.argv[1])
