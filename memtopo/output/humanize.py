"""Counts, sizes, times and names as people read them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from memtopo.common.text import first_of, plural
from memtopo.common.units import rounded, shorten

if TYPE_CHECKING:
    from memtopo.machine import MachineLine
    from memtopo.plans.report import ProcessDifference, ProcessPlan

SHORT_NAME = 8


def things(count: int) -> str:
    """`1 thing is`, `2 things are`."""
    return f"{plural(count, 'thing')} {'is' if count == 1 else 'are'}"


def subjects(first: str, last: str, whole: int = SHORT_NAME) -> str:
    """One subject, or the first and the last of many; of a name longer than `whole`, only the last one's number."""
    if last in ("", first):
        return first
    stem, _, number = last.rpartition(".")
    shares_stem = stem and first.rpartition(".")[0] == stem
    return f"{first} … {number if shares_stem and len(stem) > whole else last}"


def processes(plan: ProcessPlan | ProcessDifference) -> str:
    """Processes of a plan: `reader.0 … reader.3, each`; with their node: `reader.0 … reader.3 on a, each`."""
    node = f" on {plan.node}" if plan.node else ""
    return f"{subjects(plan.first, plan.last)}{node}, each" if plan.count > 1 else f"{plan.first}{node}"


def size(amount: int) -> str:
    """A size for a table; empty for 0."""
    return rounded(amount) if amount else ""


def change(before: int, after: int, *, memory: bool = False) -> str:
    """Signed difference: `0`, `+2`, `-2 MiB`."""
    difference = after - before
    sign = "+" if difference > 0 else ""
    return f"{sign}{rounded(difference) if memory and difference else f'{difference:,}'}"


def duration(seconds: float) -> str:
    """A duration to three digits: `850 µs`, `12.3 ms`, `4.56 s`, `20 min 5 s`."""
    for unit, scale in (("µs", 1e-6), ("ms", 1e-3), ("s", 1.0)):
        if seconds < 999.5 * scale:
            return f"{seconds / scale:.3g} {unit}"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes:,} min {rest} s"


def age(seconds: float) -> str:
    """A long duration in whole units of the largest one: `5 s`, `20 min`, `3 h`, `12 d`."""
    for unit, scale, most in (("s", 1, 120), ("min", 60, 7200), ("h", 3600, 172800)):
        if seconds < most:
            return f"{max(int(seconds), 0) // scale} {unit}"
    return f"{int(seconds) // 86400:,} d"


def devices(names: Iterable[str]) -> str:
    """Names of GPUs with counts: `2 × NVIDIA H200`."""
    return ", ".join(f"{count} × {name}" for name, count in Counter(names).items()) or "no GPU"


def machine(line: MachineLine) -> str:
    """Name of a machine: `h200x2 (simulated)`, `a100x8 (simulated, estimated)`."""
    if line.estimated:
        return f"{line.name} (simulated, estimated)"
    return f"{line.name} (simulated)" if line.simulated else line.name


def rate(size: int, seconds: float) -> str:
    """Bandwidth in decimal units, as vendors give it: `3.26 TB/s`."""
    bandwidth = size / seconds if seconds else 0.0
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB")):
        if bandwidth >= unit:
            return f"{bandwidth / unit:.3g} {name}/s"
    return f"{bandwidth / 1e3:.3g} kB/s"


def moved(names: Sequence[str], most: int) -> str:
    """Consequence of a change of addresses: `kv moves: pointers and graphs that have its address are invalid`."""
    verb, address = ("moves", "its address") if len(names) == 1 else ("move", "their addresses")
    return f"{first_of(names, most)} {verb}: pointers and graphs that have {address} are invalid"


def parameters(values: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Name and text of the property of a layout that lists the parameters of its spec; nothing if it has none."""
    if values:
        yield "parameters", " ".join(f"{name}={shorten(value)}" for name, value in values.items())
