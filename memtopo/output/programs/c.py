"""Programs in C: one file that needs a C compiler, cuda.h and libcuda alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from memtopo.driver.functions import ADDRESS, C_TYPES, CONSTANTS, DMA_BUF, PLAIN_FLAGS, RESULT, c_name, function
from memtopo.driver.types import (
    Access,
    Grant,
    HandleType,
    Location,
    LocationKind,
    PoolAttribute,
    PoolProperties,
    Properties,
)
from memtopo.output.programs.expressions import divided, in_units, index_of, is_hint, linear, part, words_of_parts
from memtopo.output.programs.names import Names, word_of
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

_POINTER = "void *"
_SHARED = {
    "mem_pool_export_pointer": "(CUmemPoolPtrExportData *)shared.bytes",
    "ipc_get_mem_handle": "(CUipcMemHandle *)shared.bytes",
    "ipc_get_event_handle": "(CUipcEventHandle *)shared.bytes",
    "ipc_open_mem_handle": "*(CUipcMemHandle *)shared.bytes",
    "ipc_open_event_handle": "*(CUipcEventHandle *)shared.bytes",
    "mem_pool_import_pointer": "(CUmemPoolPtrExportData *)shared.bytes",
}
"""Expressions of the bytes of a shareable handle."""

_CHOSEN: tuple[tuple[type, str], ...] = (
    (Properties, "const CUmemAllocationProp *const "),
    (PoolProperties, "const CUmemPoolProps *const "),
    (Location, "const CUmemLocation "),
    (tuple, "const CUmemAccessDesc *const "),
)
"""Types of tables of constants; that of access is last, since the others are tuples, too."""
_PASSES = {
    "receive": "receive_from", "send": "send_to", "forget": "forget", "leave": "leave", "await": "await_importers",
}  # fmt: skip

_FURTHER = " " * 6
_SMALL = 1 << 15
"""Largest number whose product with a loop's variable surely is an int."""


def program(given: Program) -> str:
    """Text of the program."""
    return "".join(f"{line}\n" for line in _Writer(given).lines())


