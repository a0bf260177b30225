"""Pickles of plain values: numbers, texts, lists, tuples and dictionaries. Nothing in them is executed."""

from __future__ import annotations

import io
import pickle
import pickletools
from typing import Any, ClassVar, NoReturn

from memtopo.common.errors import UsageError
from memtopo.common.text import printable
from memtopo.common.units import shorten

MOST_NESTED = 64
"""Lists, tuples and dictionaries in one another, as far as they are read."""

_PLAIN = (
    "PROTO", "FRAME", "STOP", "MARK", "NONE", "NEWTRUE", "NEWFALSE", "INT", "LONG", "BININT", "BININT1", "BININT2",
    "LONG1", "LONG4", "FLOAT", "BINFLOAT", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "EMPTY_LIST",
    "LIST", "APPEND", "APPENDS", "EMPTY_DICT", "DICT", "SETITEM", "SETITEMS", "EMPTY_TUPLE", "TUPLE", "TUPLE1",
    "TUPLE2", "TUPLE3", "GET", "BINGET", "LONG_BINGET", "PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE", "POP",
    "POP_MARK",
)  # fmt: skip
_CLASSES = ("GLOBAL", "STACK_GLOBAL")
"""Instructions that name a class, which is an error with its name."""

_Reader: Any = pickle._Unpickler  # noqa: SLF001 the one whose instructions are a table


class RefusedPickle(UsageError):
    """A pickle with more than plain values, or a damaged one."""


class _PlainReader(_Reader):  # type: ignore[misc]
    """Reader without the instructions that import, call or build objects."""

    dispatch: ClassVar[Any] = {
        ord(each.code): _Reader.dispatch[ord(each.code)]
        for each in pickletools.opcodes
        if each.name in (*_PLAIN, *_CLASSES)
    }

    def find_class(self, module: str, name: str) -> NoReturn:
        """Refuse a class."""
        raise RefusedPickle(f"it has the class {_shown(f'{module}.{name}')}, which is not loaded")

    def load_mark(self) -> None:
        """Begin a list, a tuple or a dictionary. Raises `RefusedPickle` for too many in one another."""
        if len(self.metastack) >= MOST_NESTED:
            raise RefusedPickle(f"it has more than {MOST_NESTED} lists in one another")
        super().load_mark()

    dispatch[pickle.MARK[0]] = load_mark


def _shown(text: str) -> str:
    return repr(shorten(printable(text)))


def plain_values(data: bytes) -> Any:
    """Return the values of a pickle. Raises `RefusedPickle`."""
    try:
        return _PlainReader(io.BytesIO(data)).load()
    except RefusedPickle:
        raise
    except KeyError as error:
        code = error.args[0] if error.args else None
        names = {ord(each.code): each.name for each in pickletools.opcodes}
        if code in names:
            raise RefusedPickle(f"it has the instruction {names[code]}, and plain values need none") from error
        raise RefusedPickle("it is damaged") from error
    except Exception as error:  # each instruction fails in its own way on damaged data
        raise RefusedPickle(f"it is damaged: {_shown(str(error) or type(error).__name__)}") from error
