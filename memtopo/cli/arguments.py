"""Command lines as lists of words, for code that runs before the option parser, or after it has failed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from stat import S_ISREG

_READ = 1 << 20
"""Bytes of a spec in which GPUs are looked for."""

_FLAGS = ("--json", "--rehearse")
"""Options without a value that are not in `_NOT_EARLY`."""

_NOT_EARLY = ("--hold", "--on", "--with", "--trace")
"""Options of layouts that other processes may use or make, and of runs whose calls are recorded."""


def option_values(words: Sequence[str], *flags: str) -> list[str]:
    """Return the values of an option, in order, as words after its flags or behind `=`: `--format json`, `-mlocal`."""
    found = []
    for word, after in pairwise([*words, ""]):
        for flag in flags:
            if word == flag:
                found.append(after)
            elif word.startswith(flag) and (word[len(flag)] == "=" or not flag.startswith("--")):
                found.append(word[len(flag) :].removeprefix("="))
    return found


def applies_here(words: Sequence[str]) -> bool:
    """Return true if a command line applies a spec to the GPUs of this machine, which is the default."""
    machines = option_values(words, "--machine", "-m") or [os.environ.get("MEMTOPO_MACHINE") or "local"]
    return words[:1] == ["apply"] and machines[-1] == "local" and not {"-h", "--help"} & set(words)


def early_gpus(words: Sequence[str]) -> set[int]:
    """Ordinals of the GPUs that the spec of an `apply` seems to use, by the first MiB of its text: `gpu0`.

    None for a spec that is not a file, for one of several processes or with alternatives, which are tried in other
    processes, and with options of `_NOT_EARLY`. A GPU that is not found costs time, and so does one that is named and
    not used.
    """
    import re  # cuInit is started before anything else is imported

    if any(word.startswith(_NOT_EARLY) for word in words) or any(map(os.environ.get, map(_variable, _NOT_EARLY))):
        return set()
    operands = (word for before, word in pairwise(words) if not _takes_value(before))
    text = next(filter(None, map(_first_bytes, operands)), b"")
    if any(key in text for key in (b"processes", b"nodes", b"else")):
        return set()
    return {int(ordinal) for ordinal in re.findall(rb"\bgpu(\d{1,3})\b", text)}


def _takes_value(word: str) -> bool:
    """Return true for an option of `apply` whose value is the next word."""
    return word == "-m" or (word.startswith("--") and "=" not in word and word not in _FLAGS)


def _variable(flag: str) -> str:
    return f"MEMTOPO_{flag.removeprefix('--').upper()}"


def _first_bytes(path: str) -> bytes:
    """Return the beginning of a regular file, empty for anything else: a pipe can be read once."""
    try:
        if not S_ISREG(os.stat(path).st_mode):  # noqa: PTH116  # pathlib is not imported yet
            return b""
        with open(path, "rb") as file:  # noqa: PTH123
            return file.read(_READ)
    except (OSError, ValueError):
        return b""
