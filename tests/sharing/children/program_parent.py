"""Starts a producer, says where it is, and waits: for tests that kill it."""

from __future__ import annotations

import signal
import sys

from memtopo.sharing.programs import ProducerProgram

if __name__ == "__main__":
    with ProducerProgram("camera", sys.argv[1:]) as program:
        program.wait_until_serving(lambda: 0, 60.0)
        sys.stdout.write(f"{program.socket}\n")
        sys.stdout.flush()
        signal.pause()
