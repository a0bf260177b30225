"""A holder as a service: its claim, log, metrics, the descriptor that reports readiness, reloads, and `--detach`."""

from __future__ import annotations

import os
import re
import select
import shlex
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Struct

from memtopo.cli.options import AllowUid, Grace, Socket, duration, option
from memtopo.cli.process import Stopper
from memtopo.cli.results import remove, require_replaceable, write
from memtopo.cli.specs import revise
from memtopo.common.errors import MemtopoError, UsageError, reason, signal_status
from memtopo.common.files import closing_fd, open_output
from memtopo.common.signals import ENDING, signal_wakeup
from memtopo.common.text import output_line, signal_name
from memtopo.language import read_stdin
from memtopo.output import plain
from memtopo.session.composition import Composition, Holding, RunRequest
from memtopo.sharing.endpoints import endpoint, is_folder

if TYPE_CHECKING:  # imported where a layout is held
    from memtopo.run.holder import Holder
    from memtopo.sharing.claims import Claim
    from memtopo.sharing.holder.metrics import MetricsTarget
    from memtopo.sharing.holder.state import HolderEvent
    from memtopo.sharing.status import Statistics, Status

_DETACHED = "memtopo.cli.service:main_of_detached"
_FOR = "With --hold: release the layout after this time: 10m."
_METRICS = "With --hold: keep metrics for Prometheus in a file, or answer HTTP requests on a socket."
_DETACH = "With --hold: return once the layout is served; the holder continues in the background."
_LOG = "With --hold: append the log and, once it serves, all output to a file, or to FOLDER/NAME.log."
_LEVEL = "With --hold: log level: quiet: warnings and errors; info: every event."
_READY = "With --hold: write a line to this descriptor and close it once it serves."
_RELOAD = "With --hold: on SIGHUP, reread the spec and change the layout to it; implied by --detach and systemd."


class HoldOptions(Struct, frozen=True):
    """Options of `apply --hold`. `metrics` is a file, or `unix:` and the path of a socket."""

    hold: Annotated[bool, option("--hold", "Keep the layout, and serve its exports to other processes.")] = False
    lasting: Annotated[str | None, option("--for", _FOR, "TIME")] = None
    socket: Socket = None
    grace: Grace = "5s"
    allow_uid: AllowUid = None
    metrics: Annotated[str | None, option("--metrics", _METRICS, "FILE|unix:PATH")] = None
    detach: Annotated[bool, option("--detach", _DETACH)] = False
    log: Annotated[str | None, option("--log", _LOG, "FILE|FOLDER/")] = None
    log_level: Annotated[Literal["quiet", "info"], option("--log-level", _LEVEL)] = "info"
    ready_fd: Annotated[int | None, option("--ready-fd", _READY, "N", min=3)] = None
    reload: Annotated[bool, option("--reload", _RELOAD)] = False

    @property
    def terms(self) -> Holding:
        """Terms of the holder. Raises `UsageError`."""
        lasting = None if self.lasting is None else duration(self.lasting)
        return Holding(self.socket, lasting, duration(self.grace), tuple(self.allow_uid or ()))


class HolderDied(MemtopoError):
    """A detached holder was killed before it served."""

    def __init__(self, number: int) -> None:
        message = f"the holder was killed by {signal_name(number)} before it served"
        super().__init__(message, exit_code=signal_status(number))


class Service(Struct):
    """Log and readiness of one holder; `log` is the descriptor of its file, and `file` the path.

    `cut` is true while the log ends within a line, for the rest of which a full disk had no room.
    """

    options: HoldOptions
    log: int | None
    file: str | None
    cut: bool = False

    @property
    def in_journal(self) -> bool:
        """True if the log is the stream of systemd's journal that JOURNAL_STREAM names (systemd.exec(5))."""
        found = os.fstat(2)
        return self.log is None and os.environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"

    def record(self, event: HolderEvent) -> None:
        """Write an event to the log as one line, or leave it out if that would wait for the reader of a pipe."""
        if self.options.log_level == "quiet" and event.severity == "info":
            return
        at = None if self.log is None else time.time()
        from memtopo.output import monitoring

        text = output_line(monitoring.event_line(event, priority=self.in_journal, at=at))
        line = b"\n" * self.cut + f"{text}\n".encode()
        sys.stderr.flush()
        if written := _write_at_once(2 if self.log is None else self.log, line):
            self.cut = not line[:written].endswith(b"\n")

    def report_ready(self, path: str) -> None:
        """Write the path of the layout's socket to the descriptor for readiness, and end it.

        From now on the output goes to the file of the log, if there is one.
        """
        if self.log is not None:
            sys.stdout.flush()
            sys.stderr.flush()
            os.dup2(self.log, 1)
            os.dup2(self.log, 2)
        if self.options.ready_fd is not None:
            _write_at_once(self.options.ready_fd, os.fsencode(f"{path}\n"))  # its reader may have ended
            # The number stays in use, so that open descriptors are counted as before.
            with closing_fd(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)) as null:
                os.dup2(null, self.options.ready_fd, inheritable=False)


