"""Text of a program's statements: the part that all languages share. Each language is a subclass of `Writer`."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib import resources
from itertools import chain, count
from typing import Any, ClassVar

from memtopo.driver.functions import DMA_BUF
from memtopo.driver.types import Grant, HandleType, Location, PoolAttribute, PoolProperties, Properties
from memtopo.driver.values import CONSTANTS, PLAIN_FLAGS, Constants
from memtopo.output.calls import TEST
from memtopo.output.programs import Program
from memtopo.output.programs.statements import Call, Cycle, Linear, Listed, Loop, Operand, Pass, Statement, Variable

_PASSES = {
    "receive": "receive_from", "send": "send_to", "close": "close_handle", "discard": "close_handle",
    "leave": "leave", "await": "await_importers",
}  # fmt: skip
OPENS = ("ipc_open_mem_handle", "ipc_open_event_handle")
"""Calls whose `handle` is a shareable one."""


class Writer(ABC):
    """One program in one language, and the names that its statements use."""

    suffix: ClassVar[str]
    """Suffix of the files with the parts of every program."""
    margin: ClassVar[str]
    """Indentation of the further lines of a long statement."""
    division: ClassVar[str]
    """Operator of a division without rest."""
    end: ClassVar[str] = ""
    """End of a statement."""
    block_end: ClassVar[str] = ""
    """Line that ends a loop; empty for none."""
    dma_buf: ClassVar[str]
    """Constant of dma-bufs."""
    comment: ClassVar[str]
    """Form of a comment behind a statement."""
    quote: ClassVar[str]
    """Sign on both sides of a text."""
    wide: ClassVar[str] = ""
    """End of a literal of 64 bits."""

    def __init__(self, given: Program) -> None:
        self.program, self.names = given, Names(words_of_parts(self.suffix))

    @abstractmethod
    def lines(self) -> Iterator[str]:
        """All lines of the program."""

    def statement(self, each: Statement, indent: str) -> Iterator[str]:
        """Lines of a statement."""
        match each:
            case Loop(first, last, body):
                yield f"{indent}{self.loop(first, last)}"
                for inner in body:
                    yield from self.statement(inner, f"{indent}    ")
                yield from [f"{indent}{self.block_end}"] * bool(self.block_end)
            case Pass(action, peer):
                note = self.comment.format(TEST) if action == "discard" else ""
                yield f"{indent}{_PASSES[action]}({self.quoted(peer) if peer else ''}){self.end}{note}"
            case Call():
                yield from divided(f"{indent}{self.call(each)}{self.end}", indent, self.margin)

    def object(self, held: Operand) -> str:
        """Expression of an object: a variable, or an element of one."""
        name = self.names.variable(held)
        return name if held.number is None else f"{name}[{self.number(held.number)}]"

    def argument(self, method: str, name: str, values: Mapping[str, Any]) -> list[str]:
        """One argument of a call, or two for a list with its length. `values` are those of all arguments."""
        value = values[name]
        first = value.values[0] if isinstance(value, Cycle | Listed) else value
        if isinstance(value, Operand):
            return [self.reference(method, value)]
        if name in ("shared", "data") or (name == "handle" and method in OPENS):
            return [self.shared(method, fabric=values.get("kind") == HandleType.FABRIC)]
        if name == "value" and "attribute" in values:
            return [self.pool_attribute(value, wide=values["attribute"] is PoolAttribute.RELEASE_THRESHOLD)]
        if name == "grants":
            return [self._chosen(value, self.grants), str(len(first))]
        encoders: dict[type, Callable[[Any], str]] = {Properties: self.properties, PoolProperties: self.pool_properties}
        if encode := (encoders | {Location: self.location}).get(type(first)):
            return [self._chosen(value, encode)]
        return [self._plain(method, name, value)]

    def number(self, value: Any) -> str:
        """A number, or an expression of `i`."""
        if isinstance(value, Linear):
            return linear(value, self.division, self.integer)
        if isinstance(value, Cycle | Listed):
            return self._chosen(value, self.integer)
        return self.integer(value)

    def _plain(self, method: str, name: str, value: Any) -> str:
        # The address that a range asks for is written as an address and not as a size.
        if method == "mem_address_reserve" and name == "address" and type(value) is int and value > 0:
            return f"{value:#x}{self.wide}"
        if isinstance(value, Linear | Listed) or (isinstance(value, Cycle) and type(value.values[0]) is int):
            return self.number(value)
        if isinstance(value, Cycle):
            return self._chosen(value, lambda each: self._plain(method, name, each))
        if value == DMA_BUF:
            return self.dma_buf
        constants = PLAIN_FLAGS.get(method) if name == "flags" else None
        constants = constants or CONSTANTS.get(type(value))
        return self.constant(constants, name, value) if constants else self.integer(int(value))

    def _chosen(self, value: Any, encode: Callable[[Any], str]) -> str:
        """A value, or one of several by the loop's variable."""
        if not isinstance(value, Cycle | Listed):
            return encode(value)
        return f"{self.array(value.values, [encode(each) for each in value.values])}[{index_of(value)}]"

    def quoted(self, text: str) -> str:
        """A literal of a text."""
        return f"{self.quote}{text}{self.quote}"

    def integer(self, value: int) -> str:
        """A literal of a number: a multiple of KiB, MiB or GiB if it is one."""
        in_units = (f"{value >> shift} * {unit}" for shift, unit in _UNITS if value and not value % (1 << shift))
        return next(in_units, f"{value}{self.wide if value > _SMALL else ''}")

    def reference(self, method: str, held: Operand) -> str:
        """An object, or an address in one, as an argument."""
        del method
        return self.object(held) + ("" if held.offset in (None, 0) else f" + {self.number(held.offset)}")

    @abstractmethod
    def loop(self, first: int, last: int) -> str:
        """Head of a loop of `i` from `first` to `last`, downwards if `last` is lower."""

    @abstractmethod
    def call(self, call: Call) -> str:
        """A call with its check, and the assignment of what it makes."""

    @abstractmethod
    def array(self, values: Sequence[Any], texts: Sequence[str]) -> str:
        """A list of values of one type, whose literals are `texts`."""

    @abstractmethod
    def constant(self, constants: Constants, name: str, value: Any) -> str:
        """A value of an enumeration of `cuda.h`, as the argument of that name."""

    @abstractmethod
    def shared(self, method: str, *, fabric: bool) -> str:
        """The shareable handle at hand, as an argument; `fabric` for one of bytes by the call's kind of handle."""

    @abstractmethod
    def pool_attribute(self, value: int, *, wide: bool) -> str:
        """Value of an attribute of a pool, of 64 bits if `wide`."""

    @abstractmethod
    def properties(self, value: Properties) -> str:
        """Properties of a chunk, as an argument."""

    @abstractmethod
    def pool_properties(self, value: PoolProperties) -> str:
        """Properties of a pool, as an argument."""

    @abstractmethod
    def location(self, value: Location) -> str:
        """A location, as an argument."""

    @abstractmethod
    def grants(self, value: Sequence[Grant]) -> str:
        """A list of access to grant, as an argument."""


