"""Messages about errors of the driver: the call and the error that a text names."""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

from memtopo.common.text import nearest
from memtopo.diagnostics.errors import causes

_WORD = re.compile(r"\w+")
_CALL = re.compile(r"cu[A-Z]\w+")
_NUMBER = re.compile(r"(?<!\S)([0-9]+)\b")
_LAST_NUMBER = re.compile(r"(?<!\S)([0-9]+)$")
_ERROR_NUMBER = re.compile(r"\berror(?: code)?:? ([0-9]+)\b", re.IGNORECASE)


class NamedError(NamedTuple):
    """Call and error, without `CUDA_ERROR_`, that a text names; None for what it does not name."""

    call: str | None
    error: str | None

    def __str__(self) -> str:
        return " ".join(filter(None, self))

    @property
    def meant(self) -> str | None:
        """Call that was probably meant; None for a call that the driver has, or that is similar to none."""
        names = _calls()
        return None if self.call is None or self.call.lower() in names else nearest(self.call, names.values())


def named_error(text: str) -> NamedError | None:
    """Return the call and the error that a text names; None if it names neither.

    Both are named in upper or lower case, the error also by the driver's text, `invalid argument`, and by its number in
    `error 1`, or beside a call.
    """
    words = _WORD.findall(text)
    call = next(filter(None, map(_call, words)), None)
    error = _by_name(words) or _by_text(text) or _by_number(text, _ERROR_NUMBER)
    if call and error is None:
        error = _by_number(text, _NUMBER)
    return NamedError(call, error) if call or error else None


def _call(word: str) -> str | None:
    """Name of a call without its version; of an unknown one as it is written, None for another word."""
    plain = word.partition("_v")[0]
    if not word.lower().startswith("cu"):
        return None
    return _calls().get(plain.lower()) or (plain if _CALL.fullmatch(word) else None)


@cache
def _calls() -> dict[str, str]:
    """Names of the driver's calls by their lower case."""
    from memtopo.testing.abi import exported, plain_name

    return {name.lower(): name for name in map(plain_name, exported())}


def unknown_error(named: NamedError, text: str) -> str | None:
    """Return the number or word beside a call that is no error of the driver; None in a longer message."""
    if named.call is None:
        return None
    if named.error:
        return None if named.error in error_names() else named.error
    if number := _LAST_NUMBER.search(text):
        return number[1]
    words = text.split()
    if len(words) != 2:  # noqa: PLR2004 a call and one word
        return None
    return next((word for word in words if named_error(word) is None), words[1])


@cache
def error_names() -> dict[str, int]:
    """Numbers of the driver's errors by name, without `CUDA_ERROR_`."""
    from memtopo.testing.abi import error_numbers

    return {name.removeprefix("CUDA_ERROR_"): number for name, number in error_numbers().items() if number}


def _by_name(words: list[str]) -> str | None:
    """Error of a word: one with known causes or with its prefix in any case, another one in upper case."""
    known = {cause.error for cause in causes()}
    names = ((word, word.upper().removeprefix("CUDA_ERROR_")) for word in words)
    return next((name for word, name in names if name in known or name != word.upper() or word in error_names()), None)


def _by_text(text: str) -> str | None:
    plain = " ".join(text.lower().split())
    if " " not in plain:  # each text has several words; a code has one
        return None
    from memtopo.testing.abi import error_texts

    found = {each: name for each, name in error_texts().items() if each in plain}
    return found[max(found, key=len)].removeprefix("CUDA_ERROR_") if found else None


def _by_number(text: str, pattern: re.Pattern[str]) -> str | None:
    names = {number: name for name, number in error_names().items()}
    return next((names[int(each)] for each in pattern.findall(text) if int(each) in names), None)
