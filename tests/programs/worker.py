"""Process that makes the calls of programs on the driver that there is; it reads them, and writes the answers."""

from __future__ import annotations

import sys

from tests.differential.traces import END
from tests.programs.pair import Pair


def main(*, cold: bool) -> None:
    """Make the calls on the standard input, a line each; with `cold`, the first ones before the driver is initialised.

    The call `end` gives back what the calls before it have made.
    """
    pair = Pair()
    if not cold:
        pair.first.begin()
    for line in sys.stdin:
        call = line.rstrip("\n")
        sys.stdout.write(f"{pair.finish() if call == END else pair.make(call)}\n")


if __name__ == "__main__":
    main(cold=len(sys.argv) > 1)