_OTHER = re.compile(r"[^A-Za-z0-9]+")


class Names:
    """Identifiers by what they name; one that is reserved or has another use gets a number."""

    def __init__(self, reserved: Iterable[str] = ()) -> None:
        self._found: dict[Hashable, str] = {}
        self._taken = set(reserved)

    def identifier(self, key: Hashable, wanted: str) -> str:
        """Return the identifier of a key, as near to the wanted one as there is."""
        if key not in self._found:
            plain = _OTHER.sub("_", wanted).strip("_")
            numbered = (f"{plain}_{number}" for number in count(2))
            self._found[key] = next(name for name in chain((plain,), numbered) if name not in self._taken)
            self._taken.add(self._found[key])
        return self._found[key]

    def variable(self, held: Variable | Operand) -> str:
        """Identifier of the objects of an entry: `chunk_page`."""
        return self.identifier((held.kind, held.entry), f"{held.kind}_{held.entry}")


def word_of(value: object) -> str:
    """Words for a constant's identifier: `gpu0_fd` for properties, `gpu0_rw_gpu1_r` for access."""
    if isinstance(value, Properties):
        return " ".join((str(value.location), *value.words))
    if isinstance(value, PoolProperties):
        return f"{value.location} {' '.join(value.handles.words)}"
    if isinstance(value, tuple) and not hasattr(value, "kind"):
        return " ".join(f"{each.location} {each.access.word}" for each in value)
    return str(value)


WIDTH = 110
_UNITS = ((30, "GiB"), (20, "MiB"), (10, "KiB"))
_SMALL = 1 << 15
"""Largest number whose product with a loop's variable surely is an int."""


def linear(value: Linear, divide: str, integer: Callable[[int], str]) -> str:
    """Expression of `i`; `divide` is the operator of a division without rest."""
    base = integer(value.base) if value.base else ""
    index = f"i % {value.every}" if value.every else "i"
    outer = f"i {divide} {value.every}" if value.every else "i"
    return _sum(base, _product(index, value.step, integer), _product(outer, value.outer, integer))


def index_of(value: Cycle | Listed) -> str:
    """Index of the value that is chosen for `i`."""
    if isinstance(value, Cycle):
        return f"i % {len(value.values)}"
    return f"i - {value.first}" if value.first else "i"


def _product(variable: str, factor: int, integer: Callable[[int], str]) -> str:
    """A multiple of an expression; empty for none."""
    if factor in (0, 1):
        return variable * factor
    text = f"({variable})" if " " in variable else variable
    return f"-{text}" if factor == -1 else f"{'-' * (factor < 0)}{integer(abs(factor))} * {text}"


def _sum(*terms: str) -> str:
    """The sum of terms, without empty ones."""
    first, *others = [each for each in terms if each] or ["0"]
    return first + "".join(f" - {each[1:]}" if each.startswith("-") else f" + {each}" for each in others)


_PARTS = resources.files("memtopo.output.programs").joinpath("parts")


def program_part(name: str) -> list[str]:
    """A part of every program, from its file, after an empty line."""
    return ["", *_PARTS.joinpath(name).read_text().rstrip().splitlines()]


@cache
def words_of_parts(suffix: str) -> frozenset[str]:
    """Words in the parts of a language, among them all identifiers, which no object may have."""
    texts = [each.read_text() for each in _PARTS.iterdir() if each.name.endswith(suffix)]
    return frozenset(word for text in texts for word in re.findall(r"[A-Za-z_]\w*", text))


def divided(line: str, indent: str, further: str) -> Iterator[str]:
    """A statement in lines that are not too long, divided after commas; the others are indented `further`."""
    while len(line) > WIDTH and (at := line.rfind(", ", len(indent) + 8, WIDTH)) > 0:
        yield line[: at + 1]
        line = f"{indent}{further}{line[at + 2 :]}"
    yield line
