"""Signals that end a program."""

from __future__ import annotations

import signal

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that request the end of a program."""

TERMINAL = (signal.SIGINT, signal.SIGHUP)
"""Those that a terminal sends to a process and its children: Ctrl-C, and the end of the session."""
