"""Plugins of pydantic, which memtopo has no use for."""

from __future__ import annotations

import os

_VARIABLE = "PYDANTIC_DISABLE_PLUGINS"

_added: set[str] = set()
"""Variables that are set for this process alone."""


def disable_plugins() -> None:
    """Keep pydantic from looking for plugins, which reads a file of every installed package for the first validator.

    For a command, before it starts a thread: the environment is that of the whole process, and threads may read it.
    """
    if _VARIABLE not in os.environ:
        os.environ[_VARIABLE] = "__all__"
        _added.add(_VARIABLE)


def inherited_environment() -> dict[str, str]:
    """Return the environment for other programs: as this process got it, without what `disable_plugins` set."""
    return {name: value for name, value in os.environ.items() if name not in _added}
