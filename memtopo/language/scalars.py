"""Scalar values of a spec: words, sizes, counts, addresses and semaphore values, read from text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from types import MappingProxyType
from typing import Any, Literal

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import core_schema

from memtopo.common.text import only_near
from memtopo.common.units import NotASize, Share, Size, parse_count, parse_share, parse_size, shorten
from memtopo.diagnostics import messages
from memtopo.diagnostics.model import InvalidValue
from memtopo.language.arithmetic import evaluate

_Help = Mapping[str, str]
_NONE: _Help = MappingProxyType({})


class FromText:
    """Annotation of a pydantic field: the function that converts its text, and its JSON Schema.

    pydantic's own PlainValidator also inspects the resulting type, for a schema that is not used.
    """

    def __init__(self, read: Callable[[object], Any], schema: dict[str, Any]) -> None:
        self._read, self._schema = read, schema

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(self._read)

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {**self._schema}  # pydantic adds the field's description to this copy


def text(value: object, expected: str) -> str:
    """Return a value that is text. Raises `InvalidValue` with what was expected for anything else, or for nothing."""
    if isinstance(value, str):
        if value:
            return value
        raise InvalidValue("MT103", f"expected {expected}, found nothing")
    alone = isinstance(value, list) and len(value) == 1 and isinstance(value[0], str)
    help = f"write {shorten(value[0])} without brackets" if alone and isinstance(value, list) else None
    what = "list" if isinstance(value, list) else "mapping"
    raise InvalidValue("MT103", f"expected {expected}, found a {what}", help=help)


LONGEST_PATH = 4095
"""Bytes of a path that the system accepts."""


def file_path(value: object, noun: str = "file") -> str:
    """Read the absolute path of a file, or of a folder without a slash at its end."""
    if value == "":
        help = "write the path, such as /dev/shm/ring, or omit the key"
        raise InvalidValue("MT103", f"expected the path of a {noun}, found nothing", help=help)
    found = text(value, f"the path of a {noun}")
    if not found.startswith("/"):
        help = "write an absolute path: a held layout and its clients have different working directories"
        raise InvalidValue("MT103", f"{shorten(found)!r} is not the absolute path of a {noun}", help=help)
    if found.endswith("/"):
        help = f"name a {noun} in it: {found}NAME"
        raise InvalidValue("MT103", f"{shorten(found)!r} does not end with the name of a {noun}", help=help)
    if len(found.encode()) > LONGEST_PATH:
        raise InvalidValue("MT103", f"a path has at most {LONGEST_PATH:,} bytes, this one {len(found.encode()):,}")
    if not found.isprintable():
        raise InvalidValue("MT103", f"{shorten(found)!r} has characters that cannot be printed")
    return found


def one_of(words: Mapping[str, Any], what: str, hints: _Help = _NONE, meant: _Help = _NONE) -> Callable[[object], Any]:
    """Return a function that reads one of a few words as the value that it stands for.

    Other words that are probably written, in lower case, are in `hints` with the help for them, or in `meant` with the
    one of the `words` that each of them certainly is. Words in `hints` that are allowed are not suggested.
    """
    suggested = [word for word in words if word not in hints]

    def read(value: object) -> Any:
        found = text(value, what)
        if found not in words:
            raise _other_word(found, f"{shorten(found)!r} is not {what}", suggested, hints, meant)
        return words[found]

    return read


class FromWord(FromText):
    """Annotation of a pydantic field that has one of a few words, as `one_of` reads them."""

    def __init__(self, words: Mapping[str, Any], what: str, hints: _Help = _NONE, meant: _Help = _NONE) -> None:
        super().__init__(one_of(words, what, hints, meant), {"enum": [*words]})


def _other_word(
    found: str, message: str, words: Sequence[str], hints: _Help = _NONE, meant: _Help = _NONE
) -> InvalidValue:
    """Error for a word that is none of a few, with the one that it was certainly meant to be, if there is one."""
    if hint := hints.get(found.lower()):
        return InvalidValue("MT107", message, help=hint)
    only = meant.get(found.lower()) or only_near(found, words, sure=_SURE)
    help = messages.did_you_mean(only) if only else messages.choose(found, words)
    return InvalidValue("MT107", message, help=help, meant=only)


def one_or_more(value: object) -> object:
    """Return a list that is not empty; a single value becomes a list of one."""
    if not value:
        raise InvalidValue("MT103", "expected at least one, found none", help="omit it, or list one")
    return value if isinstance(value, list) else [value]


def text_like(pattern: str, message: str) -> dict[str, Any]:
    """JSON Schema of text that a pattern matches as a whole; editors show the message for other text."""
    return {"type": "string", "pattern": f"^(?:{pattern})$", "patternErrorMessage": message}


LARGEST_PROCESSES = 128
"""Largest number of processes of one spec."""

LARGEST_COUNT = 2_000_000
"""Largest number of chunks, ranges or steps of one spec."""

LARGEST_TIMELINE_VALUE = (1 << 64) - 1
"""The largest value of a timeline semaphore."""

_SURE = 0.8
"""Similarity of a word to the one of a few that it was certainly meant to be; 'full' is neither 'fill' nor 'all'."""

_SIZE_HELP = "write a whole number and a unit, such as 2MiB"
_SMALL = 3
"""Digits of a number without a unit that probably counts MiB."""

_FULL = {"full": "write fill for as many as fit, all for each chunk, or a number"}
_FROM_TO = re.compile(r"([0-9]+) *(?:-|\.\.|to) *([0-9]+)")
_NAME = "[A-Za-z][A-Za-z0-9_]{0,63}"
ADDRESS = r"0x[0-9A-Fa-f]{1,16}"


def size(value: object) -> Size:
    """Read a size, in bytes or in granules; 0 is one."""
    try:
        return parse_size(text(value, "a size such as 64MiB or 4 granules"))
    except NotASize as error:
        only = meant = error.meant if error.meant and parse_size(error.meant).amount else None
        if meant and isinstance(value, str) and value.isdecimal() and len(value) <= _SMALL:
            only, meant = None, f"{value}MiB, or {meant} for bytes"
        elif meant and (parse_size(meant).in_granules or re.match("0[0-9]", str(value))):
            only = None  # 'page' has other meanings, and 010 is 8 in YAML 1.1
        product = _value(str(value), r"[0-9 ()*/+-]*[KMGT]iB[0-9 ()*/+A-Za-z-]{0,100}")
        parameter = re.match(rf"{_NAME}(?= *[*/+-])", str(value))
        other = f"write ${parameter[0]} for a parameter of the spec" if parameter else _SIZE_HELP
        help = f"write {meant or product}" if meant or product else _elsewhere(value) or other
        raise InvalidValue("MT105", str(error), help=help, meant=only) from error


def positive(value: object) -> Size:
    """Read a size that is more than 0."""
    return _not_zero(size(value), "omit the entry, or give it a size")


def _not_zero(found: Size, help: str) -> Size:
    if found.amount == 0:
        raise InvalidValue("MT105", "a size of 0 is nothing to build", help=help)
    return found


def share(written: str) -> Share:
    """Read a share of memory in percent."""
    try:
        return parse_share(written)
    except ValueError as error:
        raise InvalidValue("MT106", str(error), help="write '90%', with at most three decimals") from error


def size_or_share(value: object) -> Size | Share:
    """Read a size that is more than 0, or a share of memory in percent."""
    found = text(value, "a size such as 64MiB or 4 granules, or a share such as 90%")
    return share(found) if found.endswith("%") else positive(value)


def size_or_fill(value: object) -> Size | Literal["fill"]:
    """Read a size that is more than 0, or `fill`."""
    return "fill" if value == "fill" else positive(value)


def chunk_count(value: object) -> int | Share | Literal["fill"]:
    """Read a count of at least one, `fill`, or a share of memory in percent."""
    if value == "fill":
        return "fill"
    if isinstance(value, str) and value.endswith("%"):
        return share(value)
    if isinstance(value, str) and (help := _other_count(value)):
        raise InvalidValue("MT106", f"{shorten(value)!r} is not a count", help=help)
    return count(value)


def _other_count(written: str) -> str | None:
    """Help for a count in words of other languages, or from one number to another; None for anything else."""
    if written.lower() in ("auto", "max", "all", "any", "rest", "remaining") or written.startswith("-"):
        return "write fill for as many as fit in the range; a share such as 80% is of the GPU's free memory"
    if re.fullmatch(r"0?\.[0-9]{1,5}", written) and float(written):
        return f"write {100 * float(written):g}% for a share of the GPU's free memory"
    if match := _FROM_TO.fullmatch(written):
        limits = f"{{min: {match[1]}, max: {match[2]}}}"
        return f"write {limits}, for chunks that a program creates and maps as it needs them"
    return None


def least_count(value: object) -> int | Share:
    """Read a count that may be 0, or a share of memory in percent."""
    if value == "0":
        return 0
    return share(value) if isinstance(value, str) and value.endswith("%") else count(value)


def positive_bytes(value: object) -> Size:
    """Read a size that is more than 0, in bytes."""
    return _in_bytes(positive(value))


def bytes_or(without: str) -> Callable[[object], Size]:
    """Return a function that reads a size that is more than 0, in bytes; `without` is the help for 0."""
    return lambda value: _not_zero(_in_bytes(size(value)), without)


def offset_bytes(value: object) -> Size:
    """Read an offset, in bytes."""
    return _in_bytes(size(value))


def count(value: object) -> int:
    """Read a count of at least one."""
    found = _number(text(value, "a count"), least=1)
    if found == 0:
        raise InvalidValue("MT106", "a count of 0 is nothing to build", help="omit the entry, or count from 1")
    if found > LARGEST_COUNT:
        message = f"a count of {found:,} is more than the {LARGEST_COUNT:,} allowed in one spec"
        raise InvalidValue("MT109", message, help=f"write at most {LARGEST_COUNT}; fewer objects can be larger")
    return found


def count_or_word(words: Sequence[str]) -> Callable[[object], int | str]:
    """Return a function that reads a count of at least one, or one of a few words."""

    def read(value: object) -> int | str:
        found = text(value, f"a count, {' or '.join(words)}")
        if found in words:
            return found
        if found[:1].isdigit() or found[:1] in "+-.":
            return count(found)
        raise _other_word(found, f"{shorten(found)!r} is neither a count nor {' or '.join(words)}", words, _FULL)

    return read


def processes(value: object) -> int:
    """Read a number of processes, at least one."""
    if value in ("gpus", "fill"):
        help = "write a number, or a parameter such as $ranks"
        raise InvalidValue("MT106", f"{value!r} is not a number of processes", help=help)
    found = count(value)
    if found > LARGEST_PROCESSES:
        message = f"{found:,} processes are more than the {LARGEST_PROCESSES} allowed in one spec"
        raise InvalidValue("MT109", message, help=f"write at most {LARGEST_PROCESSES}")
    return found


def address(value: object) -> int:
    """Read an address in hexadecimal digits."""
    found = text(value, "an address such as 0x7f0000000000")
    if not re.fullmatch(ADDRESS, found):
        help = "write it as 0x and hexadecimal digits"
        raise InvalidValue("MT106", f"{shorten(found)!r} is not an address", help=help)
    return int(found, 16)


def semaphore_value(value: object) -> int | Literal[True]:
    """Read the value that a timeline semaphore waits for or signals, or `true` for a binary semaphore."""
    found = text(value, "a value, or true for a binary semaphore")
    if found == "true":
        return True
    if found == "false":
        raise InvalidValue("MT106", "'false' cannot be waited for or signalled", help="omit the key")
    return _number(found)


def _number(written: str, least: int = 0) -> int:
    try:
        return parse_count(written)
    except ValueError as error:
        number = _number_meant(written)
        number = number if number and int(number) >= least else None
        help = f"write {number}" if number else _elsewhere(written) or _near_number(written)
        octal = written.startswith("0") and written.isdecimal()  # in YAML 1.1
        raise InvalidValue("MT106", str(error), help=help, meant=None if octal else number) from error


def _number_meant(written: str) -> str | None:
    """Number that is written in another way: `1_000`, `0x10`, `1e3`, `8.0`, `4 * 2`; None for anything else."""
    if re.fullmatch(r"[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+(?:_[0-9]+)+", written):
        return str(int(re.sub("[_,]", "", written)))
    if re.fullmatch("0[xX][0-9A-Fa-f]{1,16}|0[oO][0-7]{1,20}|0[bB][01]{1,64}", written):
        return str(int(written, 0))
    if re.fullmatch(r"[0-9]{1,19}(?:\.[0-9]{1,19})?(?:[eE]\+?[0-9]{1,2})?", written):
        found = Fraction(written)
        return str(found) if found.denominator == 1 and found <= LARGEST_TIMELINE_VALUE else None
    return _value(written, r"[0-9 ()*/+-]{1,100}")


def _value(written: str, pattern: str) -> str | None:
    """Value of an arithmetic of numbers and sizes that a pattern matches; None for anything else."""
    if not re.fullmatch(pattern, written):
        return None
    try:
        return str(evaluate(written, str))
    except InvalidValue:
        return None


def _near_number(written: str) -> str | None:
    """Help for a number that is less than 0, not whole, or has a factor or a unit; a name may be a parameter."""
    if re.fullmatch(_NAME, written):
        return f"write a number, or ${written} for a parameter of the spec"
    if match := re.fullmatch("([0-9]{1,9}) *[kKmMgGtT]i?[bB]", written):
        return f"write {match[1]}: a count has no unit"
    if match := re.fullmatch("([0-9]{1,9}) *([kKmM])", written):
        power = "kKmM".index(match[2]) // 2 + 1
        return f"write {int(match[1]) * 1000**power} or {int(match[1]) * 1024**power}"
    if match := re.fullmatch(r"([0-9]{1,9})\.[0-9]{1,19}", written):
        return f"write {int(match[1]) + 1}" if match[1] == "0" else f"write {int(match[1])} or {int(match[1]) + 1}"
    if re.fullmatch("-[0-9]{1,19}", written):
        return "write a number from 1"
    return None


def _elsewhere(value: object) -> str | None:
    """Help for a value that other keys than the one at hand take."""
    if value == "fill":
        return "'fill' can be the 'size' of ranges and the 'count' of chunks"
    if isinstance(value, str) and value.endswith("%"):
        return "a share of memory can be the 'size' or the 'count' of chunks"
    return None


def _in_bytes(found: Size) -> Size:
    if found.in_granules:
        raise InvalidValue("MT105", "only chunks have a size in granules", help="write its bytes: 2MiB")
    return found
