"""Command lines as lists of words, for code that runs before the option parser, or after it has failed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from stat import S_ISREG

_READ = 1 << 20
"""Bytes of a spec in which GPUs are looked for."""

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
    """Ordinals of the GPUs that the spec of an `apply` seems to use, by its text: `gpu0`.

    It is empty for a spec that is not a file, and with options of `_NOT_EARLY`. A GPU that is not found costs
    time, and so does one that is named and not used.
    """
    import re  # cuInit is started before anything else is imported

    if any(word.startswith(_NOT_EARLY) for word in words) or any(map(os.environ.get, map(_variable, _NOT_EARLY))):
        return set()
    text = next(filter(None, map(_beginning, words[1:])), b"")
    if b"processes" in text or b"nodes" in text:
        return set()
    return {int(ordinal) for ordinal in re.findall(rb"\bgpu(\d{1,3})\b", text)}


def _variable(flag: str) -> str:
    return f"MEMTOPO_{flag.removeprefix('--').upper()}"


def _beginning(path: str) -> bytes:
    """Return the beginning of a regular file, empty for anything else: a pipe can be read once."""
    try:
        if not S_ISREG(os.stat(path).st_mode):  # noqa: PTH116  # pathlib is not imported yet
            return b""
        with open(path, "rb") as file:  # noqa: PTH123
            return file.read(_READ)
    except (OSError, ValueError):
        return b""
