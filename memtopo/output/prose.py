"""A check for people: the faults with their source lines, which spec fits which machine, and a last line."""

from __future__ import annotations

from collections.abc import Iterator

from memtopo.common.text import printable
from memtopo.output import verdicts
from memtopo.output.plain import DEFAULT_WIDTH
from memtopo.output.table import matrix
from memtopo.rules.files import Checked


def text(checked: Checked, *, width: int = DEFAULT_WIDTH, colour: bool = False) -> list[str]:
    """Every fault once; of several machines a table; of one file that it is ok, of several a sum."""
    return [*_faults(checked, width, colour=colour), *_end(checked, colour=colour)]


def concise(checked: Checked, *, colour: bool = False) -> list[str]:
    """One line for each fault, and nothing else."""
    from memtopo.output import diagnostics  # noqa: PLC0415 imported where it is used

    return [
        line
        for file in checked.files
        for line in diagnostics.concise(verdicts.told_briefly(file), file.document, colour=colour)
    ]


def _faults(checked: Checked, width: int, *, colour: bool) -> Iterator[str]:
    several = len(checked.files) * len(checked.machines) > 1
    for file in checked.files:
        if told := verdicts.told(file):
            from memtopo.output import diagnostics  # noqa: PLC0415 imported where it is used

            yield from diagnostics.text(told, file.document, width=width, colour=colour)
            if several:
                yield ""


def _end(checked: Checked, *, colour: bool) -> Iterator[str]:
    if len(checked.machines) > 1:
        yield from (*matrix(checked, colour=colour), "")
    if len(checked.machines) > 1 or len(checked.files) > 1:
        yield verdicts.total(checked)
    elif checked.ok:
        (file,) = checked.files
        yield f"{printable(file.document.name)}: ok on {checked.machines[0]}{verdicts.ignored(file.results)}"
