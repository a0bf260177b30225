"""Programs out of plans: the calls of each process as a program in C or Python that needs no memtopo."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from memtopo.machine.records import MachineLine
from memtopo.output.programs import c, python
from memtopo.output.programs.program import NotExpressible, Program, programs_of
from memtopo.plans.calls import Entry

__all__ = ["Language", "NotExpressible", "texts"]

Language = Literal["c", "cuda-python"]

_WRITERS: Mapping[Language, tuple[str, Callable[[Program], str]]] = {
    "c": (".c", c.program),
    "cuda-python": (".py", python.program),
}
"""Suffix of a language's files, and the function that writes a program."""


def texts(
    name: str,
    machine: MachineLine,
    calls: Mapping[str, Sequence[Entry]],
    language: Language,
    common: Mapping[str, Sequence[str]],
) -> dict[str, str]:
    """Text of the program of each process by the name of its file. Raises `NotExpressible`.

    `common` are the ranges of each process that have one address in all processes.
    """
    suffix, write = _WRITERS[language]
    return {f"{each.file}{suffix}": write(each) for each in programs_of(name, machine, calls, common)}
