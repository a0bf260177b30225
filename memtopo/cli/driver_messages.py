"""Messages about errors of the driver and the system: the calls and the errors that a text names.

The words of messages are a table, `driver_messages.toml`. Each error belongs to the nearest call of its kind: an error
of the driver to a call of CUDA, an `errno` to a call of the system. Some texts are errors of both ("operation not
permitted"): the nearest call decides.
"""

from __future__ import annotations

import errno
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import resources
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from msgspec import Struct

from memtopo.common.text import nearest
from memtopo.diagnostics.explanations import EVERY, causes, causes_of

Kind = Literal["cuda", "system"]

_MOST = 1 << 13
"""Characters that are read at each end of a message."""

_MOST_FOUND = 32
"""Calls and errors that are compared at each end of a message."""

_MOST_APART = 1500
"""Characters between an error and its call."""

_SHORT = 4
"""Words of a query, such as a call and an error; a message has more."""

_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_WORD = re.compile(r"[A-Za-z_]\w{1,79}")
_VERSION = re.compile(r"_(?:v\d+|ptsz|ptds)$")
_UNKNOWN_CALL = re.compile(r"(?:cu(?:da)?|hip)[A-Z][a-z]\w+")
_CALLED = re.compile(r"\s?\(|\s+(?:failed|returned|error|of)\b|:", re.IGNORECASE)
_ERROR_PREFIX = re.compile(r"(?:CUDA_?ERROR_?|CUDA_ERR_|ERROR_)", re.IGNORECASE)
_FOREIGN = re.compile(r"\b(?:nccl[A-Z]\w+|hipError\w+|[A-Z]{2,12}_(?:STATUS|ERR|ERROR)_\w+)")
_CUDA = re.compile(
    r"cuda|\bMPS\b|nvlink|(?-i:\b[Cc]u[A-Z][a-z])|CUresult|nvshmem|\bnccl|\brmm\b|\.cuh?\b", re.IGNORECASE
)
_NUMBER = re.compile(
    r"(?:error|failure|failed|fails|code|status|result|returned|value|ret|rc|err|errno|CUresult)"
    r"(?:\s{1,3}(?:code|with|number|status|value|error|is|cuda|failure)){0,3}[\s:=(\[#{]{1,4}(-?\d{1,4})\b(?![.:/]\d)",
    re.IGNORECASE,
)
_NUMBER_OF_CALL = re.compile(r"\[(\d{1,3})\] call to|\((\d{1,3})[),]", re.IGNORECASE)
_ERRNO = re.compile(r"\berrno\W{1,3}(\d{1,3})\b", re.IGNORECASE)
_XID = re.compile(r"\bXid\b(?: \([^\n)]{1,40}\))?[:\s]{0,3}(\d{1,3})\b", re.IGNORECASE)
_GPU = re.compile(r"nvidia|nvrm|\bgpu", re.IGNORECASE)
_ENDED = re.compile(r"exit\w*[^\n]{0,20}$|signal[^\n]{0,10}$|\b(?:nccl|cudnn|cublas|mpi)\W{0,3}$", re.IGNORECASE)
_COMMON = ("INVALID_VALUE", "UNKNOWN")
"""Errors with a text and a number that programs without GPUs have, too: `failed with code 1: Invalid argument`."""
_STATED = re.compile(r"\b(cu[A-Z]\w+)(?:\([^\n]{0,400}\))?: CUDA_ERROR_([A-Z_0-9]{1,60}) \(([^\n]{1,400})\)")


class NamedError(NamedTuple):
    """Call and error, without `CUDA_ERROR_`, that a text names; None for what it does not name."""

    call: str | None
    error: str | None

    def __str__(self) -> str:
        return " ".join(filter(None, self))

    @property
    def is_known(self) -> bool:
        """Return whether the call, or any call, has a row for the error."""
        if self.call and self.error:
            return bool(causes_of(self.call, self.error))
        return bool(self.error and causes_of(EVERY, self.error))

    @property
    def meant(self) -> str | None:
        """Call that was probably meant; None for a known call, or one that is similar to none."""
        known = {*_calls().values(), *_system_calls()}
        return None if self.call is None or self.call in known else nearest(self.call, known)


