"""Plugins of pydantic, which memtopo has no use for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

_VARIABLE = "PYDANTIC_DISABLE_PLUGINS"


@contextmanager
def without_plugins() -> Iterator[None]:
    """Keep pydantic from looking for plugins, which reads a file of every installed package for the first validator.

    Afterwards the environment is as before, so that other programs are started with the user's choice. For the command
    line: the environment is that of all threads.
    """
    chosen = os.environ.get(_VARIABLE)
    os.environ[_VARIABLE] = "__all__"
    try:
        yield
    finally:
        if chosen is None:
            del os.environ[_VARIABLE]
        else:
            os.environ[_VARIABLE] = chosen
