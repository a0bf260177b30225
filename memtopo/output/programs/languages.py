"""Programs in C and in Python, one file for each process.

One in C needs a C compiler, cuda.h and libcuda alone, one in Python cuda-python.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from memtopo.driver.functions import DMA_BUF, c_name, function
from memtopo.driver.types import (
    PROPERTY_FLAGS,
    Access,
    Grant,
    HandleType,
    HostFlags,
    Location,
    LocationKind,
    PoolProperties,
    Properties,
)
from memtopo.driver.values import ADDRESS, C_TYPES, CONSTANTS, Constants
from memtopo.machine import MachineLine
from memtopo.output.programs import ProcessCalls, Program, programs_of
from memtopo.output.programs.statements import Call, Operand, PhaseBody, Variable
from memtopo.output.programs.writer import OPENS, Writer, divided, program_part, word_of

_LISTS: tuple[tuple[type, str, str], ...] = (
    (int, "const size_t ", "numbers"),
    (Properties, "const CUmemAllocationProp *const ", "properties by number"),
    (PoolProperties, "const CUmemPoolProps *const ", "properties by number"),
    (Location, "const CUmemLocation ", "location by number"),
    (tuple, "const CUmemAccessDesc *const ", "access by number"),
)
"""C types and names of lists by the type of a value; that of access is last, since the others are tuples, too."""


class _CWriter(Writer):
    """One program, and the constants that its statements use."""

    suffix, margin, division, end, block_end, dma_buf = ".c", " " * 6, "/", ";", "}", DMA_BUF
    comment, quote, wide = " /* {} */", '"', "ULL"

    def __init__(self, given: Program) -> None:
        super().__init__(given)
        self._constants: list[str] = []

    def lines(self) -> Iterator[str]:
        """All lines of the program."""
        given = self.program
        build = list(self._sections([each for each in given.sections if not each.undo]))
        down = list(self._sections([each for each in given.sections if each.undo]))
        yield from self._head()
        yield from program_part("check.c")
        yield from (["", "static CUcontext popped;"] if "ctx_pop_current" in given.methods else [])
        yield from (program_part("shared.c") if given.shares else ())
        yield from (program_part("sockets.c") if given.peers else ())
        yield from (program_part("exporter.c") if given.importers else ())
        yield from (program_part("importer.c") if given.exporters else ())
        yield ""
        yield from map(self._declared, given.variables)
        yield from (["", *self._constants] if self._constants else [])
        yield from ("", "static void build(void) {", *build, "}")
        yield from ("", "static void take_down(void) {", *down, "}")
        yield from ("", "int main(void) {", "    CHECK(cuInit(0));")
        if self.program.peers:
            own = self.quoted(self.program.process)
            yield from ([f"    listen_as({own});"] if self.program.importers else [])
            yield from (f"    connect_to({self.quoted(peer)}, {own});" for peer in self.program.exporters)
            if importers := self.program.importers:
                names = ", ".join(map(self.quoted, importers))
                yield f"    accept_importers({own}, (const char *[]){{{names}}}, {len(importers)});"
        yield from ("    build();", f"    puts({self.quoted(f'{self.program.name}: built')});", "    fflush(stdout);")
        yield from ("    /* Use the memory here. */", "    take_down();")
        yield from (f"    puts({self.quoted(f'{self.program.name}: taken down')});", "    return 0;", "}")

    def _head(self) -> Iterator[str]:
        given = self.program
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

    def _declared(self, variable: Variable) -> str:
        type_ = C_TYPES.get(variable.kind, ADDRESS)
        size = f"[{variable.count}]" if variable.count else ""
        return f"static {type_}{'' if type_.endswith('*') else ' '}{self.names.variable(variable)}{size};"

    def _sections(self, sections: Sequence[PhaseBody]) -> Iterator[str]:
        for index, section in enumerate(sections):
            yield from [""] * bool(index)
            yield f"    /* {section.phase} */"
            for each in section.statements:
                yield from self.statement(each, "    ")

    def loop(self, first: int, last: int) -> str:
        test = f"i < {last + 1}; i++" if first <= last else f"i >= {last}; i--"
        return f"for (int i = {first}; {test}) {{"

    def call(self, call: Call) -> str:
        values = dict(call.arguments)
        declared = function(call.method)
        found = [self._made(call)] if declared.has_result else []
        for name in declared.arguments:
            found += self.argument(call.method, name, values)
        return f"CHECK({c_name(call.method)}({', '.join(found)}))"

    def _made(self, call: Call) -> str:
        if call.made is None:
            return "&popped"
        if call.made.kind in ("shared", "secret"):
            fabric = dict(call.arguments).get("kind") == HandleType.FABRIC
            return _shared_bytes(call.method) or ("shared.bytes" if fabric else "&shared.fd")
        return f"&{self.object(call.made)}"

    def constant(self, constants: Constants, name: str, value: Any) -> str:
        del name
        return constants.text(int(value))

    def shared(self, method: str, *, fabric: bool) -> str:
        return _shared_bytes(method) or f"(void *){'shared.bytes' if fabric else '(uintptr_t)shared.fd'}"

    def pool_attribute(self, value: int, *, wide: bool) -> str:
        return f"&({'cuuint64_t' if wide else 'int'}){{{self.integer(value)}}}"

    def reference(self, method: str, held: Operand) -> str:
        cast = "(CUdeviceptr)(uintptr_t)" if C_TYPES.get(held.kind) == "void *" and method != "mem_free_host" else ""
        return cast + super().reference(method, held)

    def array(self, values: Sequence[Any], texts: Sequence[str]) -> str:
        type_, wanted = next((type_, name) for kind, type_, name in _LISTS if isinstance(values[0], kind))
        name = self.names.identifier(("list", *texts), wanted)
        line = f"static {type_}{name}[{len(texts)}] = {{{', '.join(texts)}}};"
        return self._constant(name, divided(line, "", self.margin))

    def properties(self, value: Properties) -> str:
        name = self.names.identifier(value, f"properties {word_of(value)}")
        flags = [f".{field} = {number}" for field, number in map(PROPERTY_FLAGS.__getitem__, value.flags)]
        handles = CONSTANTS[HandleType].text(value.handles)
        fields = [".type = CU_MEM_ALLOCATION_TYPE_PINNED", f".requestedHandleTypes = {handles}"]
        fields.append(f".location = {{{_location(value.location)}}}")
        fields += [f".allocFlags = {{{', '.join(flags)}}}"] if flags else []
        return f"&{self._struct(name, f'CUmemAllocationProp {name}', fields)}"

    def pool_properties(self, value: PoolProperties) -> str:
        name = self.names.identifier(value, f"properties of pool on {word_of(value)}")
        handles = CONSTANTS[HandleType].text(value.handles)
        fields = [".allocType = CU_MEM_ALLOCATION_TYPE_PINNED", f".handleTypes = {handles}"]
        fields.append(f".location = {{{_location(value.location)}}}")
        fields += [f".maxSize = {self.integer(value.max_size)}"] if value.max_size else []
        return f"&{self._struct(name, f'CUmemPoolProps {name}', fields)}"

    def grants(self, value: Sequence[Grant]) -> str:
        name = self.names.identifier(("grants", *value), f"access {word_of(value)}")
        pairs = ((_location(each.location), CONSTANTS[Access].text(each.access)) for each in value)
        fields = [f"{{.location = {{{location}}}, .flags = {flags}}}" for location, flags in pairs]
        return self._struct(name, f"CUmemAccessDesc {name}[]", fields)

    def location(self, value: Location) -> str:
        return f"(CUmemLocation){{{_location(value)}}}"

    def _struct(self, name: str, declared: str, fields: Sequence[str]) -> str:
        return self._constant(name, (f"static const {declared} = {{", *(f"    {each}," for each in fields), "};"))

    def _constant(self, name: str, lines: Iterable[str]) -> str:
        text = "\n".join(lines)
        if text not in self._constants:
            self._constants.append(text)
        return name


def _location(value: Location) -> str:
    return f".type = {CONSTANTS[LocationKind].text(value.kind)}, .id = {value.id}"


def _shared_bytes(method: str) -> str:
    """Bytes of the shareable handle at hand as the struct that a call takes, by value if it opens it; else empty."""
    struct = function(method).shared_struct
    return f"{'*' * (method in OPENS)}({struct} *)shared.bytes" if struct else ""


class _PythonWriter(Writer):
    """One program."""

    suffix, margin, division, dma_buf = ".py.txt", "    ", "//", f"driver.CUmemRangeHandleType.{DMA_BUF}"
    comment, quote = "  # {}", "'"

    def lines(self) -> Iterator[str]:
        """All lines of the program."""
        given = self.program
        yield from (f'"""{given.title}', "", *given.about, "")
        yield from (f"pip install cuda-python; python {given.file}.py", '"""', "")
        modules = ["ctypes", *["os"] * given.shares, *["socket", "time"] * bool(given.peers)]
        yield from (f"import {name}" for name in modules)
        yield from ("", "from cuda.bindings import driver", "", *program_part("check.py.txt"))
        yield from (program_part("shared.py.txt") if given.shares else ())
        yield from (program_part("sockets.py.txt") if given.peers else ())
        yield from ("", "", "call(driver.cuInit, 0)")
        if given.peers:
            others = f"exporters={list(given.exporters)!r}, importers={list(given.importers)!r}"
            yield f"connect({given.process!r}, {others})"
        yield from map(self._declared, (each for each in given.variables if each.count))
        yield from self._sections([each for each in given.sections if not each.undo])
        yield from ("", f'print("{given.name}: built", flush=True)', "# Use the memory here.")
        yield from self._sections([each for each in given.sections if each.undo])
        yield from ("", f'print("{given.name}: taken down")')

    def _declared(self, variable: Variable) -> str:
        return f"{self.names.variable(variable)} = [0] * {variable.count}"

    def _sections(self, sections: Sequence[PhaseBody]) -> Iterator[str]:
        for section in sections:
            yield from ("", f"# {section.phase}")
            for each in section.statements:
                yield from self.statement(each, "")

    def loop(self, first: int, last: int) -> str:
        bounds = [f"{last + 1}"] if first == 0 and first <= last else [str(first), str(last + 1)]
        bounds = [str(first), str(last - 1), "-1"] if first > last else bounds
        return f"for i in range({', '.join(bounds)}):"

    def call(self, call: Call) -> str:
        made = self._checked(call)
        if call.made is None:
            return made
        if call.made.kind == "shared" and dict(call.arguments).get("kind") != HandleType.FABRIC:
            return f"shared.fd = int({made})"
        if call.made.kind in ("shared", "secret"):
            return f"shared.bytes = bytes_of({made})"
        return f"{self.object(call.made)} = int({made})"

    def _checked(self, call: Call) -> str:
        values = dict(call.arguments)
        found = [text for name in function(call.method).arguments for text in self.argument(call.method, name, values)]
        return f"call({', '.join((f'driver.{function(call.method).name}', *found))})"

    def constant(self, constants: Constants, name: str, value: Any) -> str:
        if not value:
            return str(int(value))
        text = constants.text(int(value), f"driver.{constants.type}." if constants.type else "driver.")
        # Flags are plain numbers for the bindings, although cuda.h has an enumeration of them.
        is_number = name == "flags" and not isinstance(value, HostFlags)
        return " | ".join(f"{each}.value" for each in text.split(" | ")) if is_number else text

    def shared(self, method: str, *, fabric: bool) -> str:
        if struct := function(method).shared_struct:
            return f"struct_of(driver.{struct}(), shared.bytes)"
        return "bytearray(shared.bytes)" if fabric else "shared.fd"

    def pool_attribute(self, value: int, *, wide: bool) -> str:
        return f"driver.cuuint64_t({self.integer(value)})" if wide else str(value)

    def array(self, values: Sequence[Any], texts: Sequence[str]) -> str:
        del values
        return f"({', '.join(texts)})"

    def properties(self, value: Properties) -> str:
        handles = CONSTANTS[HandleType]
        given = [self.location(value.location)]
        if value.handles in (HandleType.FD, HandleType.FABRIC):
            given.append(f"handles=driver.{handles.type}.{handles.text(value.handles)}")
        elif value.handles:
            given.append(f"handles={int(value.handles)}")
        given += [f"{PROPERTY_FLAGS[word][0]}=1" for word in value.flags]
        return f"properties({', '.join(given)})"

    def pool_properties(self, value: PoolProperties) -> str:
        handles = CONSTANTS[HandleType]
        shared = f"driver.{handles.type}.{handles.text(value.handles)}"
        return f"pool_properties({self.location(value.location)}, {shared}, {self.integer(value.max_size)})"

    def location(self, value: Location) -> str:
        kind = CONSTANTS[LocationKind].text(value.kind).removeprefix("CU_MEM_LOCATION_TYPE_")
        return f"location({kind}, {value.id})"

    def grants(self, value: Sequence[Grant]) -> str:
        each = (f"access({self.location(grant.location)}, {grant.access.word.upper()})" for grant in value)
        return f"[{', '.join(each)}]"


Language = Literal["c", "cuda-python"]

_WRITERS: Mapping[Language, tuple[str, type[Writer]]] = {"c": (".c", _CWriter), "cuda-python": (".py", _PythonWriter)}
"""Suffix of a language's files, and the class that writes a program."""


def texts(
    name: str, machine: MachineLine, calls: ProcessCalls, language: Language, common: Mapping[str, Sequence[str]]
) -> dict[str, str]:
    """Text of the program of each process by the name of its file. Raises `NotExpressible`.

    `common` are the ranges of each process that have one address in all processes.
    """
    suffix, _ = _WRITERS[language]
    return {f"{each.file}{suffix}": text(each, language) for each in programs_of(name, machine, calls, common)}


def text(program: Program, language: Language) -> str:
    """Text of a program."""
    _, writer = _WRITERS[language]
    return "".join(f"{line}\n" for line in writer(program).lines())
