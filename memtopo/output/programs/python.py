"""Programs in Python: one file that needs cuda-python alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from memtopo.driver.functions import CONSTANTS, DMA_BUF, PLAIN_FLAGS, function
from memtopo.driver.types import (
    Access,
    HandleType,
    HostFlags,
    Location,
    LocationKind,
    PoolAttribute,
    PoolProperties,
    Properties,
)
from memtopo.output.programs.expressions import divided, in_units, index_of, is_hint, linear, part, words_of_parts
from memtopo.output.programs.names import Names
from memtopo.output.programs.program import Program
from memtopo.output.programs.statements import (
    Call,
    Cycle,
    Linear,
    Loop,
    Pass,
    Reference,
    Section,
    Statement,
    Table,
    Variable,
)

_PASSES = {
    "receive": "receive_from", "send": "send_to", "forget": "forget", "leave": "leave", "await": "await_importers",
}  # fmt: skip
_STRUCTS = {
    "ipc_open_mem_handle": "CUipcMemHandle",
    "ipc_open_event_handle": "CUipcEventHandle",
    "mem_pool_import_pointer": "CUmemPoolPtrExportData",
}
"""Structs of the bytes of a shareable handle."""
_SIMPLE_HANDLES = (HandleType.NONE, HandleType.FD, HandleType.FABRIC)


def program(given: Program) -> str:
    """Text of the program."""
    return "".join(f"{line}\n" for line in _Writer(given).lines())


class _Writer:
    """One program, and the names that its statements use."""

    def __init__(self, given: Program) -> None:
        self._program, self._names = given, Names(words_of_parts(".py.txt"))
        self._encoders: tuple[tuple[type, Callable[[Any], str]], ...] = (
            (Properties, _properties),
            (PoolProperties, _pool_properties),
            (Location, _location),
        )

    def lines(self) -> Iterator[str]:
        """All lines of the program."""
        given = self._program
        yield from (f'"""{given.title}', "", *given.about, "")
        yield from (f"pip install cuda-python; python {given.file}.py", '"""', "")
        yield from (f"import {name}" for name in self._modules())
        yield from ("", "from cuda.bindings import driver", "", *part("check.py.txt"))
        yield from (part("shared.py.txt") if given.shares else ())
        yield from (part("sockets.py.txt") if given.peers else ())
        yield from ("", "", "call(driver.cuInit, 0)")
        if given.peers:
            others = f"exporters={list(given.exporters)!r}, importers={list(given.importers)!r}"
            yield f"connect({given.process!r}, {others})"
        yield from map(self._declared, (each for each in given.variables if each.count))
        yield from self._sections([each for each in given.sections if not each.undo])
        yield from ("", f'print("{given.name}: built", flush=True)', "# Use the memory here.")
        yield from self._sections([each for each in given.sections if each.undo])
        yield from ("", f'print("{given.name}: taken down")')

    def _modules(self) -> list[str]:
        names = {"ctypes"}
        names |= {"os"} if self._program.shares else set()
        names |= {"socket", "time"} if self._program.peers else set()
        return sorted(names)

    def _declared(self, variable: Variable) -> str:
        return f"{self._names.variable(variable)} = [0] * {variable.count}"

    def _sections(self, sections: Sequence[Section]) -> Iterator[str]:
        for section in sections:
            yield from ("", f"# {section.phase}")
            for each in section.statements:
                yield from self._statement(each, "")

    def _statement(self, each: Statement, indent: str) -> Iterator[str]:
        match each:
            case Loop(first, last, body):
                bounds = [f"{last + 1}"] if first == 0 and first <= last else [str(first), str(last + 1)]
                bounds = [str(first), str(last - 1), "-1"] if first > last else bounds
                yield f"{indent}for i in range({', '.join(bounds)}):"
                for inner in body:
                    yield from self._statement(inner, f"{indent}    ")
            case Pass(action, peer):
                yield f"{indent}{_PASSES[action]}({repr(peer) if peer else ''})"
            case Call():
                yield from divided(f"{indent}{self._assigned(each)}", indent, "    ")

    def _assigned(self, call: Call) -> str:
        made = self._call(call)
        if call.made is None:
            return made
        if call.made.kind == "shared" and dict(call.arguments).get("kind") != HandleType.FABRIC:
            return f"shared.fd = int({made})"
        if call.made.kind in ("shared", "secret"):
            return f"shared.bytes = bytes_of({made})"
        return f"{self._object(call.made)} = int({made})"

    def _call(self, call: Call) -> str:
        values = dict(call.arguments)
        found = [text for name in function(call.method).arguments for text in self._argument(call.method, name, values)]
        return f"call({', '.join((f'driver.{function(call.method).name}', *found))})"

    def _object(self, held: Reference) -> str:
        name = self._names.variable(held)
        return name if held.number is None else f"{name}[{_number(held.number)}]"

    def _argument(self, method: str, name: str, values: Mapping[str, Any]) -> list[str]:
        value = values[name]
        first = value.values[0] if isinstance(value, Cycle | Table) else value
        if isinstance(value, Reference):
            return [self._reference(value)]
        if name in ("shared", "data") or (name == "handle" and method in _STRUCTS):
            return [_shared(method, values)]
        if name == "value" and "attribute" in values:
            size = values["attribute"] is PoolAttribute.RELEASE_THRESHOLD
            return [f"driver.cuuint64_t({_integer(value)})" if size else str(value)]
        if name == "grants":
            return [_chosen(value, _grants), str(len(first))]
        for kind, encode in self._encoders:
            if isinstance(first, kind):
                return [_chosen(value, encode)]
        return [_plain(method, name, value)]

    def _reference(self, held: Reference) -> str:
        offset = "" if held.offset in (None, 0) else f" + {_number(held.offset)}"
        return f"{self._object(held)}{offset}"


