"""Serve a frame that Vulkan allocated, and a timeline semaphore that is signalled when the frame is ready.

    memtopo apply specs/vulkan-frame.yaml --with 'camera=python examples/vulkan/producer.py'

memtopo passes the path of the socket. The producer draws the frame, signals 1, waits until an importer signals 2, and
reads the frame. The exit status is 0 if the frame is unchanged or has every bit inverted.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time

import memtopo
from memtopo.vulkan import Gpu, Semaphore

FRAME = 8 << 20
WORD = 0x00C0FFEE
TIMEOUT, INTERVAL = 60.0, 0.2


def main() -> int:
    """Serve one frame, and print its state after the importer's signal."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--socket", default=os.environ.get("MEMTOPO_SOCKET"), help="path of the socket")
    parser.add_argument("--gpu", help="UUID of the GPU in hexadecimal digits; default: the first GPU")
    parser.add_argument("--validate", action="store_true", help="enable Vulkan's validation layer")
    options = parser.parse_args()
    if options.socket is None:
        parser.error("no --socket, and MEMTOPO_SOCKET is not set")
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: ended.append(number))
    uuid = bytes.fromhex(options.gpu.replace("GPU-", "").replace("-", "")) if options.gpu else None
    with Gpu(uuid, validation=options.validate) as gpu:
        frame, ready = gpu.allocate(FRAME), gpu.timeline()
        # An importer gets duplicates of these descriptors (fact 54).
        memory_fd, semaphore_fd = frame.fd(), ready.fd()
        exports: dict[str, memtopo.ExternalMemory | memtopo.Semaphore] = {
            "frame": memtopo.ExternalMemory(memory_fd, frame.whole, gpu=gpu.uuid),
            "ready": memtopo.Semaphore(semaphore_fd, timeline=True, gpu=gpu.uuid),
        }
        with memtopo.serve(options.socket, exports):
            frame.fill(WORD, signal=(ready, 1))
            answered = _answered(ready, ended)
        state = _state(frame.read()) if answered else "no importer signalled 2"
        frame.free()
        ready.free()
    for fd in (memory_fd, semaphore_fd):
        os.close(fd)
    for message in gpu.messages:
        print(f"validation: {message}", file=sys.stderr)
    print(f"the frame is {state}" if answered else state, file=sys.stderr)
    return 0 if state in ("as it was drawn", "turned") and not gpu.messages else 1


def _answered(ready: Semaphore, ended: list[int]) -> bool:
    """Return whether an importer signals 2 in time; false if the producer has to end."""
    until = time.monotonic() + TIMEOUT
    while not ready.wait(2, INTERVAL):
        if ended or time.monotonic() > until:
            return False
    return True


def _state(found: bytes) -> str:
    drawn = WORD.to_bytes(4, "little") * (FRAME // 4)
    turned = (WORD ^ 0xFFFFFFFF).to_bytes(4, "little") * (FRAME // 4)
    return {drawn: "as it was drawn", turned: "turned"}.get(found, "damaged")


if __name__ == "__main__":
    sys.exit(main())
