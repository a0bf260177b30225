"""A process of a program: it makes calls of C functions in text, and names what they return by symbols.

Answers have no address or handle in them: `ok r0+2M 4M`, or the error. Numbers that identify something are numbered in
the order in which they appear. The module is a program, too: the second process of a program.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from tests.programs.notation import (
    ADDRESSES,
    CLOSES,
    CLOSING,
    HANDLES,
    IDS,
    OPENS,
    SIGNATURES,
    WITH_CONTEXT,
    access_of,
    location_of,
    number_of,
    pool_of,
    properties_of,
    properties_text,
    size_text,
)

OK = "ok"
UNDEFINED = "undefined"
"""Answer of a call that uses a symbol without a value."""
_UNTOUCHED = 0xA5
_ROOM = 64
_BLOB = ctypes.c_char * _ROOM
_WORDS = (1 << 64) - 1
_UNKNOWN_SIZE = "64M"
"""Size of memory of another process, as far as places in it are named."""


class _Handle(ctypes.Structure):
    """A structure of 64 bytes, which is passed by value."""

    _fields_ = (("data", _BLOB),)


class _Result(NamedTuple):
    """Memory for a result, and its type."""

    kind: str
    memory: Any

    @property
    def word(self) -> int:
        return int.from_bytes(self.memory.raw[:8], "little")


class Region(NamedTuple):
    """Addresses of a symbol."""

    start: int
    size: int
    symbol: str


class Names:
    """Symbols of a process: the values that they stand for, and what a value is called."""

    def __init__(self) -> None:
        self.values: dict[str, int] = {}
        self.regions: list[Region] = []
        self._handles: dict[tuple[str, int], str] = {}
        self._ids: dict[int, dict[int, str]] = {}

    def value(self, text: str) -> int:
        """Return the value of a number, or of a symbol with an offset. Raises `KeyError`."""
        if text[0].isdigit() or text[0] == "-":
            return number_of(text)
        symbol, _, offset = text.partition("+")
        return self.values[symbol] + number_of(offset or "0")

    def bind(self, symbol: str, value: int) -> None:
        """Give a symbol its value; the symbol is what the value is called from now on."""
        self.values[symbol] = value
        self._handles.pop((symbol[0], value), None)
        self._handles[symbol[0], value] = symbol

    def handle(self, value: int, letters: str = "") -> str:
        """Name of a handle, of symbols with one of the letters."""
        if not value:
            return "0"
        known = reversed(self._handles.items())
        return next((name for (letter, of), name in known if of == value and (not letters or letter in letters)), "?")

    def address(self, value: int) -> str:
        """Name of an address: the symbol of the newest region around it, and the offset."""
        if not value:
            return "0"
        for start, size, symbol in reversed(self.regions):
            if start <= value < start + size:
                return symbol + (f"+{size_text(value - start)}" if value > start else "")
        return "?"

    def forget(self, start: int) -> None:
        """Remove the newest region that begins at an address."""
        found = [each for each in self.regions if each.start == start]
        if found:
            self.regions.remove(found[-1])

    def id(self, attribute: int, value: int) -> str:
        """Name of a number that identifies something."""
        known = self._ids.setdefault(attribute, {})
        return known.setdefault(value, f"#{len(known) + 1}")


class Process:
    """Process of a program, with the primary context of GPU 0 retained once and nothing current."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        self.names = Names()
        self.blobs: dict[str, bytes] = {}
        self.fds: dict[str, int] = {}
        self._open: dict[tuple[str, int], tuple[int, int]] = {}
        self._files: list[mmap.mmap] = []
        self._retains = 0

    def begin(self) -> None:
        """Initialise the driver, and retain the context."""
        for call in ("cuInit 0", "p0 = cuDevicePrimaryCtxRetain 0"):
            if (answer := self.make(call)) != OK:
                raise RuntimeError(f"{call}: {answer}")

    def make(self, line: str) -> str:
        """Make a call; return its answer."""
        target, _, call = line.rpartition(" = ")
        name, *words = call.split()
        try:
            special: Callable[..., str] | None = _SPECIAL.get(name)
            return special(self, target, *words) if special else self._called(target, name, words)
        except KeyError:
            return UNDEFINED

    def finish(self) -> str:
        """End what is open, and restore the state of `begin`; returns `ok`, or what was refused."""
        while not self.library.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p())):
            pass
        self._restore_context()
        refused = [each for kind in CLOSING for each in self._end(kind)]
        self.library.cuCtxSetCurrent(None)
        self.close()
        context, self.names = self.names.values["p0"], Names()
        self.names.bind("p0", context)
        return f"refused {', '.join(refused)}" if refused else OK

    def close(self) -> None:
        """Forget handles that travel, and close descriptors."""
        for fd in self.fds.values():
            os.close(fd)
        self.fds, self.blobs = {}, {}

    def _restore_context(self) -> None:
        while self._retains > 1:
            self.make("cuDevicePrimaryCtxRelease_v2 0")
        if not self._retains:
            self.make("p0 = cuDevicePrimaryCtxRetain 0")
        self.make("cuDevicePrimaryCtxSetFlags_v2 0 0")
        self.make("cuCtxPushCurrent_v2 p0")

    def _end(self, kind: str) -> Iterator[str]:
        """End what is open of a kind; yields the errors."""
        for key in [key for key in self._open if key[0] == kind]:
            count, size = self._open.pop(key)
            more = [size] if kind in {"mapped", "reserved"} else [0] if kind == "pooled" else []
            for _ in range(count):
                if code := getattr(self.library, CLOSING[kind])(*map(ctypes.c_uint64, [key[1], *more])):
                    yield f"{kind} {self.status(code)}"
        self.library.cuCtxSynchronize()

    def status(self, code: int) -> str:
        """Name of an error, or `ok`."""
        name = ctypes.c_char_p()
        self.library.cuGetErrorName(code, ctypes.byref(name))
        return (name.value or b"?").decode().removeprefix("CUDA_ERROR_") if code else OK

    def _called(self, target: str, name: str, words: Sequence[str]) -> str:
        given, arguments, results = iter(words), list[Any](), list[_Result]()
        for kind in SIGNATURES[name].split():
            if kind[0] == ">":
                results.append(_Result(kind[1:], ctypes.create_string_buffer(bytes([_UNTOUCHED]) * _ROOM, _ROOM)))
                arguments.append(results[-1].memory)
            else:
                arguments += _ARGUMENTS[kind](self, next(given))
        if code := getattr(self.library, name)(*arguments):
            return self.status(code)
        made = next((each.word for each in results if each.kind in "ha"), None)
        self._note(name, words, made)
        shown = [_SHOWN[each.kind](self, target, name, words, each) for each in results]
        return " ".join([OK, *filter(None, shown)])

    def _note(self, name: str, words: Sequence[str], made: int | None) -> None:
        """Note what a call has opened or ended."""
        if name == "cuDevicePrimaryCtxRetain":
            self._retains += 1
        elif name == "cuDevicePrimaryCtxRelease_v2":
            self._retains -= 1
            if not self._retains:
                self._open = {key: each for key, each in self._open.items() if key[0] not in WITH_CONTEXT}
        elif name == "cuMemUnmap":
            start = self.names.value(words[0])
            for key in [key for key in self._open if key[0] == "mapped" and 0 <= key[1] - start < number_of(words[1])]:
                del self._open[key]
        elif name in CLOSES:
            self._note_end(CLOSES[name], self.names.value(words[0]))
        elif name in OPENS:
            kind, size_at = OPENS[name]
            key = kind, self.names.value(words[0]) if made is None else made
            count, size = self._open.pop(key, (0, 0))
            if key[1]:
                self._open[key] = count + 1, size if size_at is None else number_of(words[size_at])

    def _note_end(self, kind: str, value: int) -> None:
        count, size = self._open.pop((kind, value), (0, 0))
        if count > 1:
            self._open[kind, value] = count - 1, size
        if kind not in {"chunk", "pool", "event", "stream", "context", "registered"}:
            self.names.forget(value)


