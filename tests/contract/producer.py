"""A program that exports memory and a timeline of another API, and is killed. Run as a script."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from memtopo.driver.kernels import ExternalApi
from memtopo.drivers.target import external_api
from tests.contract.external_resources import PATIENCE
from tests.helpers.python_process import PythonProcess

SIZE = 2 << 20
BYTES = b"theirs"


@contextmanager
def produced(uuid: bytes, *, on_hardware: bool) -> Iterator[tuple[int, int, subprocess.Popen[bytes]]]:
    """Descriptors of memory that begins with `BYTES` and of a timeline, and the process that created them."""
    ours, theirs = socket.socketpair()
    ours.settimeout(PATIENCE)
    with theirs:
        words = [str(theirs.fileno()), uuid.hex(), "vulkan" if on_hardware else "simulated"]
        command = [sys.executable, "-m", "tests.contract.producer", *words]
        process = PythonProcess(command, cwd=Path(__file__).parent.parent.parent, pass_fds=[theirs.fileno()])
    try:
        with ours:
            _, fds, _, _ = socket.recv_fds(ours, 1, 2)
            assert len(fds) == 2, "the producer sent no descriptors"
            yield fds[0], fds[1], process
    finally:
        process.kill()
        process.wait()


def main(channel: socket.socket, maker: ExternalApi) -> None:
    memory, timeline = maker.allocate(SIZE), maker.timeline()
    memory.write(0, BYTES)
    socket.send_fds(channel, [b"."], [memory.fd(), timeline.fd()])
    channel.recv(1)


if __name__ == "__main__":
    channel, uuid = socket.socket(fileno=int(sys.argv[1])), bytes.fromhex(sys.argv[2])
    with external_api(simulated=sys.argv[3] == "simulated")(uuid) as maker:
        main(channel, maker)
