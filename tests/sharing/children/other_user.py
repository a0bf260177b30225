"""A client of another user, which imports, connects often, or reads metrics, and says what came."""

from __future__ import annotations

import json
import os
import socket
import sys
from contextlib import ExitStack
from http.client import HTTPResponse

from memtopo.common.errors import ExchangeError, MemtopoError
from memtopo.sharing.client import connect
from memtopo.sharing.endpoints import endpoint


def main(
    path: str,
    uid: int,
    allow: list[int],
    connections: int = 1,
    *,
    metrics: bool = False,
) -> None:
    """Become another user, connect, and import; with more `connections`, keep them until standard input ends."""
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    if metrics:
        print(json.dumps(read_metrics(path)), flush=True)  # noqa: T201 to the test
        return
    if connections > 1:
        occupy(path, allow, connections)
        return
    try:
        with connect(endpoint(socket=path), allow_uids=allow) as client:
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


def read_metrics(path: str) -> str:
    """Return the metrics at a socket, or the name of the error."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        try:
            sock.connect(path)
            sock.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            found = HTTPResponse(sock)
            found.begin()
            return found.read().decode()
        except OSError as error:
            return type(error).__name__


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