class Message(Struct, frozen=True):
    """Calls and errors of a text: `errors` in order, each with the nearest call, and `calls` that have none.

    `reason` is the rule that the simulator adds to its error. A `query` is no message, but a call, an error, or both.
    """

    errors: tuple[NamedError, ...]
    calls: tuple[str, ...]
    reason: str | None
    foreign: str | None
    query: bool

    @property
    def decisive(self) -> NamedError:
        """Error that is explained: the first one with a row of its call, else the first one."""
        rows = (each for each in self.errors if each.call and each.is_known)
        first = self.errors[0] if self.errors else NamedError(next(iter(self.calls), None), self.foreign)
        return next(rows, first)

    @property
    def others(self) -> tuple[str, ...]:
        """Other errors of the text."""
        decisive = self.decisive
        return tuple(str(each) for each in self.errors if each.error != decisive.error)


class _Found(NamedTuple):
    """Call or error in a text, with its first and last character."""

    start: int
    end: int
    kind: Kind
    name: str
    weak: bool = False
    """A name that may also be another thing; it counts if there is no other."""


def read_message(text: str) -> Message:
    """Return the calls and errors that a text names, in upper or lower case, by name, text or number."""
    whole = text if len(text) <= 2 * _MOST else f"{text[:_MOST]}\n{text[-_MOST:]}"
    plain = _ESCAPE.sub("", whole).replace("\0", " ")
    short = len(plain.split()) <= _SHORT
    calls = _ends(_found_calls(plain, short=short))
    found = sorted(_found_errors(plain, short=short))
    certain = _ends([each for each in found if not each.weak] or found)
    pairs = dict.fromkeys(_paired(plain, certain, calls, short=short))
    foreign = None if pairs else _FOREIGN.search(plain)
    stated = _STATED.search(plain)
    if stated and (stated[3].isdigit() or stated[3].lower() in _texts()):
        stated = None  # other programs put the driver's text or number in the place of the simulator's reason
    if stated:
        pairs = {NamedError(_call(stated[1]) or stated[1], stated[2]): None}
    names = tuple(dict.fromkeys(each.name for each in calls))
    return Message(tuple(pairs), names, stated and stated[3], foreign and foreign[0], short)


def _ends(found: Iterable[_Found]) -> list[_Found]:
    in_order = sorted(found)
    return in_order if len(in_order) <= 2 * _MOST_FOUND else [*in_order[:_MOST_FOUND], *in_order[-_MOST_FOUND:]]


def _found_calls(text: str, *, short: bool) -> Iterator[_Found]:
    for match in _WORD.finditer(text):
        word = match[0]
        if word in _table("reporters")["names"] or _error(word):
            continue
        called = _CALLED.match(text, match.end())
        if system := _system_calls().get(word):
            if "_" in word or called or match.start() == 0:  # "open" and "write" are words, too
                yield _Found(*match.span(), "system", system)
        elif name := _call(word):
            yield _Found(*match.span(), "cuda", name)
        elif _UNKNOWN_CALL.fullmatch(word) and not _FOREIGN.fullmatch(word) and (short or called):
            yield _Found(*match.span(), "cuda", word)
    yield from (_Found(*match.span(), "system", "Xid") for match in _xids(text, short=short))
    for pattern, name in _patterns("phrases"):
        kind: Kind = "system" if name in _system_calls() else "cuda"
        yield from (_Found(*match.span(), kind, name) for match in pattern.finditer(text))


def _found_errors(text: str, *, short: bool) -> Iterator[_Found]:
    for match in _WORD.finditer(text):
        own = _system_errors()
        if system := own.get(match[0]) or own.get(match[0].removeprefix("NVML_ERROR_")):
            yield _Found(*match.span(), "system", system)
        elif name := _error(match[0]):
            yield _Found(*match.span(), "cuda", name)
        elif name := _weak_error(match[0], short=short):
            yield _Found(*match.span(), "cuda", name, weak=True)
    for match in _alternatives(*_texts()).finditer(text):
        yield _Found(*match.span(), "cuda", _texts()[match[0].lower()])
    for match in _alternatives(*_errno_texts()).finditer(text):
        yield _Found(*match.span(), "system", _errno_texts()[match[0].lower()])
    for pattern, name in _patterns("texts"):
        kind: Kind = "cuda" if name in {*error_names(), *_table("runtime_errors").values()} else "system"
        yield from (_Found(*match.span(), kind, name) for match in pattern.finditer(text))
    xids = [_Found(*match.span(), "system", match[1]) for match in _xids(text, short=short)]
    yield from xids or _found_numbers(text, short=short)


