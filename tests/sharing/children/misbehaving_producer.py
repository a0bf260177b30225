"""A program that `--with` starts, and that behaves as its first argument says; the others are its own.

`serve` serves a simulator's memory as `frame`, of the size and on the GPU that follow, and a timeline as `ready`;
`dies` does so and ends once an importer has it, `vanishes` on the first request; `stubborn` ignores SIGTERM, and
`interrupting` hands SIGINT to whoever started it then; `mutual` ends once both files that follow are there, of which it
makes the first after SIGTERM, and the third in the end; `parent` starts a process, and tells its number in the file
that follows.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import NoReturn

import memtopo
from memtopo.drivers.sim import external_api
from memtopo.sharing.client import connect
from memtopo.sharing.endpoints import endpoint
from memtopo.sharing.external import External, ExternalExports, Serving
from tests.helpers.holders import until
from tests.helpers.memfd_exports import MACHINE


def main(how: str, *more: str) -> None:
    """Serve until SIGTERM, or whatever was asked for."""
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: asked(how, over))
    if how == "parent":
        child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
        Path(more[0]).write_text(str(child.pid))
    size, gpu = (int(more[0]), more[1]) if len(more) > 1 else (4096, "0" * 32)
    memory = external_api.allocate(bytes.fromhex(gpu), size)
    external_api.write(memory, 0, b"memory")
    semaphore = memtopo.Semaphore(external_api.make_semaphore(timeline=True))
    given: dict[str, External] = {"frame": memtopo.ExternalMemory(memory, size, gpu), "ready": semaphore}
    shelf = Vanishing(given) if how == "vanishes" else ExternalExports(given)
    with Serving(endpoint(socket=os.environ["MEMTOPO_SOCKET"]), shelf, MACHINE) as served:
        sys.stdout.write(f"serving as {os.getpid()}\n")
        sys.stdout.flush()
        if how == "dies":
            await_importer(served.path)
            os._exit(9)
        over.wait()
        if how == "mutual":
            mine, other, end = map(Path, more[2:])
            mine.touch()
            until(other.exists)
            end.touch()


def asked(how: str, over: threading.Event) -> None:
    """Handler of SIGTERM."""
    if how == "interrupting":
        os.kill(os.getppid(), signal.SIGINT)
    elif how != "stubborn":
        over.set()


class Vanishing(ExternalExports):
    """Exports that end the process on the first request."""

    def handle(self, export: str, index: int) -> NoReturn:  # noqa: ARG002 the protocol's
        os._exit(9)


def await_importer(path: str) -> None:
    """Wait until a handle is sent."""
    with connect(endpoint(socket=path)) as client:
        until(lambda: client.status().importers)


if __name__ == "__main__":
    main(*sys.argv[1:])
