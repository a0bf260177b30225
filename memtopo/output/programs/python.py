"""Programs in Python: one file that needs cuda-python alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from memtopo.driver.functions import CONSTANTS, DMA_BUF, Constants, function
from memtopo.driver.types import (
    Access,
    Grant,
    HandleType,
    HostFlags,
    Location,
    LocationKind,
    PoolProperties,
    Properties,
)
from memtopo.output.programs.program import Program
from memtopo.output.programs.statements import Call, Reference, Section, Variable
from memtopo.output.programs.writer import Writer, in_units, part

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


class _Writer(Writer):
    """One program."""

    suffix, margin, division, dma_buf = ".py.txt", "    ", "//", f"driver.CUmemRangeHandleType.{DMA_BUF}"

    def lines(self) -> Iterator[str]:
        """All lines of the program."""
        given = self.program
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
        names |= {"os"} if self.program.shares else set()
        names |= {"socket", "time"} if self.program.peers else set()
        return sorted(names)

    def _declared(self, variable: Variable) -> str:
        return f"{self.names.variable(variable)} = [0] * {variable.count}"

    def _sections(self, sections: Sequence[Section]) -> Iterator[str]:
        for section in sections:
            yield from ("", f"# {section.phase}")
            for each in section.statements:
                yield from self.statement(each, "")

    def comment(self, text: str) -> str:
        return f"  # {text}"

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

    def quoted(self, text: str) -> str:
        return repr(text)

    def integer(self, value: int) -> str:
        return in_units(value) or str(value)

    def address(self, value: int) -> str:
        return f"{value:#x}"

    def constant(self, constants: Constants, name: str, value: Any) -> str:
        if not value:
            return str(int(value))
        text = constants.text(int(value), f"driver.{constants.type}." if constants.type else "driver.")
        return " | ".join(f"{each}.value" for each in text.split(" | ")) if _is_number(name, value) else text

    def shared(self, method: str, *, fabric: bool) -> str:
        if struct := _STRUCTS.get(method):
            return f"struct_of(driver.{struct}(), shared.bytes)"
        return "bytearray(shared.bytes)" if fabric else "shared.fd"

    def pool_attribute(self, value: int, *, wide: bool) -> str:
        return f"driver.cuuint64_t({self.integer(value)})" if wide else str(value)

    def reference(self, method: str, held: Reference) -> str:
        del method
        offset = "" if held.offset in (None, 0) else f" + {self.number(held.offset)}"
        return f"{self.object(held)}{offset}"

    def listed(self, values: Sequence[Any], texts: Sequence[str]) -> str:
        del values
        return f"({', '.join(texts)})"

    def properties(self, value: Properties) -> str:
        handles = CONSTANTS[HandleType]
        given = [self.location(value.location)]
        if value.handles in _SIMPLE_HANDLES and value.handles:
            given.append(f"handles=driver.{handles.type}.{handles.text(value.handles)}")
        elif value.handles:
            given.append(f"handles={int(value.handles)}")
        given += ["rdma=1"] * value.rdma + ["compressible=1"] * value.compressible
        return f"properties({', '.join(given)})"

    def pool_properties(self, value: PoolProperties) -> str:
        handles = CONSTANTS[HandleType]
        shared = f"driver.{handles.type}.{handles.text(value.handles)}"
        return f"pool_properties({self.location(value.location)}, {shared}, {self.integer(value.max_size)})"

    def location(self, value: Location) -> str:
        kind = CONSTANTS[LocationKind].text(value.kind).removeprefix("CU_MEM_LOCATION_TYPE_")
        return f"location({kind}, {value.id})"

    def grants(self, value: Sequence[Grant]) -> str:
        access = CONSTANTS[Access]
        words = {access.text(each): each.word.upper() for each in (Access.NONE, Access.R, Access.RW)}
        each = (f"access({self.location(grant.location)}, {words[access.text(grant.access)]})" for grant in value)
        return f"[{', '.join(each)}]"


def _is_number(name: str, value: Any) -> bool:
    """True for flags that are plain numbers for the bindings, although cuda.h has an enumeration of them."""
    return name == "flags" and not isinstance(value, HostFlags)