def _xids(text: str, *, short: bool) -> list[re.Match[str]]:
    """Numbers of Xid messages; databases and file systems have transactions with an `xid`, too."""
    about_gpus = short or _GPU.search(text) is not None
    return [match for match in _XID.finditer(text) if about_gpus or match[0].startswith("Xid")]


def _found_numbers(text: str, *, short: bool) -> Iterator[_Found]:
    for match in _ERRNO.finditer(text):
        if name := errno.errorcode.get(int(match[1])):
            yield _Found(*match.span(), "system", name)
    for match in _NUMBER.finditer(text):
        if not _ENDED.search(text, max(0, match.start() - 40), match.start()):
            yield from _numbered(match, match[1])
    for match in _NUMBER_OF_CALL.finditer(text):
        yield from (each._replace(weak=True) for each in _numbered(match, match[1] or match[2]))
    if short:
        for match in re.finditer(r"(?<!\S)\d{1,3}\b", text):
            yield from _numbered(match, match[0])


def _numbered(match: re.Match[str], number: str) -> Iterator[_Found]:
    """Errors of a number: the driver's, and the system's, which may be negative."""
    if name := numbered_errors().get(int(number)):
        yield _Found(*match.span(), "cuda", name)
    if name := errno.errorcode.get(abs(int(number))):
        yield _Found(*match.span(), "system", name)


def _paired(text: str, errors: list[_Found], calls: list[_Found], *, short: bool) -> Iterator[NamedError]:
    """Errors with the nearest call of their kind; of two kinds at one place, that of the nearer call."""
    about_cuda = short or _CUDA.search(text) is not None or _agree(text, errors)
    for error in errors:
        overlapping = (each for each in errors if each.start < error.end and error.start < each.end)
        others = [each for each in overlapping if each.kind != error.kind]
        if any(_is_nearer(text, other, error, calls, about_cuda=about_cuda) for other in others):
            continue
        nearby = _nearest(text, error, calls)
        if nearby:
            yield NamedError(nearby.name, error.name)
        elif short or _stands_alone(text, error, about_cuda=about_cuda):
            yield NamedError(None, error.name)


def _agree(text: str, errors: Iterable[_Found]) -> bool:
    """Return whether a number beside a text is the same error of the driver: `Error 802: system not yet initialized`.

    Texts that other programs have, too, are left out.
    """
    own = [each for each in errors if each.kind == "cuda" and each.name not in _COMMON]
    return any(
        one.name == other.name
        and text[one.end - 1].isdigit() != text[other.end - 1].isdigit()
        and re.fullmatch(r"[^\w\n]{0,3}[^\w\s][^\w\n]{0,3}", text[one.end : other.start])
        for one, other in pairwise(own)
    )


def _stands_alone(text: str, error: _Found, *, about_cuda: bool) -> bool:
    """Return whether an error means something without a call: a number needs a word of its kind in its line."""
    written = text[error.start : error.end]
    if error.kind == "system":
        return not written[-1].isdigit() or _ERRNO.search(written) is not None
    if not re.search(r"-?\d+$", written):
        return about_cuda
    rest_of_line = text[error.end :].partition("\n")[0]
    line = text[text.rfind("\n", 0, error.start) + 1 : error.end] + rest_of_line
    return _CUDA.search(line) is not None


def _is_nearer(text: str, one: _Found, other: _Found, calls: list[_Found], *, about_cuda: bool) -> bool:
    """Return whether the call of one error is nearer than that of another at the same place."""
    first, second = (_nearest(text, each, calls) for each in (one, other))
    if first is None and second is None:
        return (one.kind == "cuda") == about_cuda
    if first is None or second is None:
        return second is None
    return _distance(text, one, first) < _distance(text, other, second)


def _nearest(text: str, error: _Found, calls: Iterable[_Found]) -> _Found | None:
    near = [each for each in calls if each.kind == error.kind and _between(error, each) <= _MOST_APART]
    return min(near, key=lambda each: _distance(text, error, each), default=None)


def _between(one: _Found, other: _Found) -> int:
    """Characters between two places."""
    return max(0, max(one.start, other.start) - min(one.end, other.end))


def _distance(text: str, error: _Found, call: _Found) -> tuple[int, int]:
    """Lines between an error and a call, and characters."""
    first, last = sorted((error, call))
    return text.count("\n", first.end, last.start), _between(error, call)


# Names.


def _plain(word: str) -> str:
    return _VERSION.sub("", word).replace("_", "").lower()


