"""Progress of a run on stderr: lines that are redrawn on a terminal, and one line for each long phase elsewhere."""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from math import ceil
from typing import TYPE_CHECKING, Any, TextIO, cast

from memtopo.common.units import rounded
from memtopo.output import humanize, plain
from memtopo.plans.progress import CountedProgress, PhasePart, PhaseState, Progress

if TYPE_CHECKING:
    from rich.console import RenderableType

VARIABLE = "MEMTOPO_PROGRESS"
"""Environment variable that is `none` for no progress."""

DELAY = 0.3
INTERVAL = 0.1
LONG = 1.0
"""Seconds after which a phase is one that shows its time, and has a line where there is no terminal."""

_FAST = 10
"""Steps a second from which on their number is rounded."""

_MOST_PROCESSES = 8
"""Processes that are listed; of more, the ones with the least progress."""


@contextmanager
def progress(stream: TextIO | None = None, *, simulated: bool = False) -> Iterator[Progress]:
    """Progress of what is done inside on stderr, without rates on a simulator; nothing with MEMTOPO_PROGRESS=none.

    A thread draws, so that a phase of a single long step is seen to go on.
    """
    stream = stream or sys.stderr
    if os.environ.get(VARIABLE) == "none":
        yield Progress()
        return
    on_terminal = stream.isatty() and os.environ.get("TERM") != "dumb"
    shown = (ProgressLines if on_terminal else ProgressLog)(stream, simulated=simulated)
    with ExitStack() as stack:
        if isinstance(shown, ProgressLines):
            stack.enter_context(redirect_stdout(cast("TextIO", _OtherOutput(sys.stdout, shown))))
            stack.enter_context(redirect_stderr(cast("TextIO", _OtherOutput(sys.stderr, shown))))
        stack.enter_context(_ticking(shown))
        try:
            yield shown
        finally:
            shown.end()


@contextmanager
def activity(name: str) -> Iterator[None]:
    """Progress of one phase without steps, such as the wait for another process."""
    with progress() as shown:
        shown.phase(name, 0)
        yield


