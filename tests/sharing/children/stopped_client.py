"""A client that stops itself between asking for handles and reading them, and says what it found when it went on."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys

from memtopo.sharing import wire


def main(path: str) -> None:
    """Ask, stop, and read."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.connect(path)
        wire.send(sock, wire.encode({"request": "handles", "export": "page", "first": 0, "count": 253}))
        os.kill(os.getpid(), signal.SIGSTOP)
        packet = wire.receive(sock)
        sys.stdout.write(json.dumps({"descriptors": len(packet.fds) if packet else 0, "then": wire.receive(sock)}))
        sys.stdout.flush()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