def _call(word: str) -> str | None:
    """Name of the driver's call that a word is, or that it makes; None for another word."""
    plain, calls = _plain(word), _calls()
    if plain.startswith("cuda"):
        base = plain.removeprefix("cuda")
        given = _table("runtime_calls").get(base)
        names = (f"cu{base}", f"cumem{base}", f"cuctx{base.removeprefix('device')}")
        return given or next((calls[each] for each in names if each in calls), None)
    if plain in calls:
        return calls[plain]
    camel = re.fullmatch(r"[A-Za-z][a-z]+[A-Z]\w+", word) and "_" not in word
    return calls.get(f"cu{plain}") if camel else None


def _error(word: str) -> str | None:
    """Error that a word with the prefix of errors is; an unknown one as it is written."""
    prefix = _ERROR_PREFIX.match(word)
    if prefix is None:
        return None
    name = _known_error(word[prefix.end() :])
    return name or (word[prefix.end() :] if word.startswith("CUDA_ERROR_") else None)


def _weak_error(word: str, *, short: bool) -> str | None:
    """Error that a word without prefix is: a variant of an enumeration, or a name in upper case."""
    if re.fullmatch(r"(?:[A-Z][a-z]+){2,}", word):
        return _known_error(word) or _known_error(word.removeprefix("Error").removesuffix("Error"))
    if short or ("_" in word and word.isupper()):
        return _known_error(word) if word.isupper() or "_" in word else None
    return None


def _known_error(word: str) -> str | None:
    return _error_words().get(_plain(word))


@cache
def _error_words() -> dict[str, str]:
    """Names of errors by their lower case without underscores, and those of the runtime API."""
    return {_plain(name): name for name in error_names()} | dict(_table("runtime_errors"))


@cache
def _calls() -> dict[str, str]:
    """Names of the driver's calls by their lower case."""
    from memtopo.driver.functions import plain_name
    from memtopo.testing.abi import exported

    return {name.lower(): name for name in map(plain_name, exported())}


@cache
def _system_calls() -> Mapping[str, str]:
    """Names of the calls of the system that have causes, by the names that programs give them."""
    named = {cause.call for cause in causes() if cause.call != EVERY and not cause.call.startswith("cu")}
    return {name: name for name in named} | dict(_table("system_calls"))


@cache
def _system_errors() -> Mapping[str, str]:
    """Errors of calls of the system and of libraries, by their names; an `errno` may have two (EOPNOTSUPP)."""
    calls = set(_system_calls().values())
    named = {cause.error for cause in causes() if cause.call in calls and not cause.error.isdigit()}
    numbers = {name: number for name, number in vars(errno).items() if isinstance(number, int)}
    return {name: name for name in named - set(error_names())} | {
        name: errno.errorcode[number] for name, number in numbers.items()
    }


@cache
def error_names() -> dict[str, int]:
    """Numbers of the driver's errors by name, without `CUDA_ERROR_`."""
    from memtopo.testing.abi import error_numbers

    return {name.removeprefix("CUDA_ERROR_"): number for name, number in error_numbers().items() if number}


@cache
def numbered_errors() -> dict[int, str]:
    """Names of the errors of the driver, and of those that the runtime API alone has, by number."""
    of_runtime = {int(number): name for number, name in _table("runtime_numbers").items()}
    return {number: name for name, number in error_names().items()} | of_runtime


@cache
def _texts() -> dict[str, str]:
    from memtopo.testing.abi import error_texts

    return {text: name.removeprefix("CUDA_ERROR_") for text, name in error_texts().items()}


@cache
def _errno_texts() -> dict[str, str]:
    texts = {os.strerror(number).lower(): name for number, name in errno.errorcode.items() if number}
    return {text: name for text, name in texts.items() if " " in text}


@cache
def _alternatives(*texts: str) -> re.Pattern[str]:
    longest_first = sorted(texts, key=len, reverse=True)
    return re.compile(rf"\b(?:{'|'.join(map(re.escape, longest_first))})", re.IGNORECASE)


@cache
def _patterns(table: str) -> list[tuple[re.Pattern[str], str]]:
    return [(re.compile(text, re.IGNORECASE), name) for text, name in _table(table).items()]


@cache
def _table(name: str) -> Mapping[str, Any]:
    text = resources.files(__package__).joinpath("driver_messages.toml").read_text("utf-8")
    found: Mapping[str, Any] = tomllib.loads(text)[name]
    return found
