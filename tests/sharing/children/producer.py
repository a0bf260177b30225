"""A producer as a process of its own: serves memfds as if another API had made them, and says where.

What it is asked for is a list of kinds under names; it ends with its standard input, or when it is killed.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import memtopo
from tests.helpers.processes import print_json

BYTES = b"what another API wrote"


def main(where: str, exports: dict[str, dict[str, Any]]) -> None:
    """Serve until the end of standard input."""
    given = {name: _given(**wish) for name, wish in exports.items()}
    with memtopo.serve(where, given) as served:
        print_json({"serving": served.path})
        sys.stdin.read()
    print_json({"open": all(os.fstat(each.fd).st_size for each in given.values())})


def _given(kind: str, **fields: Any) -> memtopo.ExternalMemory | memtopo.Semaphore:
    fd = os.memfd_create("given", os.MFD_CLOEXEC)
    os.write(fd, BYTES)
    return memtopo.ExternalMemory(fd, **fields) if kind == "memory" else memtopo.Semaphore(fd, **fields)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
