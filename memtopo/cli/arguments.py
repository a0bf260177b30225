"""Command lines as lists of words, for code that runs before the option parser, or after it has failed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise


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
