"""Captures of this process: its memory calls, recorded from a point of the program to another one."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import get_args

from memtopo.common.arguments import checked
from memtopo.driver.trace_files import Stacks, create_record
from memtopo.native.injection import require_no_capture, start_capture, stop_capture, write_mark
from memtopo.plans.trace import TracedCall, TraceFile, read_traces


class Capture:
    """Record of this process: `file` is its path.

    A temporary file is removed with this object.
    """

    def __init__(self, file: Path, folder: str | None = None) -> None:
        self.file = file
        if folder:
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)

    @property
    def traces(self) -> tuple[TraceFile, ...]:
        """Traces of this process until now, and of each that it has forked."""
        return tuple(read_traces([self.file])) if self.file.stat().st_size else ()

    @property
    def calls(self) -> tuple[TracedCall, ...]:
        """Calls that were recorded until now, in the order in which they returned."""
        return tuple(call for trace in self.traces for call in trace.calls)


@checked(stacks=get_args(Stacks))
@contextmanager
def capturing(
    file: str | os.PathLike[str] | None = None, stacks: Stacks = "none", cupti: str | None = None
) -> Iterator[Capture]:
    """Record each memory call that this process makes of the CUDA driver while the block runs.

    The `file` is new, empty, or a trace, which is replaced; without one, a temporary file is used. `stacks` are `c`,
    `python` or `none`. `cupti` is the path of CUPTI's library, if it is to be another one than that which is found.
    A call is written when it returns, in about 3 µs; other calls cost nothing. If the file cannot be written on, the
    record ends, a line on stderr says so, and the program goes on.

    Raises `NotCaptured` if CUPTI is absent, taken by a profiler or forbidden, or Python gives no stacks; `Unavailable`
    without a driver; `UsageError` for a file that is no trace, or if this process is captured already; `NotWritten`.
    """
    require_no_capture()  # whose record may be this file
    folder = tempfile.mkdtemp(prefix="memtopo-") if file is None else None
    record = Capture(Path(folder, "capture.jsonl") if folder else Path(file or "").absolute(), folder)
    create_record(record.file)
    start_capture(os.fspath(record.file), cupti, stacks)
    try:
        yield record
    finally:
        stop_capture()


@checked()
def mark(label: str) -> None:
    """Write a line with a label to the record of this process, so that what was live then can be asked for.

    Does nothing if no capture runs, also before the first CUDA call of a program that `memtopo capture` has started.
    Raises `UsageError` for a label of more than 4,096 bytes.
    """
    write_mark(label)
