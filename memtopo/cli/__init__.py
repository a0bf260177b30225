"""The command line: modules of commands, and `app`, which turns errors into exit statuses."""

from __future__ import annotations

import os
import sys

from memtopo.common import WITHOUT_PLUGINS
from memtopo.common.version import __version__

TYPE_CHECKING = False  # known to checkers by its name: the version is printed without an import of typing
if TYPE_CHECKING:
    from typing import NoReturn

_YOUNG = 200_000
"""New objects after which the garbage collector runs: with Python's 700, a small apply takes 1.1 times as long."""


def main() -> NoReturn:
    """Run the command line and exit with its status (see DESIGN.md)."""
    if sys.argv[1:] == ["--version"] and _version_printed():
        sys.exit(0)
    import gc
    import signal

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if it is ignored, waiting for a child fails
    gc.set_threshold(_YOUNG)
    os.environ.setdefault(*WITHOUT_PLUGINS)
    try:
        _start_driver(sys.argv[1:])
        from memtopo.cli.app import run  # inside of the try: Ctrl-C during the imports is no traceback either

        status = run(sys.argv[1:])
    except KeyboardInterrupt:
        status = 130
    gc.freeze()  # the interpreter would look for cycles in all that is left, which takes a fifth of a short run
    sys.exit(status)


def _version_printed() -> bool:
    """Print the version without an import; False if it cannot be written, which `run` reports."""
    try:
        os.write(1, f"memtopo {__version__}\n".encode())
    except OSError:
        return False
    return True


def _start_driver(arguments: list[str]) -> None:
    """Start what takes as long as all imports of a command, and needs none of them."""
    from memtopo.cli.process import applies_here

    if applies_here(arguments):
        from memtopo.drivers.cuda import start_cuda

        start_cuda()


__all__ = ["main"]