def _blob(process: Process, word: str) -> Any:
    return _BLOB.from_buffer_copy(process.blobs[word])


def _grants(_: Process, word: str) -> list[Any]:
    data, count = access_of(word)
    return [ctypes.create_string_buffer(data, len(data) + 1), ctypes.c_size_t(count)]


_ARGUMENTS: dict[str, Callable[[Process, str], list[Any]]] = {
    "i": lambda process, word: [ctypes.c_int(process.names.value(word))],
    "q": lambda process, word: [ctypes.c_uint64(process.names.value(word) & _WORDS)],
    "Q": lambda process, word: [ctypes.byref(ctypes.c_uint64(process.names.value(word)))],
    "d": lambda process, word: [ctypes.c_void_p(process.fds[word])],
    "b": lambda process, word: [_blob(process, word)],
    "B": lambda process, word: [_Handle.from_buffer_copy(process.blobs[word])],
    "x": lambda _, word: [bytes.fromhex(word), ctypes.c_size_t(len(word) // 2)],
    "P": lambda _, word: [ctypes.create_string_buffer(properties_of(word))],
    "O": lambda _, word: [ctypes.create_string_buffer(pool_of(word))],
    "A": _grants,
    "L": lambda _, word: [ctypes.byref(ctypes.c_uint64(location_of(word)))],
    "l": lambda _, word: [ctypes.c_uint64(location_of(word))],
}
"""Arguments of a call, by the type of a parameter."""


def _show_handle(process: Process, target: str, _: str, __: Sequence[str], result: _Result) -> str:
    """Name a new handle, or say what a handle is called; a chunk that is imported again keeps its handle."""
    known = process.names.handle(result.word, target[:1])
    if not target:
        return known
    process.names.bind(target, result.word)
    return known if target[0] == "c" and known not in {"?", target} else ""


def _show_address(process: Process, target: str, name: str, words: Sequence[str], result: _Result) -> str:
    known = process.names.address(result.word)
    if not target:
        return known
    size = words[0] if SIGNATURES[name].startswith(">a q") and words[0][0].isdigit() else _UNKNOWN_SIZE
    process.names.bind(target, result.word)
    process.names.regions.append(Region(result.word, number_of(size), target))
    if not result.word:
        return "null"
    is_again = name == "cuIpcOpenMemHandle_v2" and known != "?" and "+" not in known
    return f"again {known}" if is_again else ""


def _take_blob(process: Process, target: str, _: str, __: Sequence[str], result: _Result) -> str:
    process.blobs[target] = result.memory.raw
    return ""


def _take_descriptor(process: Process, target: str, _: str, __: Sequence[str], result: _Result) -> str:
    process.fds[target] = result.word & 0xFFFF_FFFF
    return ""


def attribute_text(process: Process, attribute: int, data: bytes) -> str:
    """Text of an attribute of a pointer: the number of bytes that were written, and the value."""
    width = max((at + 1 for at, byte in enumerate(data) if byte != _UNTOUCHED), default=0)
    word = int.from_bytes(data[:8], "little")
    if not width:
        return "untouched"
    if attribute in ADDRESSES:
        return f"8:{process.names.address(word)}"
    if attribute in HANDLES:
        return f"8:{process.names.handle(word, HANDLES[attribute])}"
    if attribute in IDS:
        return f"8:{process.names.id(attribute, word) if word else 0}"
    return f"{width}:{int.from_bytes(data[:width], 'little')}"


_SHOWN: dict[str, Callable[[Process, str, str, Sequence[str], _Result], str]] = {
    "i": lambda *given: str(ctypes.c_int(given[-1].word & 0xFFFF_FFFF).value),
    "u": lambda *given: str(given[-1].word & 0xFFFF_FFFF),
    "q": lambda *given: size_text(given[-1].word),
    "_": lambda *_: "",
    "P": lambda *given: properties_text(given[-1].memory.raw),
    "w": lambda *given: attribute_text(given[0], 0, given[-1].memory.raw),
    "p": lambda *given: attribute_text(given[0], number_of(given[3][0]), given[-1].memory.raw),
    "t": lambda *given: given[-1].memory.value.decode().replace(" ", "_"),
    "l": lambda *given: str(len(given[-1].memory.value)),
    "b": _take_blob,
    "d": _take_descriptor,
    "h": _show_handle,
    "a": _show_address,
}
"""Text of a result, by its type."""


def _map(process: Process, target: str, size: str) -> str:
    """Map memory of the program itself."""
    process._files.append(memory := mmap.mmap(-1, number_of(size)))
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    process.names.bind(target, address)
    process.names.regions.append(Region(address, number_of(size), target))
    return OK


def _close(process: Process, _: str, fd: str) -> str:
    os.close(process.fds.pop(fd))
    return OK


def _attributes(process: Process, _: str, attributes: str, place: str) -> str:
    numbers = [number_of(each) for each in attributes.split(",")]
    rooms = [ctypes.create_string_buffer(bytes([_UNTOUCHED]) * _ROOM, _ROOM) for _ in numbers]
    pointers = (ctypes.c_void_p * len(numbers))(*map(ctypes.addressof, rooms))
    address = ctypes.c_uint64(process.names.value(place))
    given = len(numbers), (ctypes.c_int * len(numbers))(*numbers), pointers, address
    if code := process.library.cuPointerGetAttributes(*given):
        return process.status(code)
    return " ".join(
        [OK, *(attribute_text(process, *each) for each in zip(numbers, (r.raw for r in rooms), strict=True))]
    )


def _range_attribute(process: Process, _: str, length: str, attribute: str, place: str, size: str) -> str:
    found = (ctypes.c_int * _ROOM)()
    given = number_of(attribute), ctypes.c_uint64(process.names.value(place)), ctypes.c_size_t(number_of(size))
    if code := process.library.cuMemRangeGetAttribute(found, ctypes.c_size_t(number_of(length)), *given):
        return process.status(code)
    return " ".join([OK, *map(str, found[: number_of(length) // 4])])


def _read(process: Process, _: str, place: str, size: str) -> str:
    found = ctypes.create_string_buffer(number_of(size) + 1)
    given = found, ctypes.c_uint64(process.names.value(place)), ctypes.c_size_t(number_of(size))
    code = process.library.cuMemcpyDtoH_v2(*given)
    return process.status(code) if code else f"ok {found.raw[: number_of(size)].hex()}".rstrip()


_SPECIAL: dict[str, Callable[..., str]] = {
    "mmap": _map, "close": _close, "cuPointerGetAttributes": _attributes, "cuMemRangeGetAttribute": _range_attribute,
    "cuMemcpyDtoH_v2": _read,
}  # fmt: skip
"""Calls that are more than one function with its parameters in order."""
