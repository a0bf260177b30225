"""Progress of a run as one line on a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

from memtopo.common.units import rounded
from memtopo.output import humanize
from memtopo.plans import report

if TYPE_CHECKING:
    from rich.progress import Progress

DELAY = 0.3
INTERVAL = 0.1


def progress(stream: TextIO | None = None, *, simulated: bool = False) -> report.Progress:
    """Progress line on stderr if that is a terminal, else an empty reporter; without rates on a simulator."""
    stream = stream or sys.stderr
    return ProgressLine(stream, simulated=simulated) if stream.isatty() else report.Progress()


class ProgressLine(report.Progress):
    """A line that is drawn at most ten times a second, not before a third of a second, and erased at the end.

    A phase that takes longer than a second shows its time, so that one of few and long steps is seen to go on. A short
    run draws nothing and does not import rich. No thread is started.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic, *, simulated: bool = False) -> None:
        self._stream = stream
        self._clock = clock
        self._simulated = simulated
        self._begun = clock()
        self._due = self._begun + DELAY
        self._bar: Progress | None = None
        self._phase, self._steps, self._done = "", 0, 0
        self._in_bytes = False

    def phase(self, name: str, steps: int) -> None:
        self._begin(name, steps, in_bytes=False)

    def volume(self, name: str, size: int) -> None:
        self._begin(name, size, in_bytes=True)

    def extend(self, steps: int) -> None:
        if not self._in_bytes:
            self._steps += steps

    def advance(self, steps: int) -> None:
        self._done += steps
        self._draw_if_due()

    def end(self) -> None:
        if self._bar:
            self._bar.stop()
            self._bar = None

    def _begin(self, name: str, steps: int, *, in_bytes: bool) -> None:
        self._phase, self._steps, self._done, self._in_bytes = name, steps, 0, in_bytes
        self._begun = self._clock()
        self._draw_if_due()

    def _draw_if_due(self) -> None:
        if (now := self._clock()) >= self._due:
            self._due = now + INTERVAL
            if self._stream.isatty():  # it may have been redirected to a log since
                self._draw()

    def _draw(self) -> None:
        self._bar = self._bar or _bar(self._stream)
        (task,) = self._bar.task_ids
        self._bar.update(task, description=self._phase, completed=self._done, total=self._steps, amount=self._amount())
        self._bar.refresh()

    def _amount(self) -> str:
        """Completed steps or bytes, bytes a second if they are measured, and the time of a long phase."""
        seconds = self._clock() - self._begun
        time = [humanize.age(seconds)] if seconds >= 1 else []
        if not self._in_bytes:
            return ", ".join([f"{self._done:,} of {self._steps:,}", *time] if self._steps else time)
        speed = [] if self._simulated else [humanize.rate(self._done, seconds)]
        return ", ".join([f"{rounded(self._done)} of {rounded(self._steps)}", *speed, *time])


def _bar(stream: TextIO) -> Progress:
    # Most runs end before anything is drawn, and importing rich takes longer than they do.
    from rich.progress import BarColumn, Progress, TextColumn  # noqa: PLC0415

    from memtopo.output import console  # noqa: PLC0415 imported where it is used

    bar = Progress(
        TextColumn("{task.description:10}", markup=False),
        BarColumn(complete_style="cyan", finished_style="cyan"),
        TextColumn("{task.fields[amount]}", markup=False),
        console=console.messages(stream),
        auto_refresh=False,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    bar.add_task("", total=0, amount="")
    bar.start()
    return bar
