"""Properties and output of the process of a test."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path


def open_descriptors(pid: int | str = "self") -> int:
    """Number of open descriptors of a process."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def children(pid: int) -> list[int]:
    """Ids of the children that the main thread of a process has started."""
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def workers(conductor: int) -> list[int]:
    """Ids of the workers of a conductor, in the order of the processes of its layout, from the server of both."""
    (server,) = children(conductor)
    return children(server)


def print_json(value: object) -> None:
    """Print a value as one line of JSON at once, for the parent process."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()
