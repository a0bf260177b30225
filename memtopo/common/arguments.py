"""Arguments of the Python API, checked by their names: each name has one meaning in all public functions."""

from __future__ import annotations

import math
import os
import reprlib
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import wraps
from inspect import signature
from operator import index
from typing import Any, ParamSpec, TypeGuard, TypeVar

from memtopo.common.errors import UsageError
from memtopo.common.text import enumerated
from memtopo.common.units import parse_duration, parsed

P = ParamSpec("P")
T = TypeVar("T")

_LONGEST = 1e9
"""Longest duration in seconds, 31 years: system calls take no more than 64 bits of nanoseconds."""


def checked(**choices: Collection[str]) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Check the arguments of a public function by their names before it is called; a duration becomes seconds.

    `choices` are the words that an argument may be. The default of an argument is always valid. The function raises
    `UsageError` for an argument of another type or value.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        defaults = {each.name: each.default for each in signature(function).parameters.values()}

        def read(name: str, given: Any) -> Any:
            if name not in defaults or given is defaults[name]:
                return given
            if name in choices:
                return word(name, given, choices[name])
            return READERS[name](name, given) if name in READERS else given

        @wraps(function)
        def checking(*args: Any, **kwargs: Any) -> T:
            positional = (*map(read, defaults, args), *args[len(defaults) :])
            return function(*positional, **{name: read(name, given) for name, given in kwargs.items()})

        return checking

    return decorate


def refused(name: str, given: object, what: str, hint: str) -> UsageError:
    """Return the error for an argument that is not as it must be."""
    return UsageError(f"{name}={' '.join(reprlib.repr(given).split())} is not {what}", hint=hint)


def word(name: str, given: object, words: Iterable[str]) -> Any:
    """Return one of several words."""
    known = list(words)
    if not isinstance(given, str) or given not in known:
        raise refused(name, given, "known", f"write {enumerated(map(repr, known))}")
    return given


def text(name: str, given: object) -> Any:
    """Return the name of something."""
    if not _is_text(given):
        raise refused(name, given, "text", "write text, such as 'kv', or 'page.3' for one of a counted entry")
    return given


def _is_text(given: object, encode: Callable[[str], bytes] = str.encode) -> TypeGuard[str]:
    """Return true for text that can be written; text with a single surrogate cannot."""
    with suppress(UnicodeEncodeError):
        return isinstance(given, str) and encode(given) is not None
    return False


def path(name: str, given: object) -> Any:
    """Return a path or a name, which is not empty."""
    found = os.fspath(given) if isinstance(given, os.PathLike) else given
    if not _is_text(found, os.fsencode) or not found or "\0" in found:
        raise refused(name, given, "a path or a name", "write text, or a pathlib.Path")
    return given


def seconds(name: str, given: object) -> float:
    """Return the seconds of a duration, which is a number of them, or text such as `30s`."""
    if isinstance(given, str):
        return parsed(parse_duration, given, name)
    number = float(given) if isinstance(given, int | float) and not isinstance(given, bool) else math.nan
    if not 0 <= number <= _LONGEST:
        raise refused(name, given, "a duration", "write a number of seconds, or text such as '30s'")
    return number


def mapping(name: str, given: object) -> Any:
    """Return a mapping from names."""
    if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
        raise refused(name, given, "a mapping from names", f"write {name}={{'NAME': …}}")
    return given


def _names(name: str, given: object) -> Any:
    if (
        isinstance(given, bytes)
        or not isinstance(given, Collection)
        or not all(isinstance(each, str) for each in given)
    ):
        raise refused(name, given, "a list of names", f"write {name}=['NAME']")
    return given


def _paths(name: str, given: object) -> Any:
    for each in given if isinstance(given, list | tuple) else [given]:
        path(name, each)
    return given


def _uids(name: str, given: object) -> Any:
    if not isinstance(given, Collection) or not all(type(each) is int and each >= 0 for each in given):
        raise refused(name, given, "a list of numbers of users", f"write {name}=[1000]")
    return given


def _device(name: str, given: object) -> Any:
    try:
        right = isinstance(given, str) or (not isinstance(given, bool) and index(given) >= 0)  # type: ignore[arg-type]
    except TypeError:
        right = False
    if not right:
        raise refused(name, given, "a device", "write 'gpu0', 'host', or the ordinal of a GPU")
    return given


def _function(name: str, given: object) -> Any:
    if not callable(given):
        raise refused(name, given, "a function", "pass what is called with one argument")
    return given


READERS: Mapping[str, Callable[[str, object], Any]] = {
    **dict.fromkeys(("name", "process", "state", "label", "expect", "into"), text),
    **dict.fromkeys(("layout", "socket", "where", "file", "cupti", "source", "folder"), path),
    **dict.fromkeys(("timeout", "wait", "grace", "lasting"), seconds),
    **dict.fromkeys(("params", "bind", "reserve"), mapping),
    **dict.fromkeys(("exports", "names"), _names),
    **dict.fromkeys(("log", "on_change"), _function),
    "files": _paths,
    "allow_uids": _uids,
    "device": _device,
}
"""Check of each argument by its name, which returns it."""
