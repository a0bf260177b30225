"""Tensors of files in the memory of a layout, behind a table of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from memtopo.common.text import plural
from memtopo.common.units import exact, rounded_up
from memtopo.executor import Execution
from memtopo.kinds.layout import current
from memtopo.kinds.transfers import Span, SpanMemory, transferring
from memtopo.storage.tensors import PREFIX, BadTensors, Table, copy_tensors, encoded, placed, read_header


def load(execution: Execution, label: str, span: Span, files: Sequence[str]) -> Table:
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
