"""Specs of one process that a seeded generator writes as text, valid or not, for machines with all kinds of support.

The generator shares nothing with `strategies`: it does not know what is valid. It favours plausible values, and mixes
in unusual ones: odd sizes, the same chunk mapped often, fixed addresses, advice, host memory.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from memtopo.machine import Machine, Trial
from tests.helpers.machines import invented

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
_UNSUPPORTED = (
    "CONCURRENT_MANAGED_ACCESS",
    "MANAGED_MEMORY",
    "GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED",
    "GENERIC_COMPRESSION_SUPPORTED",
    "HANDLE_TYPE_FABRIC_SUPPORTED",
)


def random_machine(seed: int) -> Machine:
    """A machine of one to three GPUs, often without peers or without some support."""
    chooser = random.Random(seed)
    missing = dict.fromkeys(chooser.sample(_UNSUPPORTED, chooser.choice((0, 0, 1, 2))), 0)
    return invented(
        chooser.randint(1, 3),
        memory=chooser.choice((GIB, 4 * GIB, 80 * GIB)),
        peers=chooser.random() < 0.7,
        granule=chooser.choice((2 * MIB, 2 * MIB, 64 * MIB)),
        nodes=chooser.randint(0, 2),
        attributes=missing | {"MULTICAST_SUPPORTED": 1},
        trials={"multicast": Trial(advertised=True, works=chooser.choice((True, True, False)))},
    )


def random_layout(seed: int, machine: Machine) -> str:
    """The text of one spec, most of whose devices and sizes are those of the machine."""
    layout = _Layout(random.Random(seed), machine)
    return "".join(f"{line}\n" for line in ("memtopo: 1", "name: random", *layout.lines()))


_EXPORTS = (
    ("chunk: c0", "fd"), ("buffer: b0", "ipc"), ("event: e0", "ipc"), ("allocation: a0", "fd"), ("chunk: c0", "dmabuf"),
    ("range: r0", "dmabuf"), ("buffer: b0", "dmabuf"),
)  # fmt: skip


class _Layout:
    """Choices for one spec: names and sizes of its chunks and ranges."""

    def __init__(self, chooser: random.Random, machine: Machine) -> None:
        self._chooser = chooser
        self._gpus = [f"gpu{ordinal}" for ordinal in range(len(machine.devices))]
        self._host = list(machine.host)
        self._granule = machine.devices[0].memory.granularity[0].minimum
        self._names: set[str] = set()
        self._chunks = {f"c{index}": self._chunk_size() for index in range(chooser.randint(0, 3))}
        self._counts = {name: chooser.choice((0, 0, 1, 2, 3, 7)) for name in self._chunks}

    def lines(self) -> Iterator[str]:
        yield from self._section("chunks", [self._chunk(name) for name in self._chunks])
        yield from self._ranges()
        heaps = self._few() if self._chooser.random() < 0.25 else 0
        yield from self._section("heaps", [self._heap(f"h{index}") for index in range(heaps)])
        yield from self._section("buffers", [self._buffer(f"b{index}") for index in range(self._few())])
        yield from self._section("managed", [self._managed(f"m{index}") for index in range(self._few())])
        pools = [f"q{index}" for index in range(self._few())]
        yield from self._section("pools", [self._pool(name) for name in pools])
        yield from self._section(
            "allocations", [self._allocation(f"a{index}", pool) for index, pool in enumerate(pools)]
        )
        yield from self._section("pinned", [self._pinned(f"p{index}") for index in range(self._few())])
        yield from self._team()
        events = [f"e{index}: {{device: {self._gpu()}}}" for index in range(self._few())]
        yield from self._section("events", [f"e: {{device: {self._gpu()}}}", *events])
        yield from self._section("exports", [self._export(f"x{index}") for index in range(self._few())])

    def _section(self, name: str, entries: list[str]) -> Iterator[str]:
        if entries:
            self._names.update(entry.partition(":")[0] for entry in entries)
            yield f"{name}:"
            yield from (f"  {entry}" for entry in entries)

    def _team(self) -> Iterator[str]:
        """A multicast object, seldom, to which chunks are bound that fit it or not."""
        if self._chunks and self._chooser.random() < 0.2:
            team = ", ".join(self._chooser.sample(self._gpus, self._chooser.randint(1, len(self._gpus))))
            size = self._granule * self._chooser.choice((1, 2, 7))
            yield from self._section("multicast", [f"t: {{devices: [{team}], size: {size}B}}"])
            yield from self._section("bind", [f"t: [{self._chooser.choice([*self._chunks])}]"])

    def _few(self) -> int:
        return self._chooser.choice((0, 0, 0, 1, 2))

    def _gpu(self) -> str:
        return self._chooser.choice(self._gpus)

    def _place(self) -> str:
        return self._chooser.choice((self._gpu(), self._gpu(), self._gpu(), *self._host))

    def _chunk_size(self) -> int:
        return self._granule * self._chooser.choice((1, 1, 1, 2, 3, 5))

    def _bytes(self) -> int:
        number = self._chooser.choice((1, 2, 3, 5, 7, 16, 17, 100, 4095))
        return number * self._chooser.choice((1, 16, KIB, 4 * KIB, 64 * KIB, MIB, 2 * MIB))

    def _chunk(self, name: str) -> str:
        count = self._counts[name]
        places = [self._place()]
        if count > 1 and self._chooser.random() < 0.3:
            places += [self._place() for _ in range(self._chooser.randint(1, 2))]
        fields = [f"location: [{', '.join(places[: max(count, 1)])}]", f"size: {self._chunks[name]}B"]
        fields += [f"count: {count}"] if count else []
        if self._chooser.random() < 0.3:
            fields.append(f"handles: {self._chooser.choice(('fd', 'fd', 'fd', '[fd, fabric]', 'fabric'))}")
        if self._chooser.random() < 0.1:
            fields.append(self._chooser.choice(("rdma: true", "compressible: true")))
        return f"{name}: {{{', '.join(fields)}}}"

    def _ranges(self) -> Iterator[str]:
        ranges, mapped, access = [], [], []
        for index in range(self._chooser.randint(0, 3)):
            name = f"r{index}"
            size, entries = self._mapped()
            number = self._chooser.choice((0, 0, 0, 1, 2))
            size += self._granule * self._chooser.choice((0, 0, 0, 1, 4)) or (0 if size else self._granule)
            fields = [f"size: {size}B", *([f"count: {number}"] if number else []), *self._address()]
            ranges.append(f"{name}: {{{', '.join(fields)}}}")
            key = f"{name}.{self._chooser.randrange(number)}" if number and self._chooser.random() < 0.7 else name
            if entries:
                mapped.append(f"{key}: [{', '.join(entries)}]")
            if self._chooser.random() < 0.8:
                access.append(f"{key}: {self._access(size)}")
        yield from self._section("ranges", ranges)
        yield from self._section("map", mapped)
        yield from self._section("access", access)

    def _address(self) -> Iterator[str]:
        if self._chooser.random() < 0.3:
            yield f"align: {self._granule << self._chooser.randint(0, 9)}B"
        if self._chooser.random() < 0.4:
            base = self._chooser.choice((0x20000000000, 0x300000000000, 0x10000000000, 0x530000000000))
            yield f"address: {base + self._chooser.randrange(64) * self._chooser.choice((self._granule, 32 * MIB)):#x}"
            if self._chooser.random() < 0.6:
                yield "fixed: true"

    def _mapped(self) -> tuple[int, list[str]]:
        """Entries of `map` and the bytes that they need."""
        entries, end = [], 0
        for _ in range(self._chooser.randint(0, 3) if self._chunks else 0):
            name = self._chooser.choice(list(self._chunks))
            count, size = self._counts[name], self._chunks[name]
            part, number = name, max(count, 1)
            if count and self._chooser.random() < 0.5:
                first = self._chooser.randrange(count)
                number = self._chooser.randint(1, count - first)
                part = f"{name}.{first}:{first + number}"
            if self._chooser.random() < 0.2:
                end += self._granule * self._chooser.randint(0, 2)
                part = f"{{chunk: {part}, offset: {end}B}}"
            entries.append(part)
            end += number * size
        return end, entries

    def _grants(self) -> str:
        words = {
            place: self._right()
            for place in (self._gpu(), self._place() if self._chooser.random() < 0.4 else self._gpu())
        }
        return f"{{{', '.join(f'{place}: {right}' for place, right in words.items())}}}"

    def _right(self) -> str:
        return self._chooser.choice(("rw", "rw", "r", "none"))

    def _access(self, size: int) -> str:
        if self._chooser.random() < 0.7:
            return self._grants()
        cut = self._granule * self._chooser.randint(1, max(1, size // self._granule))
        return f"[{{offset: 0, size: {cut}B, grant: {self._grants()}}}, {{size: {size}B, grant: {self._grants()}}}]"

    def _buffer(self, name: str) -> str:
        count = self._chooser.choice(("", "", ", count: 3"))
        return f"{name}: {{location: {self._gpu()}, size: {self._bytes()}B{count}}}"

    def _pool(self, name: str) -> str:
        fields = [f"location: {self._place()}"]
        if self._chooser.random() < 0.5:
            fields.append("handles: fd")
        if self._chooser.random() < 0.3:
            fields.append(f"max_size: {self._bytes()}B")
        if self._chooser.random() < 0.3:
            fields.append(f"release_threshold: {self._bytes()}B")
        if self._chooser.random() < 0.2:
            fields.append("reuse_allow_internal_dependencies: false")
        if self._chooser.random() < 0.5:
            fields.append(f"accessed_by: [{self._gpu()}, {self._place()}]")
        return f"{name}: {{{', '.join(fields)}}}"

    def _allocation(self, name: str, pool: str) -> str:
        count = self._chooser.choice(("", "", ", count: 3"))
        return f"{name}: {{pool: {pool}, size: {self._bytes()}B{count}}}"

    def _heap(self, name: str) -> str:
        of_another = "" if name == "h0" else ", limit: h0"  # which has one more often than not
        limit = self._chooser.choice(("", of_another, ", limit: 10%", ", limit: 10%"))
        return f"{name}: {{location: {self._gpu()}, size: {self._bytes()}B, round: up{limit}}}"

    def _managed(self, name: str) -> str:
        fields = [f"size: {self._bytes()}B"]
        if self._chooser.random() < 0.3:
            fields.append(f"attach: {self._chooser.choice(('global', 'host', 'single'))}")
        advice = [key for key in ("prefer", "prefetch", "accessed_by") if self._chooser.random() < 0.3]
        fields += [f"{key}: {self._chooser.choice((self._gpu(), self._place()))}" for key in advice]
        if self._chooser.random() < 0.3:
            fields.append("read_mostly: true")
        return f"{name}: {{{', '.join(fields)}}}"

    def _pinned(self, name: str) -> str:
        fields = [f"size: {self._bytes()}B"]
        if self._chooser.random() < 0.3:
            fields.append("write_combined: true")
        if self._chooser.random() < 0.3:
            fields.append("count: 3")
        if self._chooser.random() < 0.5:
            fields.append(f"accessed_by: [{', '.join(self._chooser.sample(self._gpus, len(self._gpus)))}]")
        return f"{name}: {{{', '.join(fields)}}}"

    def _export(self, name: str) -> str:
        declared = [each for each in _EXPORTS if each[0].rpartition(" ")[2] in self._names]
        what, via = self._chooser.choice(declared or _EXPORTS)
        if self._chooser.random() < 0.7:
            return f"{name}: {{event: e, via: ipc}}"
        return f"{name}: {{{what}, via: {via}}}"
