"""A client of another user, which imports, or releases the layout, or connects often, and says what came of it."""

from __future__ import annotations

import json
import os
import sys
from contextlib import ExitStack

from memtopo.common.errors import MemtopoError
from memtopo.sharing.client import connect
from memtopo.sharing.endpoints import endpoint
from memtopo.sharing.errors import ExchangeError


def main(path: str, uid: int, allow: list[int], connections: int = 1, *, release: bool = False) -> None:
    """Become another user, connect, and import; with more `connections`, keep them until standard input ends."""
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    if connections > 1:
        occupy(path, allow, connections)
        return
    try:
        with connect(endpoint(socket=path), allow_uids=allow) as client:
            if release:
                client.release()
            (hot,) = client.handles("hot")
            assert hot.fd is not None
            file = os.pread(hot.fd, 32, 0).decode()
            found = client.status()
            answer: object = {"name": found.name, "uids": [each.uid for each in found.importers], "file": file}
    except MemtopoError as error:
        code = error.code if isinstance(error, ExchangeError) else None
        answer = {"error": error.message, "hint": error.hint, "code": code}
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def occupy(path: str, allow: list[int], connections: int) -> None:
    """Open connections that import, until one is refused."""
    with ExitStack() as stack:
        found, code = 0, None
        try:
            for found in range(connections):  # noqa: B007 used after the loop
                client = stack.enter_context(connect(endpoint(socket=path), allow_uids=allow))
                for handle in client.handles("hot"):
                    handle.close()
        except ExchangeError as error:
            code = error.code
        sys.stdout.write(json.dumps({"connected": found, "code": code}) + "\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
