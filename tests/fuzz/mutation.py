"""Random mutations of inputs: the fuzzing that needs no atheris."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
LARGEST = 64 << 10
TOKENS = [
    b": ", b"- ", b"? ", b"{", b"}", b"[", b"]", b",", b"&a ", b"*a", b"!!int ", b"|", b">", b"'", b'"', b"%", b"#",
    b"\n", b"\r", b"\t", b"\0", b"\x1b", b"\xff", b"\xc3", b"\xef\xbb\xbf", b"\xe2\x80\xae", b"\xc2\x85", b"\\",
    b"---\n", b"...\n", b"<<: ", b"<<<<<<< ", b"2MiB", b"0", b"-1", b"1e9", b"999999999999", b"granules", b"count: ",
    b"size: ", b"gpu0", b"host:0", b"kv", b".0:2", b".9", b"  ", b"processes:\n", b"exports: ", b"imports: ", b"from: ",
    b"via: ipc", b"server.out", b"count: 127", b"visible: ",
    b"managed:\n", b"external: ", b"semaphores: ", b"prefer: ", b"accessed_by: ", b"via: opaque_fd", b"wait: ",
    b"pinned:\n", b"file: /dev/shm/x", b"write_combined: true", b"read_only: ",
    b"pools:\n", b"allocations:\n", b"pool: ", b"allocation: ", b"max_size: ", b"via: dmabuf", b"part: ",
    b"multicast:\n", b"bind:\n", b"devices: gpus", b"states:\n",
    b"signal: ", b"camera/frame", b"params: {a: $b, b: 2}\n", b"$a", b"$b * ", b"/ 3", b"$",
]  # fmt: skip


def seeds() -> list[bytes]:
    """The corpus, the bad examples, and the specs of memtopo."""
    files = [*ROOT.glob("tests/corpus/*"), *ROOT.glob("tests/bad/*.yaml"), *ROOT.glob("specs/*.yaml")]
    return [path.read_bytes() for path in sorted(files)]


def mutations(seed: int, known: list[bytes]) -> Iterator[bytes]:
    """An endless sequence of inputs of up to 64 KiB."""
    chance = random.Random(seed)
    while True:
        data = chance.choice(known)
        for _ in range(chance.randint(1, 6)):
            data = _mutated(chance, data, known)[:LARGEST]
        yield data


def _mutated(chance: random.Random, data: bytes, known: list[bytes]) -> bytes:
    low, high = sorted((chance.randint(0, len(data)), chance.randint(0, len(data))))
    head, tail, token = data[:low], data[low:], chance.choice(TOKENS)
    other = chance.choice(known)
    results = [
        head + token + tail,
        head + data[min(high, low + 20) :],
        head + token + data[min(high, low + 6) :],
        head + chance.randbytes(chance.randint(1, 4)) + tail[1:],
        data[:high] + tail,
        head + other[chance.randint(0, len(other)) :],
        head + tail[:40] * chance.choice([2, 50, 2000]) + tail,
        _shuffled(chance, data),
    ]
    return chance.choice(results)


def _shuffled(chance: random.Random, data: bytes) -> bytes:
    lines = data.split(b"\n")[:400]
    chance.shuffle(lines)
    return b"\n".join(lines)
