"""The command line: modules of commands, and `app`, which turns errors into exit statuses."""

from __future__ import annotations

import os
import sys

from memtopo.common import WITHOUT_PLUGINS, __version__

TYPE_CHECKING = False  # known to checkers by its name: the version is printed without an import of typing
if TYPE_CHECKING:
    from typing import NoReturn

_YOUNG = 200_000
"""New objects after which the garbage collector runs: with Python's 700, a small apply takes 1.1 times as long."""


def main() -> NoReturn:
    """Run the command line and exit with its status (see DESIGN.md)."""
    if sys.argv[1:] == ["--version"]:
        try:
            os.write(1, f"memtopo {__version__}\n".encode())
        except OSError:
            pass  # `run` reports it
        else:
            sys.exit(0)
    import gc
    import signal

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if it is ignored, waiting for a child fails
    gc.set_threshold(_YOUNG)
    os.environ.setdefault(*WITHOUT_PLUGINS)
    try:
        from memtopo.cli.process import applies_here  # inside of the try: Ctrl-C during imports is no traceback either

        if applies_here(sys.argv[1:]):
            from memtopo.drivers.cuda import start_cuda

            start_cuda()  # which takes as long as all imports of a command, and needs none of them
        from memtopo.cli.app import run

        status = run(sys.argv[1:])
    except KeyboardInterrupt:
        status = 130
    gc.freeze()  # the interpreter would look for cycles in all that is left, which takes a fifth of a short run
    sys.exit(status)


__all__ = ["main"]
