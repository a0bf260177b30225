"""Specs with very many entries, and with numbers beyond all limits."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.helpers.machines import invented
from tests.helpers.specs import codes

# Specs that would take much longer if anything about them were quadratic: 60 ns a pair are six seconds.
MANY = 10_000
PAGES = f"chunks: {{p: {{location: gpu0, size: 2MiB, count: {MANY}}}}}\n"
LARGE: dict[str, tuple[str, list[str]]] = {
    "a count beyond measure": ("chunks: {p: {location: gpu0, size: 2MiB, count: 999999999999}}", ["MT109"]),
    "a key of access for each range": (
        f"ranges: {{kv: {{size: 2MiB, count: {MANY}}}}}\n{PAGES}map: {{kv: p}}\naccess:\n"
        + "".join(f"  kv.{index}: {{gpu0: rw}}\n" for index in range(MANY)),
        [],
    ),
    "a part for each page": (
        f"ranges: {{kv: {{size: {2 * MANY}MiB}}}}\n{PAGES}map: {{kv: p}}\naccess:\n  kv:\n"
        + "".join(f"  - {{offset: {2 * index}MiB, size: 2MiB, grant: {{gpu0: rw}}}}\n" for index in range(MANY)),
        [],
    ),
    "a part and an entry for each page": (
        f"ranges: {{kv: {{size: {2 * MANY}MiB}}}}\n{PAGES}map:\n  kv:\n"
        + "".join(f"  - p.{index}\n" for index in range(MANY))
        + "access:\n  kv:\n"
        + "".join(f"  - {{offset: {2 * index}MiB, size: 2MiB, grant: {{gpu0: rw}}}}\n" for index in range(MANY)),
        [],
    ),
    "many parts for many ranges": (
        f"ranges: {{kv: {{size: 2MiB, count: {MANY}}}}}\n{PAGES}map: {{kv: p}}\naccess:\n  kv:\n"
        + "  - {size: 2MiB, grant: {gpu0: rw}}\n" * 1000,
        ["MT109"],
    ),
    "very many parts that all overlap": (
        f"ranges: {{kv: {{size: {2 * MANY}MiB}}}}\n{PAGES}map: {{kv: p}}\naccess:\n  kv:\n"
        + f"  - {{size: {2 * MANY}MiB, grant: {{gpu0: rw, gpu1: r}}}}\n" * MANY,
        [],
    ),
    "names that are like others": (
        "chunks:\n" + "".join(f"  chunk-{index}: {{location: gpu0, size: 2MiB}}\n" for index in range(MANY))
        + "ranges: {kv: {size: 2GiB}}\nmap:\n  kv:\n" + "".join(f"  - chank-{index}\n" for index in range(MANY)),
        ["MT201"] * 1000,
    ),
    "undeclared devices": (
        "chunks:\n" + "".join(f"  c{index}: {{location: gqu{index}, size: 2MiB}}\n" for index in range(MANY)),
        ["MT201"] * 1000,
    ),
    "one page over and over": (
        "ranges: {kv: {size: 2MiB}}\nchunks: {p: {location: gpu0, size: 2MiB}}\nmap:\n  kv:\n"
        + "  - {chunk: p, offset: 0}\n" * MANY + "access: {kv: {gpu0: rw}}",
        ["MT304"] * 1000,
    ),
    "very many managed allocations": (
        "managed:\n"
        + "".join(f"  m{index}: {{size: 1MiB, prefer: gpu0, accessed_by: [gpu1, host]}}\n" for index in range(MANY)),
        [],
    ),
    "very many external objects": (
        "external:\n" + "".join(
            f"  f{index}: {{from: camera, via: opaque_fd, device: gpu0, size: 8MiB, buffers: {{y: {{size: 4MiB}}}}}}\n"
            for index in range(MANY)
        ),
        [],
    ),
    "very many parts of one object": (
        "external: {f: {from: camera, via: opaque_fd, device: gpu0, size: 1MiB, buffers: {"
        + "".join(f"p{index}: {{offset: {index}B, size: 1MiB}}, " for index in range(MANY)) + "}}}",
        ["MT703"] * 1000,
    ),
    "very many waits for one semaphore": (
        "semaphores:\n" + "".join(
            f"  s{each}: {{from: camera/r, via: timeline_fd, device: gpu0, wait: {each + 2}, signal: {each + 3}}}\n"
            for each in range(MANY)
        ),
        ["MT705"] * 1000,
    ),
    "very many uses that only chunks have": (
        "managed: {m: {size: 2MiB}}\nexports:\n"
        + "".join(f"  x{index}: {{buffer: m, via: ipc}}\n" for index in range(MANY)),
        ["MT706"] * 1000,
    ),
    "very many elastic ranges, each with chunks of its own": (
        "ranges:\n"
        + "".join(f"  r{index}: {{size: 2MiB, elastic: {{chunks: c{index}}}}}\n" for index in range(MANY // 2))
        + "chunks:\n" + "".join(
            f"  c{index}: {{location: gpu0, size: 2MiB, count: {{min: 0, max: fill}}}}\n" for index in range(MANY // 2)
        ),
        ["MT503"] * 1000,
    ),
    "very many dma-bufs of a chunk that is in as many ranges": (
        "chunks: {c: {location: gpu0, size: 2MiB}}\nranges:\n"
        + "".join(f"  r{index}: {{size: 2MiB}}\n" for index in range(MANY // 2))
        + "map:\n" + "".join(f"  r{index}: [c]\n" for index in range(MANY // 2))
        + "exports:\n" + "".join(f"  x{index}: {{chunk: c, via: dmabuf}}\n" for index in range(MANY // 2)),
        ["MT503"] * 1000,
    ),
    "very many locations": (
        f"chunks: {{p: {{size: 2MiB, count: {MANY}, location: [{'gpu0,' * MANY}]}}}}", ["MT501"]
    ),
}  # fmt: skip

LIKE_OTHERS = {name for name in LARGE if name.startswith("very many") and not name.endswith(("overlap", "locations"))}
"""Entries of one section; tests/rules/test_scaling.py counts the work for fewer of them."""
LONG = pytest.mark.exhaustive


@contextmanager
def processor_time(seconds: float) -> Iterator[None]:
    """Raise an exception in a test that takes more processor time, whatever else the machine does."""

    def end(*_: object) -> None:
        raise TimeoutError(f"more than {seconds} s of processor time")

    before = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@pytest.mark.parametrize("name", [pytest.param(name, marks=LONG if name in LIKE_OTHERS else ()) for name in LARGE])
def test_a_spec_with_10_000_entries_is_validated_in_seconds(name: str) -> None:
    """However its entries refer to one another."""
    text, expected = LARGE[name]
    with processor_time(6.0):
        assert codes(text, invented(2, memory=1 << 40)) == expected


def test_at_most_two_million_chunks_or_ranges_are_accepted() -> None:
    """In one entry or in several."""
    entry = "{location: gpu0, size: 2MiB, count: %d}"
    at = f"chunks: {{a: {entry % 1_000_000}, b: {entry % 1_000_000}}}"
    over = f"chunks: {{a: {entry % 1_000_000}, b: {entry % 1_000_001}}}"
    machine = invented(1, memory=1 << 43)
    assert [code for code in codes(at, machine) if code != "MT501"] == []
    assert [code for code in codes(over, machine) if code != "MT501"] == ["MT109"]
    assert codes("ranges: {a: {size: 2MiB, count: 2000000}, b: {size: 2MiB}}") == ["MT109"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("chunks: {a: {location: host, size: 18446744073709551615 granules}}", ["MT310", "MT501", "MT402"]),
        ("chunks: {a: {location: host, size: 128TiB}}", ["MT310", "MT501", "MT402"]),
        ("ranges: {a: {size: 2MiB, align: 128TiB}}", ["MT306"]),
        ("ranges: {a: {size: 2MiB, align: 18446744073709551615 granules}}", ["MT306"]),
        ("ranges: {a: {size: 2MiB, align: 3MiB}}", ["MT306"]),
        ("ranges: {a: {size: 2MiB, address: 0xffffffffffe00000}}", ["MT307"]),
        ("ranges: {a: {size: 2MiB, address: 0x7fffffe00000, count: 2}}", ["MT307"]),
        ("ranges: {a: {size: 2MiB, align: 1GiB, address: 0x7fff80000000, count: 3}}", ["MT307"]),
        ("ranges: {a: {size: 64TiB}, b: {size: 64TiB}}", ["MT310", "MT502", "MT502"]),
    ],
)
def test_numbers_beyond_the_address_space_are_refused(text: str, expected: list[str]) -> None:
    """Before any driver call."""
    assert codes(text) == expected