@contextmanager
def opened_service(options: HoldOptions, name: str) -> Iterator[Service]:
    """Open the log of a layout before anything is built. Raises `UsageError`."""
    if options.ready_fd is not None:
        try:
            os.set_inheritable(options.ready_fd, False)
        except (OSError, OverflowError) as error:
            raise UsageError(f"--ready-fd {options.ready_fd} is not an open descriptor") from error
    file = f"{options.log}{name}.log" if options.log and options.log.endswith("/") else options.log
    if not file:
        yield Service(options, None, file)
        return
    try:
        fd = open_output(file, os.O_APPEND)
    except (OSError, ValueError) as error:
        hint = f"write --log {file}/ for NAME.log in it" if isinstance(error, IsADirectoryError) else None
        raise UsageError(f"log {file!r} cannot be opened: {reason(error)}", hint=hint) from error
    with closing_fd(fd) as log:
        cut = False
        with suppress(OSError):
            if os.path.isfile(file):  # noqa: PTH113 as it was named
                with open(file, "rb") as opened:  # noqa: PTH123 as above
                    opened.seek(-1, os.SEEK_END)
                    cut = opened.read() != b"\n"
        yield Service(options, log, file, cut)


@contextmanager
def claimed_holder(options: HoldOptions, loaded: Composition, request: RunRequest) -> Iterator[Holder]:
    """Claim the layout's name and the place of its metrics, and open its log, before anything is built.

    Raises `ExchangeError` if a place is taken, `UsageError`.
    """
    from memtopo.run.holder import Holder, about_holder
    from memtopo.sharing.holder.state import Supervision

    name = request.plan.name
    with (
        _claim(options.terms, name) as claimed,
        metrics_target(options.metrics) as metrics,
        opened_service(options, name) as service,
    ):

        @contextmanager
        def supervised() -> Iterator[Supervision]:
            reloads = options.reload or "NOTIFY_SOCKET" in os.environ
            with recorded_hangups(enabled=reloads) as received:
                reload = loaded.reread
                yield Supervision(metrics=metrics, reload=lambda: reload if received() else None, log=service.record)

        def report_ready() -> None:
            if not service.in_journal:
                _print_ready(name, options.terms.socket, claimed.endpoint.path, service.file)
            service.report_ready(claimed.endpoint.path)

        gpus = [device.uuid for device in loaded.target.machine.devices]
        about, revised = about_holder(loaded, request), revise(loaded.target)
        yield Holder(claimed, about, revised, options.terms, gpus, report_ready, supervised, log=service.log)


def _claim(terms: Holding, name: str) -> Claim:
    """Claim the socket that systemd passed, else the layout's name. Raises `ExchangeError`, `UsageError`."""
    from memtopo.sharing.claims import claim
    from memtopo.sharing.holder.systemd import passed_claim

    passed = passed_claim()
    if passed is None:
        return claim(endpoint(name, terms.socket), terms.allow_uids)
    if terms.socket and endpoint(name, terms.socket).path != passed.endpoint.path:
        passed.close()
        message = f"--socket {terms.socket} is another one than {passed.endpoint.path!r}, which systemd passed"
        raise UsageError(message, hint="omit --socket")
    return passed


def _print_ready(layout: str, socket: str | None, path: str, log: str | None) -> None:
    named = [layout] if not socket or is_folder(socket) else []
    name = " ".join([*named, *([f"--socket {shlex.quote(socket)}"] if socket else [])])
    written = f"; its log is {log}" if log else ""
    line = f"holding {layout} at {path}; release it with 'memtopo release {name}'{written}"
    plain.print_lines([line], sys.stderr)


