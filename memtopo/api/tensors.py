"""Tensors that files were loaded from into the ranges of a layout, by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial

from memtopo.api.errors import Unsuitable
from memtopo.api.memory import LayoutMemory, ViewPart, ViewRequest, unknown
from memtopo.api.session import Session
from memtopo.common.text import plural
from memtopo.common.units import exact, rounded_up
from memtopo.driver.types import Access, LocationKind
from memtopo.executor import Execution
from memtopo.kinds.layout import current
from memtopo.kinds.transfers import Span, SpanMemory, transferring
from memtopo.language.names import AWAKE
from memtopo.storage.tensors import (
    PREFIX,
    BadTensors,
    Table,
    Tensor,
    copy_tensors,
    encoded,
    placed,
    read_header,
    read_table,
)

DTYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "I16": "int16", "U16": "uint16", "I32": "int32", "U32": "uint32",
    "I64": "int64", "U64": "uint64", "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64",
    "C64": "complex64", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
}  # fmt: skip
"""Types of views by those of files. Others are viewed as their bytes."""


class LoadedTensors:
    """Tables of the tensors in the ranges of a layout."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._read: dict[str, tuple[bytes, Table]] = {}

    def load(self, memory: LayoutMemory, label: str, files: Sequence[str]) -> Table:
        """Copy the tensors of files to a range, which must be mapped throughout with access to write."""
        span, access = self._span(memory, label)
        if access is not Access.RW:
            raise Unsuitable(
                f"range {label!r} can only be read here",
                hint="grant it rw in the spec, or attach(…, access='rw') or as the writer",
            )
        self._session.synchronize()
        return _copy_files(self._session.run.execution, label, span, files)

    def find(self, memory: LayoutMemory, labels: Iterable[str], name: str) -> tuple[str, Tensor]:
        """Return the range with a tensor, and the tensor. Raises `Unsuitable`."""
        names: list[str] = []
        for label, table in self.tables(memory, labels):
            if name in table:
                return label, table[name]
            names += table
        if (state := self._session.state) != AWAKE:
            message = f"there is no tensor {name!r} in the memory of state {state!r}"
            raise Unsuitable(message, hint="switch('awake') first")
        if not names:
            raise Unsuitable(
                f"there is no tensor {name!r}: nothing was loaded", hint="memtopo load NAME FILE.safetensors"
            )
        raise unknown("tensor", name, names)

    def tables(self, memory: LayoutMemory, labels: Iterable[str]) -> Iterator[tuple[str, Table]]:
        """Yield the table of each range that has one."""
        for label in labels:
            with suppress(Unsuitable):  # not mapped throughout
                span, _ = self._span(memory, label)
                if span.size < PREFIX:
                    continue
                prefix = self._bytes(span, 0, PREFIX)
                if label not in self._read or self._read[label][0] != prefix:
                    self._read[label] = prefix, read_table(prefix, partial(self._bytes, span), span.size)
                if table := self._read[label][1]:
                    yield label, table

    def _bytes(self, span: Span, offset: int, size: int) -> bytes:
        driver, contexts = self._session.driver, self._session.layout.contexts
        with current(driver, contexts[span.device]):
            return driver.memcpy_dtoh(span.address + offset, size)

    def _span(self, memory: LayoutMemory, label: str) -> tuple[Span, Access]:
        """Address and size of a range with the GPU that copies it, and its access. Raises `Unsuitable`."""
        part = memory.part("range", label, ViewRequest.of("uint8"))
        layout = self._session.layout
        if part.location.kind is not LocationKind.GPU or part.location.id not in layout.contexts:
            raise Unsuitable(f"range {label!r} is accessible to no GPU of this process")
        start = layout.ranges[label].address
        if any(start + offset not in layout.mappings for offset, _, _ in memory.mappings(label, part.location)):
            hint = None if (state := self._session.state) == AWAKE else "switch('awake') first"
            raise Unsuitable(f"range {label!r} has no memory in state {state!r}", hint=hint)
        return Span(start, part.size, part.location.id), part.access


def view_of(tensor: Tensor) -> tuple[str, ViewPart]:
    """Type of the view of a tensor, and its part of the range. Raises `Unsuitable` for one without elements."""
    if not tensor.size:
        raise Unsuitable(f"tensor {tensor.name!r} of shape {list(tensor.shape)} has no elements")
    dtype, shape = DTYPES.get(tensor.dtype), tensor.shape
    if dtype is None:
        dtype, shape = "uint8", (tensor.size,)
    return dtype, {"shape": shape, "offset": tensor.offset, "size": tensor.size}


def _copy_files(execution: Execution, label: str, span: Span, files: Sequence[str]) -> Table:
    """Copy the tensors of files to memory in their order, and then write the table. Return it.

    Raises `BadTensors` for a file that is not of the format, and for tensors that do not fit, before anything is
    written; `DriverError`. A load that was not finished leaves no table.
    """
    headers = {file: read_header(file) for file in dict.fromkeys(files)}
    tensors = [each for found in headers.values() for each in found]
    names = Counter(each.name for each in tensors).most_common(1)
    if not names:
        raise BadTensors("there are no tensors in the files to load", hint="name files of weights")
    if names[0][1] > 1:
        raise BadTensors(f"tensor {names[0][0]!r} is in several files", hint="load files of one model")
    table, end = placed(tensors)
    if end > span.size:
        needed = f"the tensors of {plural(len(headers), 'file')} need {exact(end)}"
        hint = f"increase its size in the spec to {exact(rounded_up(end, 1 << 20))} or more"
        raise BadTensors(f"{needed}, and {label!r} has {exact(span.size)}", hint=hint)
    memory = SpanMemory(execution.driver, execution.layout, {label: span})
    _write(execution, span, bytes(PREFIX))
    with transferring(execution.driver, execution.layout, stops=True) as transfer:
        for file, found in headers.items():
            copy_tensors(file, found, [table[each.name].offset for each in found], label, memory, transfer)
    _write(execution, span, encoded(table.values()))
    return table


def _write(execution: Execution, span: Span, data: bytes) -> None:
    with current(execution.driver, execution.layout.contexts[span.device]):
        execution.driver.memcpy_htod(span.address, data)
        execution.driver.ctx_synchronize()
