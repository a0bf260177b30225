"""The work of a function as a number that does not depend on the machine: the lines of memtopo that it executes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import memtopo

_OURS = str(Path(memtopo.__file__).parent)


def executed_lines(work: Callable[[], object]) -> int:
    """Call a function, and return the number of lines of memtopo that it executed, each iteration counted."""
    count = 0

    def local(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return local

    def called(frame: FrameType, event: str, argument: Any) -> Any:
        return local if frame.f_code.co_filename.startswith(_OURS) else None

    before = sys.gettrace()
    sys.settrace(called)
    try:
        work()
    finally:
        sys.settrace(before)
    return count
