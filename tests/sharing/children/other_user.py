"""A client of another user, which says what came of it."""

from __future__ import annotations

import json
import os
import sys

from memtopo.common.errors import MemtopoError
from memtopo.sharing.client import connect
from memtopo.sharing.endpoints import endpoint
from memtopo.sharing.errors import ExchangeError


def main(path: str, uid: int, allow: list[int]) -> None:
    """Become another user, connect, and import."""
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    try:
        with connect(endpoint(socket=path), allow_uids=allow) as client:
            (hot,) = client.handles("hot")
            assert hot.fd is not None
            file = os.pread(hot.fd, 32, 0).decode()
            found = client.status()
            told: object = {"name": found.name, "uids": [each.uid for each in found.importers], "file": file}
    except MemtopoError as error:
        code = error.code if isinstance(error, ExchangeError) else None
        told = {"error": error.message, "hint": error.hint, "code": code}
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
