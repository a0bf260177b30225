"""Reading, validation and planning of 10,000 and of 100,000 chunks, written line by line and with `count`.

And the same, with a drawing, of a pool of 71,488 slots with one page of zeros behind all of them, by `each: fill`, in
seconds of the processor.
Needs no GPU. Each time, and the peak memory with it, is from a process of its own.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time

from memtopo import language, planner
from memtopo.machine import load
from memtopo.output.diagram.build import build_diagram
from memtopo.rules import validate

MACHINE = "h200x4"
SIZES = (10_000, 100_000)
ROUNDS = 3
PAGE = 2 << 20
LARGEST_RATIO = 12
LARGEST_PEAK = 1 << 30
SLOTS = 71_488
LONGEST = 0.3
"""Seconds for the pool."""


def main() -> None:
    """Print seconds, their ratio for ten times as many chunks, and the peak memory."""
    print(f"read, validate and plan on {MACHINE}, median of {ROUNDS} processes each")
    for form in FORMS:
        small, large = (_measured(form, count) for count in SIZES)
        for count, (seconds, peak) in zip(SIZES, (small, large), strict=True):
            print(f"{form:<6} {count:>8,} chunks  {seconds:7.3f} s   {peak / (1 << 20):6.0f} MiB at most")
        ratio = large[0] / small[0]
        print(f"{form:<6} ratio {ratio:24.1f}   (at most {LARGEST_RATIO})")
        print(f"{form:<6} peak  {large[1] / LARGEST_PEAK:24.2f} GiB (at most {LARGEST_PEAK >> 30})")
    seconds, peak = _measured("fill", SLOTS)
    print(f"fill   {SLOTS:>8,} slots   {seconds:7.3f} s   {peak / (1 << 20):6.0f} MiB at most")
    print(f"fill   processor {seconds:21.2f} s   (at most {LONGEST}, with a drawing)")


def once(form: str, count: int) -> None:
    """Measure one spec in this process, and print the seconds and the peak memory in bytes as JSON."""
    data = {**FORMS, "fill": _filled}[form](count).encode()
    machine = load(MACHINE)
    clock = time.process_time
    start = clock()
    geometry = validate(language.read_text(data, "scaling.yaml"), machine).geometry
    assert geometry is not None
    plan = planner.plan(geometry, machine)
    if form == "fill":
        assert build_diagram(geometry, machine).ranges[0].mapped == count * PAGE
    seconds = clock() - start
    assert plan.summary().calls > (count if form == "fill" else 2 * count)
    print(json.dumps([seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10]))


def _measured(form: str, count: int) -> tuple[float, int]:
    command = [sys.executable, "-c", f"from bench import scaling; scaling.once({form!r}, {count})"]
    runs = [json.loads(subprocess.run(command, check=True, capture_output=True).stdout) for _ in range(ROUNDS)]
    return statistics.median(seconds for seconds, _ in runs), max(peak for _, peak in runs)


def _lines(count: int) -> str:
    chunks = "".join(f"  c{index}: {{location: gpu{index % 4}, size: 2MiB}}\n" for index in range(count))
    entries = "".join(f"    - c{index}\n" for index in range(count))
    return _spec(count, chunks, entries)


def _counted(count: int) -> str:
    return _spec(count, f"  c: {{location: [gpu0, gpu1, gpu2, gpu3], size: 2MiB, count: {count}}}\n", "    - c\n")


def _filled(count: int) -> str:
    return _spec(count, "  zero: {location: gpu0, size: 2MiB}\n", "    - {chunk: zero, each: fill}\n")


def _spec(count: int, chunks: str, entries: str) -> str:
    ranges = f"ranges: {{kv: {{size: {2 * count}MiB}}}}\n"
    access = "access: {kv: {gpu0: rw, gpu1: r}}\n"
    return f"memtopo: 1\nname: scaling\n{ranges}chunks:\n{chunks}map:\n  kv:\n{entries}{access}"


FORMS = {"lines": _lines, "count": _counted}