@contextmanager
def metrics_target(place: str | None) -> Iterator[MetricsTarget | None]:
    """Place for metrics: a file, which is removed at the end, or a socket, which is claimed.

    Raises `UsageError` for a file that memtopo did not write, `ExchangeError` if another process has the socket.
    """
    from memtopo.output import monitoring
    from memtopo.sharing.claims import claim
    from memtopo.sharing.holder.metrics import MetricsTarget

    def text(status: Status, statistics: Statistics, now: float) -> str:
        return monitoring.metrics([(status, statistics)], now=now)

    if place is None:
        yield None
    elif place.startswith("unix:"):
        with claim(endpoint(socket=place.removeprefix("unix:"))) as claimed:
            yield MetricsTarget(text, claim=claimed)
    else:
        first = re.escape(monitoring.FIRST).encode()
        if Path(place or ".").is_dir():
            raise UsageError(f"--metrics {place!r} is a folder", hint="write --metrics FOLDER/memtopo.prom")
        if Path(place).exists() and not Path(place).is_file():
            raise UsageError(
                f"--metrics {place!r} is not a regular file", hint="unix:PATH answers requests on a socket"
            )
        require_replaceable(place, first)
        try:
            yield MetricsTarget(text, write=lambda text: write(place, text))
        finally:
            remove(place, first)


@contextmanager
def recorded_hangups(*, enabled: bool) -> Iterator[Callable[[], bool]]:
    """Record SIGHUP inside, except that of a terminal that has vanished, which its former handler receives.

    Yields a function that returns whether SIGHUP was received since its last call.
    """
    received, terminal = deque[int](maxlen=1), has_terminal()
    before: Any = None

    def record(number: int, frame: FrameType | None) -> None:
        if not terminal or has_terminal():
            received.append(number)
        elif callable(before):
            before(number, frame)

    if enabled:
        before = signal.signal(signal.SIGHUP, record)
    try:
        yield lambda: bool(received and received.pop())
    finally:
        if enabled:
            signal.signal(signal.SIGHUP, before)


def has_terminal() -> bool:
    """Return whether this process has a controlling terminal; the kernel takes it away when the terminal hangs up."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def start_detached(words: Sequence[str], spec: str, log: str | None) -> tuple[int, str | None]:
    """Start the `apply --hold` of a command line as a process of another session, and wait until it serves.

    Return its exit status, which is 0 if it serves, and the path of its socket if it does. Until then its output is
    that of this process, and signals to this process are passed on. Raises `MemtopoError`.
    """
    from memtopo.common.processes import memory_file, python_command, spawn

    stdin = memory_file(read_stdin().text.encode()) if spec == "-" else os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    ours, theirs = os.pipe()
    with os.fdopen(ours, "rb") as reader, Stopper(ending=True) as stopper, signal_wakeup() as wakeup:
        name, *more = (word for word in words if word != "--detach")
        command = [*python_command(_DETACHED), name, *_own_options(log, theirs), *more]
        settings: Any = {"environment": {"MEMTOPO_DETACH": "0"}, "new_session": True}
        with closing_fd(theirs), closing_fd(stdin):
            try:
                process = spawn(command, stdin=stdin, stdout=None, descriptors=(theirs,), **settings)
            except OSError as error:
                raise UsageError(f"the holder cannot be started: {reason(error)}") from error
        watched: list[Any] = [reader.fileno(), *([wakeup] if wakeup else [])]
        while watched[0] not in select.select(watched, [], [])[0]:
            assert wakeup
            for number in wakeup.recv(4096):
                if number in ENDING:
                    process.send_signal(number)
        path = os.fsdecode(reader.read()).removesuffix("\n")
        if path and not stopper.signal():
            process.returncode = 0  # it goes on; its status is not waited for
            return 0, path
        status = process.wait()
        if status < 0:
            raise HolderDied(-status)
        return status or signal_status(stopper.signal()), None


def main_of_detached(*_: str) -> None:
    """Run the command line of a detached holder."""
    from memtopo.cli import main  # the package imports no module of commands
    from memtopo.common.processes import name_process

    name_process("memtopo")
    main()


def _own_options(log: str | None, ready_fd: int) -> Iterator[str]:
    """Yield the options that a detached holder has besides those of its command."""
    yield from (f"--ready-fd={ready_fd}", "--reload")
    if log is None:
        at = endpoint("log")
        os.close(at.open_folder(make=True))
        yield f"--log={at.folder}/"


def _write_at_once(fd: int, line: bytes) -> int:
    """Write a line of less than `PIPE_BUF` bytes, unless a pipe has no room for it. Return how much was written."""
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    with suppress(OSError):
        if poll.poll(0):
            return os.write(fd, line)
    return 0
