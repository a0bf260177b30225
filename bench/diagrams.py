"""Diagrams of 100,000 chunks in each format, compared with the validation of their spec.

The spec is written line by line, with `count`, and as `mixed`, without equal neighbours that a diagram could fold.
Needs no GPU. Each pair of times is from one process.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping

from bench import scaling
from memtopo import language
from memtopo.geometry.diagram import Diagram
from memtopo.machine import load
from memtopo.output.blocks import Drawing
from memtopo.output.console import unstyled
from memtopo.output.diagram import FORMATS
from memtopo.output.diagram.build import build_diagram
from memtopo.rules import validate

COUNT = 100_000
ROUNDS = 3
LARGEST_RATIO = 3.0


def main() -> None:
    """Print the seconds of validation and of each format, and the largest ratio of the two."""
    print(f"{COUNT:,} chunks on {scaling.MACHINE}, median of {ROUNDS} processes each")
    largest = 0.0
    for spec in _SPECS:
        runs = [_measured(spec) for _ in range(ROUNDS)]
        validating = statistics.median(run["validate"] for run in runs)
        print(f"{spec:<6} validate  {validating:7.3f} s")
        for form in _DRAWN:
            ratio = statistics.median(run[form] / run["validate"] for run in runs)
            print(f"{spec:<6} {form:<8}  {statistics.median(run[form] for run in runs):7.3f} s   ratio {ratio:5.2f}")
            largest = max(largest, ratio)
    print(f"largest ratio {largest:13.2f}   (at most {LARGEST_RATIO:g})")


def once(spec: str) -> None:
    """Measure one spec in this process, and print the seconds of each format as JSON."""
    data = _SPECS[spec](COUNT).encode()
    machine = load(scaling.MACHINE)
    start = time.perf_counter()
    geometry = validate(language.read_text(data, "diagrams.yaml"), machine).geometry
    seconds = {"validate": time.perf_counter() - start}
    assert geometry is not None
    for form, draw in _DRAWN.items():
        start = time.perf_counter()
        assert draw(build_diagram(geometry, machine))
        seconds[form] = time.perf_counter() - start
    print(json.dumps(seconds))


def _measured(spec: str) -> dict[str, float]:
    command = [sys.executable, "-c", f"from bench import diagrams; diagrams.once({spec!r})"]
    found: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return found


def _mixed(count: int) -> str:
    """Chunks that differ from their predecessors in size and location, every hundredth after a hole."""
    chunks = "".join(
        f"  c{index}: {{location: gpu{index % 4}, size: {2 + 2 * (index % 3)}MiB}}\n" for index in range(count)
    )
    entries = "".join(
        f"    - {{chunk: c{index}, offset: {8 * index}MiB}}\n" if index % 100 == 0 else f"    - c{index}\n"
        for index in range(count)
    )
    head = f"memtopo: 1\nname: diagrams\nranges: {{kv: {{size: {8 * count}MiB}}}}\nchunks:\n{chunks}map:\n  kv:\n"
    return f"{head}{entries}access:\n  kv: {{gpu0: rw}}\n"


def _form(form: str) -> Callable[[Diagram], str]:
    return lambda shown: FORMATS[form](Drawing(shown, "diagrams"))


_SPECS: Mapping[str, Callable[[int], str]] = {**scaling.FORMS, "mixed": _mixed}
_DRAWN: Mapping[str, Callable[[Diagram], str]] = {
    "text": lambda shown: unstyled(Drawing(shown), 80),
    **{form: _form(form) for form in FORMATS},
}