class _Writer:
    """One program, and the constants that its statements use."""

    def __init__(self, given: Program) -> None:
        self._program, self._names = given, Names(words_of_parts(".c"))
        self._constants: list[str] = []
        self._encoders: tuple[tuple[type, Callable[[Any], str], str], ...] = (
            (Properties, self._properties, "&"),
            (PoolProperties, self._pool_properties, "&"),
            (Location, self._location, ""),
        )

    def lines(self) -> Iterator[str]:
        """All lines of the program."""
        given = self._program
        build = list(self._sections([each for each in given.sections if not each.undo]))
        down = list(self._sections([each for each in given.sections if each.undo]))
        yield from self._head()
        yield from part("check.c")
        yield from (part("shared.c") if given.shares else ())
        yield from (part("sockets.c") if given.peers else ())
        yield from (part("exporter.c") if given.importers else ())
        yield from (part("importer.c") if given.exporters else ())
        yield ""
        yield from map(self._declared, given.variables)
        yield from (["", *self._constants] if self._constants else [])
        yield from ("", "static void build(void) {", *build, "}")
        yield from ("", "static void take_down(void) {", *down, "}")
        yield from self._main()

    def _head(self) -> Iterator[str]:
        given = self._program
        yield f"/* {given.title}"
        yield " *"
        yield from (f" * {line}".rstrip() for line in given.about)
        yield " *"
        yield f" * cc -o {given.file} {given.file}.c -lcuda"
        yield " */"
        yield from (["#define _GNU_SOURCE"] if given.peers else [])
        yield from (f"#include <{name}.h>" for name in ("cuda", "stdint", "stdio", "stdlib"))
        if given.shares:
            yield from ("#include <unistd.h>", "#include <string.h>")
        if given.peers:
            yield from (f"#include <{name}.h>" for name in ("errno", "sys/socket", "sys/un", "time"))

    def _main(self) -> Iterator[str]:
        yield from ("", "int main(void) {", "    CHECK(cuInit(0));")
        if self._program.peers:
            own = _quoted(self._program.process)
            yield from ([f"    listen_as({own});"] if self._program.importers else [])
            yield from (f"    connect_to({_quoted(peer)}, {own});" for peer in self._program.exporters)
            if importers := self._program.importers:
                names = ", ".join(map(_quoted, importers))
                yield f"    accept_importers({own}, (const char *[]){{{names}}}, {len(importers)});"
        yield from ("    build();", f"    puts({_quoted(f'{self._program.name}: built')});", "    fflush(stdout);")
        yield from ("    /* Use the memory here. */", "    take_down();")
        yield from (f"    puts({_quoted(f'{self._program.name}: taken down')});", "    return 0;", "}")

    def _declared(self, variable: Variable) -> str:
        type_ = C_TYPES.get(variable.kind, ADDRESS)
        size = f"[{variable.count}]" if variable.count else ""
        return f"static {type_}{'' if type_.endswith('*') else ' '}{self._names.variable(variable)}{size};"

    def _sections(self, sections: Sequence[Section]) -> Iterator[str]:
        for index, section in enumerate(sections):
            yield from [""] * bool(index)
            yield f"    /* {section.phase} */"
            for each in section.statements:
                yield from self._statement(each, "    ")

    def _statement(self, each: Statement, indent: str) -> Iterator[str]:
        match each:
            case Loop(first, last, body):
                test = f"i < {last + 1}; i++" if first <= last else f"i >= {last}; i--"
                yield f"{indent}for (int i = {first}; {test}) {{"
                for inner in body:
                    yield from self._statement(inner, f"{indent}    ")
                yield f"{indent}}}"
            case Pass(action, peer):
                yield f"{indent}{_PASSES[action]}({_quoted(peer) if peer else ''});"
            case Call():
                yield from divided(f"{indent}CHECK({self._call(each)});", indent, _FURTHER)

    def _call(self, call: Call) -> str:
        values = dict(call.arguments)
        found = [
            text
            for name in function(call.method).parameters
            for text in ([self._made(call)] if name == RESULT else self._argument(call.method, name, values))
        ]
        return f"{c_name(call.method)}({', '.join(found)})"

    def _made(self, call: Call) -> str:
        if call.made is None:
            return "&popped"
        if call.made.kind in ("shared", "secret"):
            fabric = dict(call.arguments).get("kind") == HandleType.FABRIC
            return _SHARED.get(call.method) or ("shared.bytes" if fabric else "&shared.fd")
        return f"&{self._object(call.made)}"

    def _object(self, held: Reference) -> str:
        name = self._names.variable(held)
        return name if held.number is None else f"{name}[{self._number(held.number)}]"

    def _argument(self, method: str, name: str, values: Mapping[str, Any]) -> list[str]:
        value = values[name]
        first = value.values[0] if isinstance(value, Cycle | Table) else value
        if isinstance(value, Reference):
            return [self._reference(method, value)]
        if name in ("shared", "data") or (name == "handle" and method in _SHARED):
            fabric = values.get("kind") == HandleType.FABRIC
            return [_SHARED.get(method) or f"(void *){'shared.bytes' if fabric else '(uintptr_t)shared.fd'}"]
        if name == "value" and "attribute" in values:
            size = values["attribute"] is PoolAttribute.RELEASE_THRESHOLD
            return [f"&({'cuuint64_t' if size else 'int'}){{{_integer(value)}}}"]
        if name == "grants":
            return [self._chosen(value, self._grants, ""), str(len(first))]
        for kind, encode, prefix in self._encoders:
            if isinstance(first, kind):
                return [self._chosen(value, encode, prefix)]
        return [self._plain(method, name, value)]

    def _reference(self, method: str, held: Reference) -> str:
        text = self._object(held)
        if C_TYPES.get(held.kind) == _POINTER and method != "mem_free_host":
            text = f"(CUdeviceptr)(uintptr_t){text}"
        if held.offset in (None, 0):
            return text
        return f"{text} + {self._number(held.offset)}"

    def _plain(self, method: str, name: str, value: Any) -> str:
        if is_hint(method, name, value):
            return f"{value:#x}ULL"
        if isinstance(value, Linear | Table) or (isinstance(value, Cycle) and type(value.values[0]) is int):
            return self._number(value)
        if isinstance(value, Cycle):
            return self._chosen(value, lambda each: self._plain(method, name, each), "")
        constants = PLAIN_FLAGS.get(method) if name == "flags" else None
        if constants := constants or CONSTANTS.get(type(value)):
            return constants.text(int(value))
        return DMA_BUF if value == DMA_BUF else _integer(int(value))

    def _number(self, value: Any) -> str:
        """A number, or an expression of `i`."""
        if isinstance(value, Linear):
            return linear(value, "/", _integer)
        if isinstance(value, Cycle | Table):
            return f"{self._numbers(value.values)}[{index_of(value)}]"
        return _integer(value)

    def _numbers(self, values: tuple[int, ...]) -> str:
        name = self._names.of(("numbers", values), "numbers")
        return self._constant(name, f"static const size_t {name}[{len(values)}]", map(_integer, values))

    def _chosen(self, value: Any, encode: Callable[[Any], str], prefix: str) -> str:
        """A constant, or one of several by the loop's variable."""
        if not isinstance(value, Cycle | Table):
            return prefix + encode(value)
        texts = [prefix + encode(each) for each in value.values]
        type_ = next(text for kind, text in _CHOSEN if isinstance(value.values[0], kind))
        name = self._names.of(("chosen", *texts), f"{_kind_of(value.values[0])} by number")
        return f"{self._constant(name, f'static {type_}{name}[{len(texts)}]', texts)}[{index_of(value)}]"

    def _constant(self, name: str, declaration: str, values: Iterable[str]) -> str:
        text = "\n".join(divided(f"{declaration} = {{{', '.join(values)}}};", "", _FURTHER))
        if text not in self._constants:
            self._constants.append(text)
        return name

    def _properties(self, value: Properties) -> str:
        name = self._names.of(value, f"properties {word_of(value)}")
        flags = [".gpuDirectRDMACapable = 1"] * value.rdma
        flags += [".compressionType = CU_MEM_ALLOCATION_COMP_GENERIC"] * value.compressible
        fields = [
            ".type = CU_MEM_ALLOCATION_TYPE_PINNED",
            f".requestedHandleTypes = {CONSTANTS[HandleType].text(value.handles)}",
            f".location = {{{_location(value.location)}}}",
            *([f".allocFlags = {{{', '.join(flags)}}}"] if flags else []),
        ]
        return self._struct(name, f"static const CUmemAllocationProp {name} = {{", fields)

    def _pool_properties(self, value: PoolProperties) -> str:
        name = self._names.of(value, f"properties of pool on {word_of(value)}")
        fields = [
            ".allocType = CU_MEM_ALLOCATION_TYPE_PINNED",
            f".handleTypes = {CONSTANTS[HandleType].text(value.handles)}",
            f".location = {{{_location(value.location)}}}",
            *([f".maxSize = {_integer(value.max_size)}"] if value.max_size else []),
        ]
        return self._struct(name, f"static const CUmemPoolProps {name} = {{", fields)

    def _grants(self, value: tuple[Grant, ...]) -> str:
        name = self._names.of(("grants", value), f"access {word_of(value)}")
        fields = [
            f"{{.location = {{{_location(each.location)}}}, .flags = {CONSTANTS[Access].text(each.access)}}}"
            for each in value
        ]
        return self._struct(name, f"static const CUmemAccessDesc {name}[] = {{", fields)

    def _location(self, value: Location) -> str:
        return f"(CUmemLocation){{{_location(value)}}}"

    def _struct(self, name: str, head: str, fields: Sequence[str]) -> str:
        text = "\n".join((head, *(f"    {each}," for each in fields), "};"))
        if text not in self._constants:
            self._constants.append(text)
        return name


def _location(value: Location) -> str:
    return f".type = {CONSTANTS[LocationKind].text(value.kind)}, .id = {value.id}"


def _integer(value: int) -> str:
    """A number as it is read best."""
    return in_units(value) or (f"{value}ULL" if value > _SMALL else str(value))


def _kind_of(value: object) -> str:
    if isinstance(value, Properties | PoolProperties):
        return "properties"
    return "location" if isinstance(value, Location) else "access"


def _quoted(text: str) -> str:
    return f'"{text}"'
