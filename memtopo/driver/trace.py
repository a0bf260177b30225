"""Traces: files with a line of JSON for each driver call, written while the calls are made.

The first part of a line is written before its call, the rest when the call has returned. The last line of a process
that died or hangs in a call ends with its arguments. Bytes of handles are not in the file, but digests of them.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from memtopo.common import __version__
from memtopo.common.errors import NotWritten, system_errors
from memtopo.common.files import open_output
from memtopo.driver.functions import function
from memtopo.driver.kernels import KernelDriver
from memtopo.driver.recorder import CallContext, Recorder, error_name
from memtopo.driver.types import DriverError
from memtopo.driver.values import jsonable, shared_handle

VERSION = 1


class Trace:
    """Record of calls in a file. After an error of the file, the run goes on without the trace.

    `close` ends it. It has one thread of calls.
    """

    def __init__(self, path: str | Path, context: CallContext, about: Mapping[str, Any]) -> None:
        """Create or empty the file, and write its first line with `about`. Raises `NotWritten`."""
        self.context, self._process = context, about.get("process") or ""
        self._number, self._makes = 0, ""
        self._start, epoch = _clocks()
        started = datetime.fromtimestamp(epoch, UTC).isoformat(timespec="microseconds")
        head = {"memtopo_trace_file": VERSION, "memtopo": __version__, **about, "pid": os.getpid(), "started": started}
        with system_errors(NotWritten, f"the trace {str(path)!r} cannot be written"):
            self._file = open_output(path, os.O_TRUNC, follow=not self._process)
            self._whole = self._size = os.write(self._file, f"{json.dumps(head)}\n".encode())

    def begin(self, method: str, arguments: Mapping[str, Any]) -> None:
        at = self.context
        self._number, self._makes = self._number + 1, function(method).makes
        line: dict[str, Any] = {"n": self._number, "time": round(time.perf_counter() - self._start, 7)}
        if self._process:
            line["process"] = self._process
        line["phase"] = at.phase
        if at.verb:
            line |= {"step": f"{at.verb} {at.subject}", "undo": at.undo}
        values = {
            name: shared_handle(value) if name == "shared" else jsonable(value, method, name)
            for name, value in arguments.items()
        }
        line |= {"call": function(method).name, "method": method, "arguments": values}
        self._write(json.dumps(line)[:-1])

    def end(self, result: Any, error: BaseException | None, seconds: float) -> None:
        encode = shared_handle if self._makes == "shared" else jsonable
        line: dict[str, Any] = {"result": encode(result)} if error is None else {"error": error_name(error)}
        if isinstance(error, DriverError) and error.reason:
            line["reason"] = error.reason
        line["seconds"] = round(seconds, 9)
        self._write(f", {json.dumps(line)[1:]}\n")
        self._whole = self._size

    def close(self) -> None:
        """Close the file."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def _write(self, text: str) -> None:
        if self._file < 0:
            return
        data = text.encode()
        try:
            while data:
                written = os.write(self._file, data)
                self._size, data = self._size + written, data[written:]
        except OSError as error:  # a full disk must not fail the run
            self.context.lost = f"the trace ends before call {self._number}: {(error.strerror or '').lower()}"
            with suppress(OSError):
                os.ftruncate(self._file, self._whole)  # so that the call is not taken for one that did not return
            self.close()


def _clocks() -> tuple[float, float]:
    """Return `perf_counter` and the time of day at one moment, by which calls of several processes are ordered.

    The system may suspend the process between two readings: of several pairs the closest is taken.
    """
    readings = [(time.perf_counter(), time.time(), time.perf_counter()) for _ in range(8)]
    before, epoch, after = min(readings, key=lambda each: each[2] - each[0])
    return (before + after) / 2, epoch


@contextmanager
def traced(driver: KernelDriver, path: str, about: Mapping[str, Any]) -> Iterator[tuple[KernelDriver, CallContext]]:
    """A driver whose calls go to a trace until the end, and the context of its calls. Raises `NotWritten`."""
    with closing(Trace(path, CallContext(), about)) as trace:
        yield Recorder(driver, trace), trace.context
