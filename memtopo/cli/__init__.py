"""The command line: one module a command, and one place that turns what went wrong into an exit status."""

from __future__ import annotations

import signal
import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line and exit with its status (see DESIGN.md)."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # where it is ignored, no child can be waited for
    try:
        from memtopo.common.collector import (
            collector_frozen,  # here, so that Ctrl-C during the imports is no traceback either
        )

        with collector_frozen():
            from memtopo.cli.app import run
        status = run(sys.argv[1:])
    except KeyboardInterrupt:
        status = 130
    sys.exit(status)


__all__ = ["main"]
