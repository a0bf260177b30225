"""Files of traces: sequences as text, compressed; the first line has the machine and the mode.

A sequence is `# SEED` and a line for each call with its answer: `map r0+2M 4M c1 -> ok`.
"""

from __future__ import annotations

import lzma
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent / "traces"
_ARROW = " -> "
END = "end"
"""Step after the calls of a sequence that ended its process while its resources were given back."""


class Step(NamedTuple):
    """A call and the answer to it."""

    call: str
    answer: str


class Trace(NamedTuple):
    """A recorded sequence."""

    seed: str
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        return "".join([f"# {self.seed}\n", *(f"{step.call}{_ARROW}{step.answer}\n" for step in self.steps)])


class Origin(NamedTuple):
    """Machine and mode of a file of traces."""

    machine: str
    mode: str

    def __str__(self) -> str:
        return f"! {self.machine} {self.mode}\n"


def parse(lines: Iterable[str]) -> Iterator[Trace]:
    """Yield the sequences of a text; a last line without its answer is a call that ended its process."""
    seed = ""
    steps: list[Step] = []
    for line in map(str.lstrip, lines):
        if line.startswith("#"):
            if steps:
                yield Trace(seed, tuple(steps))
            seed, steps = line[2:].strip(), []
        elif _ARROW in line:
            call, _, answer = line.partition(_ARROW)
            steps.append(Step(call, answer.strip()))
    if steps:
        yield Trace(seed, tuple(steps))


def read(path: Path) -> tuple[Origin, Iterator[Trace]]:
    """Return the origin of a file and its sequences, which are read while they are taken."""
    lines = _lines(path)
    machine, mode = next(lines).split()[1:]
    return Origin(machine, mode), parse(lines)


def _lines(path: Path) -> Iterator[str]:
    with lzma.open(path, "rt", encoding="ascii") as file:
        yield from file


def write(path: Path, origin: Origin, traces: Sequence[Trace]) -> None:
    """Write a file of traces."""
    with lzma.open(path, "wt", preset=9, encoding="ascii") as file:
        file.write(str(origin))
        file.writelines(map(str, traces))


def sequences(text: str) -> list[tuple[str, list[str]]]:
    """Names and calls of sequences written by hand; answers are left out."""
    found: list[tuple[str, list[str]]] = []
    for line in filter(None, map(str.strip, text.splitlines())):
        if line.startswith("#"):
            found.append((line[1:].strip(), []))
        else:
            found[-1][1].append(line.partition(_ARROW)[0])
    return found
