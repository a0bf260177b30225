"""Properties and output of the process of a test."""

from __future__ import annotations

import json
import os
import sys


def open_descriptors(pid: int | str = "self") -> int:
    """Number of open descriptors of a process."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def print_json(value: object) -> None:
    """Print a value as one line of JSON at once, for the parent process."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()
