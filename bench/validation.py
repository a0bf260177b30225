"""Validation of 2,000 specs of about 1 KB, compared with check-jsonschema, which checks the same files by schema alone.

Both are whole processes with all files, from bytecode in all rounds but the first; memtopo also lays out each spec on a
machine and applies its rules. A third one makes PyYAML's events of each file and nothing else, which is the least for a
program that reads YAML by PyYAML.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

from bench import processes

ROOT = Path(__file__).parent.parent
FILES = 2000
ROUNDS = 3
LEAST_RATIO = 4


def main() -> None:
    """Print the specs that each validates in a second of user and system time, and the median ratio of the pairs."""
    beside = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    if not (other := shutil.which("check-jsonschema", path=beside)):
        print("not run: check-jsonschema is not installed")
        return
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as bytecode:
        files = write(Path(folder))
        size = sum(file.stat().st_size for file in files) / FILES
        ours = [sys.executable, "-m", "memtopo", "validate", folder, "--machine", "h200x2"]
        theirs = [other, "--schemafile", "docs/spec.schema.json", *map(str, files)]
        events = [sys.executable, "-m", "bench.events", folder]
        commands = (ours, theirs, events)
        environment = processes.with_bytecode(bytecode)
        rounds = [tuple(processes.cpu_seconds(each, ROOT, environment) for each in commands) for _ in range(ROUNDS)]
    mine, other_rate, parsed = (FILES / statistics.median(times) for times in zip(*rounds, strict=True))
    ratio = statistics.median(slow / fast for fast, slow, _ in rounds)
    print(f"{FILES:,} specs of {size:,.0f} bytes, median of {ROUNDS} alternating processes each")
    print(f"check-jsonschema --schemafile  {other_rate:8,.0f} specs a second and core")
    print(f"PyYAML's events alone          {parsed:8,.0f} specs a second and core")
    print(f"memtopo validate               {mine:8,.0f} specs a second and core")
    print(f"ratio, median of the pairs     {ratio:8.1f}   (at least {LEAST_RATIO})")


def write(folder: Path, count: int = FILES) -> list[Path]:
    """Write the specs as files in a folder."""
    files = [folder / f"spec-{number:04}.yaml" for number in range(count)]
    for number, file in enumerate(files):
        file.write_text(_spec(number))
    return files


def _spec(number: int) -> str:
    """Spec of a cache of four layers, with names and sizes of its number."""
    pages = 8 + number % 24
    layers = [f"layer-{number}-{index}" for index in range(4)]
    ranges = "".join(f"  {layer}: {{size: {2 * pages + 32}MiB, align: 2MiB}}\n" for layer in layers)
    chunks = "".join(
        f"  {layer}-head: {{location: prefill, size: 32MiB, handles: [fd]}}\n"
        f"  {layer}-page: {{location: [prefill, decode], size: 2MiB, count: {pages}}}\n"
        for layer in layers
    )
    filled = "".join(f"  {layer}:\n    - {layer}-head\n    - {layer}-page\n" for layer in layers)
    access = "".join(f"  {layer}: {{prefill: rw, decode: r}}\n" for layer in layers)
    head = f"memtopo: 1\nname: cache-{number}\ndevices: {{prefill: 0, decode: 1}}\n"
    return f"{head}ranges:\n{ranges}chunks:\n{chunks}map:\n{filled}access:\n{access}"
