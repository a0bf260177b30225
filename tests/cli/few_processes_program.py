"""Program that becomes memtopo with the arguments, as a user that may start no further process.

The limit does not hold for root, which becomes another user.
"""

from __future__ import annotations

import os
import resource
import sys

_NOBODY = 65534
UNUSABLE = 77
"""Exit status if the other user cannot run this Python."""


def main(*arguments: str) -> None:
    """Replace this process."""
    resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
    if os.geteuid() == 0:
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)
        if not os.access(sys.executable, os.X_OK):
            sys.exit(UNUSABLE)
    os.execv(sys.executable, [sys.executable, "-m", "memtopo", *arguments])


if __name__ == "__main__":
    main(*sys.argv[1:])
