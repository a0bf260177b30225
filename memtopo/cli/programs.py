"""Programs that commands run: they get the signals of this process, and their exit status is that of the command."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Sequence

from memtopo.common.errors import Exit, MemtopoError, UsageError, signal_status

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


def require_program(command: str, program: str) -> None:
    """Raise `UsageError` for a program that does not exist or cannot be executed."""
    if shutil.which(program):
        return
    found = os.path.exists(program)  # noqa: PTH110 a path as it was written
    reason = "it is a folder" if os.path.isdir(program) else "it is not executable"  # noqa: PTH112 likewise
    raise UsageError(
        f"the program {program!r} cannot be started: {reason if found else 'it does not exist'}",
        hint=f"name a program and its arguments: memtopo {command} -- COMMAND…",
    )


def run_program(command: Sequence[str], environment: dict[str, str]) -> int:
    """Run a program to its end; return its status as shells have it. Raises `MemtopoError` if it cannot be started.

    Signals for this process go to the program. Ctrl-C reaches it by the terminal.
    """
    waited = {signal.SIGCHLD, *_FORWARDED}
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # which may be ignored: then no child could be waited for
    before = signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    try:
        child = os.posix_spawnp(command[0], list(command), environment, setsigmask=before, setsigdef=_IGNORED_BY_PYTHON)
        while True:
            found = signal.sigwaitinfo(waited)
            if found.si_signo != signal.SIGCHLD:
                if found.si_pid:  # the system sends those of the terminal, to the program too
                    os.kill(child, found.si_signo)
            elif (ended := os.waitpid(child, os.WNOHANG))[0]:
                return _status(ended[1])
    except (OSError, ValueError) as error:
        raise _NotStarted(command[0], error) from error
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _status(ended: int) -> int:
    code = os.waitstatus_to_exitcode(ended)
    return code if code >= 0 else signal_status(-code)


class _NotStarted(MemtopoError):
    """A program that cannot be started."""

    exit_code = Exit.USAGE

    def __init__(self, program: str, error: OSError | ValueError) -> None:
        reason = (error.strerror or "").lower() if isinstance(error, OSError) else str(error)
        super().__init__(f"the program {program!r} cannot be started: {reason}")
