"""Commands of processes, as the people who started them know them: `reader.py`, and not `python`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from memtopo.common.files import text_of
from memtopo.common.processes import PROC
from memtopo.common.units import shorten

_LONGEST = 80
_PYTHON = re.compile(r"(python|pypy)[0-9.]*t?")
_WITH_VALUE = re.compile(r"-[a-zA-Z]*[WX]|--check-hash-based-pycs")
"""Options of Python that take the next argument."""

_MODULE, _CODE = re.compile(r"-[a-zA-Z]*m(.*)"), re.compile(r"-[a-zA-Z]*c.*")


def command_of(pid: int, name: str, proc: Path = PROC) -> str:
    """Return the command of a process without its interpreter and folders; its `name` if it has no arguments."""
    arguments = text_of(proc / str(pid) / "cmdline").rstrip("\0").split("\0")
    return shorten(known_command(arguments, name), _LONGEST)


def known_command(arguments: Sequence[str], name: str) -> str:
    """Return the command of some arguments: that of the script or module if they are those of Python.

    Code of `python -c` is not a part of it; a process that runs code may have a `name` of its own.
    """
    program = _file_name(arguments[0])
    if not _PYTHON.fullmatch(program):
        return " ".join([program, *arguments[1:]]) or name
    rest = list(arguments[1:])
    while rest:
        option = rest.pop(0)
        if module := _MODULE.fullmatch(option):
            return " ".join(filter(None, [module[1], *rest]))
        if _CODE.fullmatch(option):
            own = f"{program} -c" if _PYTHON.fullmatch(name) else name
            return " ".join([own, *rest[1:]]) if own == "memtopo" else own
        if _WITH_VALUE.fullmatch(option):
            rest = rest[1:]
        elif not option.startswith("-"):
            return " ".join([_file_name(option), *rest])
    return program


def _file_name(path: str) -> str:
    """Return the name of a file without its folder; a title that a process has given itself stays as it is."""
    return path if " " in path or ":" in path else path.rpartition("/")[2]
