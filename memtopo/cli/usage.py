"""A wrong command line in memtopo's voice: what was found, and a hint at what would be right."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from memtopo.common.errors import MemtopoError, UsageError

_MEANT = re.compile(r"\.? (?:\(Possible options: (?P<options>.+)\)|Did you mean (?P<words>.+)\?)$", re.IGNORECASE)
_EXTRA = re.compile(r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)", re.DOTALL)


def explain(error: Any, arguments: Sequence[str], commands: Sequence[str]) -> MemtopoError:
    """What the parser of the command line found wrong, as an error whose hint says what to write or read."""
    message: str = error.format_message()
    meant = _MEANT.search(message)
    if extra := _EXTRA.fullmatch(message.rstrip(".")):
        message = f"unexpected argument: {extra[1]}"
    told = message[: meant.start()] if meant else message
    told = told[:1].lower() + told[1:].rstrip(".")
    command = next((word for word in arguments if word in commands), None)
    help = f"see 'memtopo {command} --help'" if command else "see 'memtopo --help'"
    if command and arguments[0].startswith("-") and told.startswith("no such option"):
        return UsageError(told, hint=f"options stand after the command; {help}")
    if meant:
        return UsageError(told, hint=f"did you mean {meant['options'] or meant['words']}? {help}")
    return UsageError(told, hint=help)
