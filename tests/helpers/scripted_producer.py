"""A producer process with a frame and a timeline on the simulator, which signals on request.

Run as a script, it prints the path of its socket, then answers lines: `signal 3`, `counter`. It ends with its
standard input.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import memtopo
from memtopo.drivers.sim import external_api
from tests.helpers.python_process import PythonProcess

SIZE = 8 << 20


class ScriptedProducer:
    """Handle of the producer's process."""

    def __init__(self, process: subprocess.Popen[str], path: str) -> None:
        self.process, self.path = process, path

    def request(self, line: str) -> str:
        """Send a line; return the answer."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def kill(self) -> None:
        """Kill the process, which sends no message to its clients."""
        self.process.kill()
        self.process.wait()


@contextmanager
def scripted_producer(where: Path, gpu: bytes) -> Iterator[ScriptedProducer]:
    """Start a producer on the GPU with a UUID, with its socket in a folder."""
    command = [sys.executable, "-m", "tests.helpers.scripted_producer", str(where / "camera.sock"), gpu.hex()]
    root = Path(__file__).parent.parent.parent
    with PythonProcess(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            yield ScriptedProducer(process, process.stdout.readline().strip())
        finally:
            process.kill()


def main(where: str, gpu: str) -> None:
    frame, ready = external_api.allocate(bytes.fromhex(gpu), SIZE), external_api.make_semaphore(timeline=True)
    memory, semaphore = memtopo.ExternalMemory(frame, SIZE, gpu, dedicated=True), memtopo.Semaphore(ready)
    with memtopo.serve(where, {"frame": memory, "ready": semaphore}) as served:
        _say(served.path)
        for line in sys.stdin:
            word, *value = line.split()
            if word == "signal":
                external_api.signal(ready, int(value[0]))
            _say(external_api.counter(ready))


def _say(what: object) -> None:
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