def _shared(method: str, values: Mapping[str, Any]) -> str:
    if struct := _STRUCTS.get(method):
        return f"struct_of(driver.{struct}(), shared.bytes)"
    return "bytearray(shared.bytes)" if values.get("kind") == HandleType.FABRIC else "shared.fd"


def _plain(method: str, name: str, value: Any) -> str:
    if is_hint(method, name, value):
        return f"{value:#x}"
    if isinstance(value, Linear | Table) or (isinstance(value, Cycle) and type(value.values[0]) is int):
        return _number(value)
    if isinstance(value, Cycle):
        return _chosen(value, lambda each: _plain(method, name, each))
    if value == DMA_BUF:
        return f"driver.CUmemRangeHandleType.{DMA_BUF}"
    constants = PLAIN_FLAGS.get(method) if name == "flags" else None
    constants = constants or CONSTANTS.get(type(value))
    if not constants or not value:
        return _integer(int(value))
    text = constants.text(int(value), f"driver.{constants.type}." if constants.type else "driver.")
    return " | ".join(f"{each}.value" for each in text.split(" | ")) if _is_number(name, value) else text


def _is_number(name: str, value: Any) -> bool:
    """True for flags that are plain numbers for the bindings, although cuda.h has an enumeration of them."""
    return name == "flags" and not isinstance(value, HostFlags)


def _number(value: Any) -> str:
    """A number, or an expression of `i`."""
    if isinstance(value, Linear):
        return linear(value, "//", _integer)
    if isinstance(value, Cycle | Table):
        return f"({', '.join(map(_integer, value.values))})[{index_of(value)}]"
    return _integer(value)


def _integer(value: int) -> str:
    return in_units(value) or str(value)


def _chosen(value: Any, encode: Callable[[Any], str]) -> str:
    """A value, or one of several by the loop's variable."""
    if not isinstance(value, Cycle | Table):
        return encode(value)
    texts: Iterable[str] = map(encode, value.values)
    return f"({', '.join(texts)})[{index_of(value)}]"


def _properties(value: Properties) -> str:
    handles = CONSTANTS[HandleType]
    given = [_location(value.location)]
    if value.handles in _SIMPLE_HANDLES and value.handles:
        given.append(f"handles=driver.{handles.type}.{handles.text(value.handles)}")
    elif value.handles:
        given.append(f"handles={int(value.handles)}")
    given += ["rdma=1"] * value.rdma + ["compressible=1"] * value.compressible
    return f"properties({', '.join(given)})"


def _pool_properties(value: PoolProperties) -> str:
    handles = CONSTANTS[HandleType]
    shared = f"driver.{handles.type}.{handles.text(value.handles)}"
    return f"pool_properties({_location(value.location)}, {shared}, {_integer(value.max_size)})"


def _location(value: Location) -> str:
    kind = CONSTANTS[LocationKind].text(value.kind).removeprefix("CU_MEM_LOCATION_TYPE_")
    return f"location({kind}, {value.id})"


def _grants(value: Sequence[Any]) -> str:
    access = CONSTANTS[Access]
    words = {access.text(each): each.word.upper() for each in (Access.NONE, Access.R, Access.RW)}
    each = (f"access({_location(grant.location)}, {words[access.text(grant.access)]})" for grant in value)
    return f"[{', '.join(each)}]"
