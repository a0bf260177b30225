"""Pickles of plain values: numbers, texts, lists, tuples and dictionaries. Nothing in them is executed."""

from __future__ import annotations

import io
import pickle
import pickletools
from collections.abc import Callable
from typing import Any, ClassVar, NoReturn

from memtopo.common.errors import UsageError
from memtopo.common.text import printable
from memtopo.common.units import shorten

MOST_NESTED = 64
"""Lists, tuples and dictionaries in one another, as far as they are read."""

MOST_BITS = 64
"""Bits of a number."""

_FEW, _BYTES_EACH = 10_000, 4
"""Lists, dictionaries and values to be shared that any pickle may have, and bytes of a pickle for each further one.

Those of PyTorch have one for 14 bytes. One that is made by a byte takes 25 times the memory of these 4.
"""

_LOADED = (
    "PROTO", "FRAME", "STOP", "MARK", "NONE", "NEWTRUE", "NEWFALSE", "INT", "LONG", "BININT", "BININT1", "BININT2",
    "LONG1", "FLOAT", "BINFLOAT", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "EMPTY_LIST",
    "LIST", "APPEND", "APPENDS", "EMPTY_DICT", "DICT", "SETITEM", "SETITEMS", "EMPTY_TUPLE", "TUPLE", "TUPLE2",
    "TUPLE3", "GET", "BINGET", "LONG_BINGET", "PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE",
    "GLOBAL", "STACK_GLOBAL",
)  # fmt: skip
"""Instructions that are followed; the last two name a class, which is an error with its name."""

_COUNTED = ("EMPTY_LIST", "LIST", "EMPTY_DICT", "DICT", "PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE")
_NUMBERS = ("INT", "LONG", "LONG1")
_KEYS = {"DICT": slice(None, None, 2), "SETITEMS": slice(None, None, 2), "SETITEM": slice(-2, -1)}
"""Places of keys on the stack."""

_CODES = {each.name: ord(each.code) for each in pickletools.opcodes}
_Reader: Any = pickle._Unpickler  # noqa: SLF001 the one whose instructions are a table
_Load = Callable[[Any], None]


class RefusedPickle(UsageError):
    """A pickle with more than plain values, or a damaged one."""


def _counted(load: _Load) -> _Load:
    """Instruction that makes an object, of which a pickle has a limited number."""

    def load_counted(reader: _PlainReader) -> None:
        reader.left -= 1
        if reader.left < 0:
            most = f"{_FEW:,} and one for {_BYTES_EACH} of its {reader.size:,} bytes"
            raise RefusedPickle(f"it has more lists, dictionaries and shared values than {most}")
        load(reader)

    return load_counted


def _bounded(load: _Load) -> _Load:
    """Instruction that makes a number."""

    def load_bounded(reader: _PlainReader) -> None:
        load(reader)
        if (bits := reader.stack[-1].bit_length()) > MOST_BITS:
            raise RefusedPickle(f"it has a number of {bits:,} bits, and at most {MOST_BITS} are read")

    return load_bounded


def _named(load: _Load, keys: slice) -> _Load:
    """Instruction that adds to a dictionary. Other keys than texts may take endless time to hash or to compare."""

    def load_named(reader: _PlainReader) -> None:
        for key in reader.stack[keys]:
            if type(key) is not str:
                raise RefusedPickle(f"it has a dictionary with a key of the type {type(key).__name__}, and not a text")
        load(reader)

    return load_named


_INSTRUCTIONS: dict[str, _Load] = {name: _Reader.dispatch[_CODES[name]] for name in _LOADED}
_INSTRUCTIONS |= {name: _bounded(_INSTRUCTIONS[name]) for name in _NUMBERS}
_INSTRUCTIONS |= {name: _named(_INSTRUCTIONS[name], keys) for name, keys in _KEYS.items()}
_INSTRUCTIONS |= {name: _counted(_INSTRUCTIONS[name]) for name in _COUNTED}


class _PlainReader(_Reader):  # type: ignore[misc]
    """Reader without the instructions that import, call or build objects."""

    dispatch: ClassVar[Any] = {_CODES[name]: load for name, load in _INSTRUCTIONS.items()}

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self.size = len(data)
        self.left = _FEW + self.size // _BYTES_EACH

    def find_class(self, module: str, name: str) -> NoReturn:
        """Refuse a class."""
        raise RefusedPickle(f"it has the class {_shown(f'{module}.{name}')}, which is not loaded")

    def load_mark(self) -> None:
        """Begin a list, a tuple or a dictionary. Raises `RefusedPickle` for too many in one another."""
        if len(self.metastack) >= MOST_NESTED:
            raise RefusedPickle(f"it has more than {MOST_NESTED} lists in one another")
        super().load_mark()

    def load_frame(self) -> None:
        """Skip the size of a frame, which is a part that is read at once: all has been read."""
        self.read(8)

    dispatch |= {_CODES["MARK"]: load_mark, _CODES["FRAME"]: load_frame}


def _shown(text: str) -> str:
    return repr(shorten(printable(text)))


def plain_values(data: bytes) -> Any:
    """Return the values of a pickle. Raises `RefusedPickle`."""
    try:
        return _PlainReader(data).load()
    except RefusedPickle:
        raise
    except KeyError as error:
        code = error.args[0] if error.args else None
        names = [name for name, number in _CODES.items() if number == code]
        if names:
            raise RefusedPickle(f"it has the instruction {names[0]}, and plain values need none") from error
        raise RefusedPickle("it is damaged") from error
    except Exception as error:  # each instruction fails in its own way on damaged data
        raise RefusedPickle(f"it is damaged: {_shown(str(error) or type(error).__name__)}") from error
