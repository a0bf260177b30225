"""A built-in producer as a process of its own. It reads its script from standard input, and ends with that."""

from __future__ import annotations

import os
import select
import signal
import sys

from memtopo.sharing.playing.script import Script
from memtopo.sharing.playing.stage import play


def main() -> None:
    """Allocate, fill and serve what the script says; the socket's path is in MEMTOPO_SOCKET."""
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: told.append(number))
    script = Script.read(sys.stdin.buffer.readline())
    play(script, os.environ["MEMTOPO_SOCKET"]).run(lambda: told[0] if told else _abandoned())


def _abandoned() -> int:
    """SIGTERM's number once whoever started this is gone."""
    return signal.SIGTERM if select.select([sys.stdin], [], [], 0)[0] else 0


if __name__ == "__main__":
    main()