class _Shown(CountedProgress):
    """Progress that is shown at intervals, by its hooks or by a thread."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic, *, simulated: bool = False) -> None:
        super().__init__(clock)
        self._stream, self._simulated = stream, simulated
        self._due = clock() + DELAY
        self._drawing = threading.Lock()
        self.in_phase = threading.Event()
        """Set during a phase: a layout may be held for days after one."""

    def _begin(self, name: str, total: int, processes: Mapping[str, int], *, in_bytes: bool) -> None:
        super()._begin(name, total, processes, in_bytes=in_bytes)
        self.in_phase.set()

    def end(self) -> None:
        self.in_phase.clear()
        super().end()

    def advance(self, steps: int, process: str = "") -> None:
        super().advance(steps, process)
        self.show_if_due()

    def show_if_due(self) -> None:
        """Show the state unless that was done a moment ago, another thread does it, or it would have to wait."""
        if (now := self._clock()) >= self._due and self._drawing.acquire(blocking=False):
            try:
                self._due = now + INTERVAL
                if (state := self.state) and _has_room(self._stream):
                    self._show(state)
            finally:
                self._drawing.release()

    def _show(self, state: PhaseState) -> None:
        raise NotImplementedError


_ERASE = "\r\x1b[J"
"""Control sequence that erases the line of the cursor and those below it."""


class ProgressLines(_Shown):
    """A line for the phase, and one for each process, drawn at most ten times a second and erased at the end.

    Nothing is drawn before a third of a second. A short run draws nothing and does not import rich. The cursor stays at
    the start of the first line, where output of another process replaces it.
    """

    _drawn = False

    def end(self) -> None:
        super().end()
        self.erase()

    def erase(self) -> None:
        """Erase the lines, before something else is written to the terminal."""
        with self._drawing:
            if self._drawn:
                self._drawn = False
                self._stream.write(_ERASE)
                self._stream.flush()

    def _show(self, state: PhaseState) -> None:
        if not self._stream.isatty():  # it may have been redirected to a log since
            return
        from memtopo.output import console  # noqa: PLC0415 importing rich takes longer than most runs

        shown = console.console_of(self._stream)
        with shown.capture() as drawn:
            shown.print(self._lines(state))
        lines = drawn.get()
        self._drawn = True
        self._stream.write(f"{_ERASE}{lines}\x1b[{lines.count(chr(10))}A")
        self._stream.flush()

    def _lines(self, state: PhaseState) -> RenderableType:
        from rich.progress_bar import ProgressBar  # noqa: PLC0415 importing rich takes longer than most runs
        from rich.table import Table  # noqa: PLC0415 as above

        from memtopo.output.console import cell  # noqa: PLC0415 as above

        room = plain.width(self._stream)
        lines = Table.grid(padding=(0, 1, 0, 0))
        for width in (max(10, room // 4), max(6, room // 4), None):
            lines.add_column(max_width=width, no_wrap=True, overflow="ellipsis")
        for name, part in ((state.name, state.whole), *_listed(state)):
            total = part.total or None
            bar = ProgressBar(total, part.done, width=max(6, room // 4), complete_style="cyan", finished_style="cyan")
            words = amount(part, state, simulated=self._simulated) if part is state.whole else f"{part.share:.0%}"
            lines.add_row(cell(name, "" if part is state.whole else "dim"), bar, cell(words))
        return lines


class _OtherOutput:
    """A stream whose text follows no progress: that is erased before it is written."""

    def __init__(self, stream: TextIO, shown: ProgressLines) -> None:
        self._stream, self._shown = stream, shown

    def write(self, text: str) -> int:
        self._shown.erase()
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class ProgressLog(_Shown):
    """A line for each phase that has lasted for a second, for logs."""

    _written = ""

    def end(self) -> None:
        super().end()
        self._written = ""

    def _show(self, state: PhaseState) -> None:
        if state.seconds < LONG or state.name == self._written:
            return
        self._written = state.name
        words = [amount(state.whole, state, simulated=self._simulated)]
        words += [f"{name} {part.share:.0%}" for name, part in _listed(state)]
        plain.print_message(f"{state.name}: {'; '.join(words)}", self._stream)
        self._stream.flush()


def amount(part: PhasePart, state: PhaseState, *, simulated: bool) -> str:
    """Completed steps or bytes, their rate if it is measured, and in a long phase its time and the time left."""
    written = rounded if state.in_bytes else "{:,}".format
    words = [f"{written(part.done)} of {written(part.total)}"] if part.total else []
    if part.done and not simulated and (state.in_bytes or state.seconds >= LONG):
        words.append(_rate(part.done, state))
    if state.seconds >= LONG:
        words.append(humanize.age(state.seconds))
        left = state.seconds_left
        words += [] if left is None or part.done == part.total else [f"{humanize.age(ceil(left))} left"]
    return ", ".join(words)


def _rate(done: int, state: PhaseState) -> str:
    if state.in_bytes:
        return humanize.rate(done, state.seconds)
    steps = done / state.seconds
    return f"{steps:,.0f}/s" if steps >= _FAST else f"{steps:.2g}/s"


def _listed(state: PhaseState) -> list[tuple[str, PhasePart]]:
    """Processes of a phase, if several take part in it: the first ones in their order, or those with the least done."""
    found = list(state.processes.items())
    if len(found) <= 1:
        return []
    least = sorted(found, key=lambda each: each[1].share)[:_MOST_PROCESSES]
    return [each for each in found if each in least][:_MOST_PROCESSES]


@contextmanager
def _ticking(shown: _Shown) -> Iterator[None]:
    """Show progress at intervals from a thread, until the code inside ends; without one where none can be started."""
    over = threading.Event()

    def tick() -> None:
        try:
            while not over.wait(INTERVAL):
                shown.show_if_due()
                shown.in_phase.wait()
        except (OSError, ValueError):  # the terminal is gone
            return

    thread = threading.Thread(target=tick, name="progress", daemon=True)
    with suppress(RuntimeError):  # the limit of processes is reached
        thread.start()
    try:
        yield
    finally:
        over.set()
        shown.in_phase.set()
        if thread.is_alive():
            thread.join()


def _has_room(stream: TextIO) -> bool:
    """Return false for a pipe or terminal that is full: to wait for its reader would stop the run, and any signal."""
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError):  # it is no file
        return True
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return bool(poll.poll(0))
