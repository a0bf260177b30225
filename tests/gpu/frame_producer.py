"""Producer of one Vulkan frame after another, each at a socket of its own.

Run as a script, with a folder for the sockets, a GPU's UUID and the number of frames. Prints its open descriptors after
each frame.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import memtopo
from memtopo.vulkan import Gpu

SIZE = 8 << 20
PATIENCE = 60.0


def offer(gpu: Gpu, socket: Path, word: int) -> None:
    frame, ready = gpu.allocate(SIZE), gpu.timeline()
    fds = frame.fd(), ready.fd()
    exports: dict[str, memtopo.ExternalMemory | memtopo.Semaphore] = {
        "frame": memtopo.ExternalMemory(fds[0], frame.whole, gpu=gpu.uuid),
        "ready": memtopo.Semaphore(fds[1], timeline=True, gpu=gpu.uuid),
    }
    with memtopo.serve(socket, exports):
        report("serving")
        frame.fill(word, signal=(ready, 1))
        assert ready.wait(2, PATIENCE)
        sys.stdin.readline()
    assert frame.read() == word.to_bytes(4, "little") * (SIZE // 4)
    frame.free()
    ready.free()
    for fd in fds:
        os.close(fd)


def report(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(folder: Path, uuid: bytes, count: int) -> None:
    with Gpu(uuid) as gpu:
        for index in range(count):
            offer(gpu, folder / f"{index}.sock", index)
            report(str(len(os.listdir("/proc/self/fd"))))
            sys.stdin.readline()  # the importer reads the GPU's free memory


if __name__ == "__main__":
    main(Path(sys.argv[1]), bytes.fromhex(sys.argv[2]), int(sys.argv[3]))
