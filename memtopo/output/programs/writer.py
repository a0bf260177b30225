"""Text of a program's statements: the part that all languages share. Each language is a subclass of `Writer`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from memtopo.driver.functions import CONSTANTS, DMA_BUF, PLAIN_FLAGS, Constants
from memtopo.driver.types import Grant, HandleType, Location, PoolAttribute, PoolProperties, Properties
from memtopo.output.programs.expressions import divided, index_of, is_hint, linear, words_of_parts
from memtopo.output.programs.names import Names
from memtopo.output.programs.program import Program
from memtopo.output.programs.statements import Call, Cycle, Linear, Loop, Pass, Reference, Statement, Table

_PASSES = {
    "receive": "receive_from", "send": "send_to", "forget": "forget", "leave": "leave", "await": "await_importers",
}  # fmt: skip
_OPENS = ("ipc_open_mem_handle", "ipc_open_event_handle")
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

    def __init__(self, given: Program) -> None:
        self.program, self.names = given, Names(words_of_parts(self.suffix))
        self._encoders: tuple[tuple[type, Callable[[Any], str]], ...] = (
            (Properties, self.properties),
            (PoolProperties, self.pool_properties),
            (Location, self.location),
        )

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
                yield f"{indent}{_PASSES[action]}({self.quoted(peer) if peer else ''}){self.end}"
            case Call():
                yield from divided(f"{indent}{self.call(each)}{self.end}", indent, self.margin)

    def object(self, held: Reference) -> str:
        """Expression of an object: a variable, or an element of one."""
        name = self.names.variable(held)
        return name if held.number is None else f"{name}[{self.number(held.number)}]"

    def argument(self, method: str, name: str, values: Mapping[str, Any]) -> list[str]:
        """One argument of a call, or two for a list with its length. `values` are those of all arguments."""
        value = values[name]
        first = value.values[0] if isinstance(value, Cycle | Table) else value
        if isinstance(value, Reference):
            return [self.reference(method, value)]
        if name in ("shared", "data") or (name == "handle" and method in _OPENS):
            return [self.shared(method, fabric=values.get("kind") == HandleType.FABRIC)]
        if name == "value" and "attribute" in values:
            return [self.pool_attribute(value, wide=values["attribute"] is PoolAttribute.RELEASE_THRESHOLD)]
        if name == "grants":
            return [self._chosen(value, self.grants), str(len(first))]
        for kind, encode in self._encoders:
            if isinstance(first, kind):
                return [self._chosen(value, encode)]
        return [self._plain(method, name, value)]

    def number(self, value: Any) -> str:
        """A number, or an expression of `i`."""
        if isinstance(value, Linear):
            return linear(value, self.division, self.integer)
        if isinstance(value, Cycle | Table):
            return self._chosen(value, self.integer)
        return self.integer(value)

    def _plain(self, method: str, name: str, value: Any) -> str:
        if is_hint(method, name, value):
            return self.address(value)
        if isinstance(value, Linear | Table) or (isinstance(value, Cycle) and type(value.values[0]) is int):
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
        if not isinstance(value, Cycle | Table):
            return encode(value)
        return f"{self.listed(value.values, [encode(each) for each in value.values])}[{index_of(value)}]"

    @abstractmethod
    def loop(self, first: int, last: int) -> str:
        """Head of a loop of `i` from `first` to `last`, downwards if `last` is lower."""

    @abstractmethod
    def call(self, call: Call) -> str:
        """A call with its check, and the assignment of what it makes."""

    @abstractmethod
    def quoted(self, text: str) -> str:
        """A literal of a text."""

    @abstractmethod
    def integer(self, value: int) -> str:
        """A literal of a number, as it is read best."""

    @abstractmethod
    def address(self, value: int) -> str:
        """A literal of an address."""

    @abstractmethod
    def listed(self, values: Sequence[Any], texts: Sequence[str]) -> str:
        """A list of values of one type, whose literals are `texts`."""

    @abstractmethod
    def constant(self, constants: Constants, name: str, value: Any) -> str:
        """A value of an enumeration of `cuda.h`, as the argument of that name."""

    @abstractmethod
    def reference(self, method: str, held: Reference) -> str:
        """An object, or an address in one, as an argument."""

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
