"""Pages of 2 MiB mapped and unmapped, one or 64 a call: memtopo, the bare calls, and kvcached where it is installed.

An engine with an elastic KV cache maps a page when a sequence grows and unmaps it when the sequence ends. kvcached maps
a page of zeros at each address that has no memory, and creates and releases memory each time; it is called as its
engines call it, by `kvcached.vmm_ops`, with one layer and one page an offset. memtopo is measured with chunks that are
kept (`reuse`) and with chunks that are created and released (`create`). All follow one another in each round.
"""

from __future__ import annotations

import importlib
import importlib.util
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from typing import Any

import memtopo
from bench.elastic import PLACES, SIZE, SPEC, Loop
from memtopo.api.elastic import ElasticRange
from memtopo.common.errors import Unavailable
from memtopo.drivers.target import resolve

ROUNDS = 600
WARM = 20


def main() -> None:
    """Print the median time of each in µs a page, and the median ratios of memtopo to the others in the same rounds."""
    try:
        local = resolve("local")
    except Unavailable as error:
        print(f"not run: {error.message}")
        return
    print(f"{local.machine.devices[0].name}, {ROUNDS} rounds, pages of 2 MiB mapped and unmapped")
    kvcached = _kvcached()
    with memtopo.applied(SPEC, local) as layout:
        for count in (1, 64):
            with closing(Loop(count)) as loop:
                for case, create in (("reuse", False), ("create", True)):
                    layout.chunks("page").trim()
                    parties = {
                        "bare calls": partial(loop.batch, create=create),
                        "kvcached": kvcached and partial(kvcached, count),
                        "memtopo": partial(_memtopo, layout.range("kv"), count, create=create),
                    }
                    _compare(f"{count:2} a call, {case}", count, parties)


def _memtopo(kv: ElasticRange, count: int, place: int, *, create: bool) -> float:
    start = time.perf_counter()
    kv.map(place, "page", count)
    kv.unmap(place, count * SIZE, release=create)
    return time.perf_counter() - start


def _compare(case: str, count: int, timed: Mapping[str, Callable[[int], float] | None]) -> None:
    parties = [(name, run) for name, run in timed.items() if run]
    rows: dict[str, list[float]] = {name: [] for name, _ in parties}
    for index in range(ROUNDS + WARM):
        first = index % len(parties)
        for name, run in parties[first:] + parties[:first]:
            rows[name].append(run(index % PLACES * count * SIZE))
    ours = rows["memtopo"][WARM:]
    for name, times in rows.items():
        ratio = statistics.median(mine / other for mine, other in zip(ours, times[WARM:], strict=True))
        took = statistics.median(times[WARM:]) * 1e6 / count
        print(f"{case:18}  {name:10}  {took:6.1f} µs a page   memtopo / {name}: {ratio:5.2f}")


def _kvcached() -> Callable[[int, int], float] | None:
    """A function that maps and unmaps so many pages in a tensor of 1 GiB of kvcached, and returns the seconds."""
    if importlib.util.find_spec("kvcached") is None:
        print("kvcached is not installed")
        return None
    importlib.import_module("torch")  # its library needs that of PyTorch
    library: Any = importlib.import_module("kvcached.vmm_ops")
    library.init_kvcached("cuda:0", SIZE, contiguous_layout=False)
    library.create_kv_tensors(1 << 30, 2, "cuda:0", 1, 1, unified_pool=True)

    def pages(count: int, place: int) -> float:
        offsets = [*range(place, place + count * SIZE, SIZE)]
        start = time.perf_counter()
        library.map_to_kv_tensors(offsets)
        library.unmap_from_kv_tensors(offsets)
        return time.perf_counter() - start

    return pages


if __name__ == "__main__":
    main()
