"""Loads of a file of safetensors into memory of a GPU, beside the packages `safetensors` and `fastsafetensors`.

    python -m bench.loading FOLDER [GIB]

Each load is a process of its own, whose context exists before the time begins; the file is in the page cache, or in
memory if the folder is of tmpfs. A package that is not installed is left out.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from memtopo.common.errors import Unavailable
from memtopo.drivers.target import resolve

ROUNDS = 3
TENSOR = 64 << 20
"""Bytes of each tensor."""

OURS = """
import memtopo
with memtopo.applied(SPEC, "local") as layout:
    begun = time.perf_counter()
    layout.load(FILE)
    print(time.perf_counter() - begun)
"""
SAFETENSORS = """
import torch
from safetensors.torch import load_file
torch.zeros(1, device="cuda")
begun = time.perf_counter()
loaded = load_file(FILE, device="cuda:0")
torch.cuda.synchronize()
print(time.perf_counter() - begun)
"""
FASTSAFETENSORS = """
import torch
from fastsafetensors import SafeTensorsFileLoader, SingleGroup
torch.zeros(1, device="cuda")
begun = time.perf_counter()
loader = SafeTensorsFileLoader(SingleGroup(), "cuda:0", nogds=True)
loader.add_filenames({0: [FILE]})
buffer = loader.copy_files_to_device()
loaded = [buffer.get_tensor(name) for name in [*buffer.key_to_rank_lidx]]
torch.cuda.synchronize()
print(time.perf_counter() - begun)
"""
LOADS = {"memtopo": OURS, "safetensors": SAFETENSORS, "fastsafetensors": FASTSAFETENSORS}


def main() -> None:
    """Print the times and rates, and the ratio to memtopo's of each pair of a round."""
    given = sys.argv[1:] if sys.argv[0].endswith("loading.py") else []
    try:
        gpu = resolve("local").machine.devices[0].name
    except Unavailable as error:
        print(f"not run: {error.message}")
        return
    size = int(given[1] if given[1:] else 6) << 30
    with tempfile.TemporaryDirectory(dir=given[0] if given else None) as folder:
        times = measured(Path(folder), size)
    print(f"{gpu}, {size >> 30} GiB in tensors of {TENSOR >> 20} MiB, median of {ROUNDS} rounds")
    for name, found in times.items():
        ratio = statistics.median(ours / other for ours, other in zip(times["memtopo"], found, strict=True))
        took = statistics.median(found)
        print(f"{name:16} {took:6.2f} s {size / took / 1e9:6.1f} GB/s   memtopo takes {ratio:5.2f} of it")


def measured(folder: Path, size: int) -> dict[str, list[float]]:
    """Seconds of each round of each load."""
    file, spec = folder / "tensors.safetensors", folder / "spec.yaml"
    write(file, size)
    spec.write_text(
        f"memtopo: 1\nname: bench\nranges: {{w: {{size: {(size >> 30) + 1}GiB}}}}\n"
        f"chunks: {{c: {{location: gpu0, size: 1GiB, count: {(size >> 30) + 1}}}}}\n"
        "map: {w: [c]}\naccess: {w: {gpu0: rw}}\n"
    )
    installed = [name for name in LOADS if find_spec(name)]
    times: dict[str, list[float]] = {name: [] for name in installed}
    for _ in range(ROUNDS):
        for name in installed:
            times[name].append(seconds(f"import time\nFILE, SPEC = {str(file)!r}, {str(spec)!r}{LOADS[name]}"))
    return times


def write(file: Path, size: int) -> None:
    """Write tensors of bytes."""
    spans = [(start, start + TENSOR) for start in range(0, size, TENSOR)]
    header = {f"t{n}": {"dtype": "U8", "shape": [TENSOR], "data_offsets": span} for n, span in enumerate(spans)}
    text = json.dumps(header).encode()
    with file.open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for number, _ in enumerate(spans):
            out.write(bytes([number % 256]) * TENSOR)


def seconds(program: str) -> float:
    """Seconds that a program prints."""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    return float(done.stdout.split()[-1])


if __name__ == "__main__":
    main()
