"""Checks that hold for any input: diagnostics with positions inside the text, or a spec that can be planned."""

from __future__ import annotations

from collections.abc import Callable

from memtopo import planner
from memtopo.diagnostics.model import TextSpan
from memtopo.geometry import Geometry
from memtopo.kinds.external import ExternalObject
from memtopo.language import Document, read_text
from memtopo.rules import Validated, validate
from tests.helpers.strategies import machine

MACHINE = machine()
MOST_STEPS = 10_000
KEYS = [
    "memtopo", "name", "devices", "ranges", "chunks", "map", "access", "size", "count", "align", "address", "fixed",
    "round", "location", "handles", "rdma", "compressible", "chunk", "offset", "grant", "kv", "kv.0", "kv.0:2", "hot",
    "page", "page.1", "page.0:3", "gpu0", "gpu1", "host", "host:0", "a", "b", "processes", "<<", "", "9", "kv.2:2",
    "buffers", "events", "exports", "imports", "from", "via", "buffer", "event", "device", "visible", "server", "out",
    "managed", "external", "semaphores", "attach", "prefer", "accessed_by", "read_mostly", "prefetch", "dedicated",
    "wait", "signal", "frame", "params", "$a", "pinned", "write_combined", "file", "read_only", "range",
    "part", "mapping", "pools", "allocations", "pool", "allocation", "max_size", "release_threshold",
    "reuse_allow_opportunistic", "multicast", "bind", "team", "states", "offload", "drop", "heaps", "limit",
]  # fmt: skip
VALUES = [
    "1", "0", "2", "3", "16", "-1", "1e3", "true", "false", "yes", "up", "fd", "fabric", "r", "rw", "none", "2MiB",
    "4MiB", "32MiB", "3MiB", "1 granule", "4 granules", "64", "0x200000", "0x7fffffe00000", "999999999999", "GPU-x",
    "1c:00.0", "18446744073709551615 granules", "\x1b", "é", "\u202e", "ipc", "server.out", "a.out", "b.a", "kv/hot",
    "/x/y", "server.out.0", "server", "/", ".", "128", "64KiB", "global", "single", "opaque_fd", "timeline_fd",
    "dma_buf", "dmabuf", "pcie",
    "nvscisync", "camera", "camera/frame", "a/b", "18446744073709551615", "18446744073709551616",
    "/dev/shm/ring", "/", "//", "/proc/self/mem",
    "gpus", "peers", "team", "near",
    "$a", "$b", "$a * $b", "$a / 3 + 2MiB", "($b", "page.0:$a", "$", "${a}",
]  # fmt: skip


def source(data: bytes) -> None:
    """Read and validate any bytes as text."""
    answered(read_text(data, "fuzz.yaml"))


def spec(data: bytes) -> None:
    """Validate a structure of the language's own words, which the bytes select."""
    root = _Chooser(data).mapping(0)
    validated = validate(Document.from_object({"memtopo": 1, "name": "fuzz", **root}, "fuzz"), MACHINE)
    assert validated.geometry is not None or validated.diagnostics
    _plan(validated)


CHECKS: dict[str, Callable[[bytes], None]] = {"source": source, "spec": spec}


def answered(document: Document) -> Validated:
    """Validate a document that was read from a text, and check the diagnostics."""
    validated = validate(document, MACHINE)
    assert validated.geometry is not None or validated.diagnostics
    for fault in validated.diagnostics:
        labels = [label.span or document.span(label.path, label.at) for label in fault.labels]
        for span in (fault.span or document.span(fault.path, fault.at), *labels):
            _inside(span, document)
        assert all(text.isprintable() for text in (fault.message, fault.help or "", *fault.notes)), fault
    _plan(validated)
    return validated


def _inside(span: TextSpan | None, document: Document) -> None:
    if span is None:
        assert not document.text
        return
    assert (1, 1) <= (span.line, span.column) <= (span.end_line, span.end_column)
    assert span.end_line <= document.text.count("\n") + 1
    assert span.column <= len(document.line(span.line)) + 2
    assert span.end_column <= len(document.line(span.end_line)) + 2


def _plan(validated: Validated) -> None:
    found = validated.geometry
    if found and _steps(found) < MOST_STEPS:
        planner.plan(found, MACHINE).summary()


def _steps(found: Geometry) -> int:
    return sum(_own_steps(member) for member in found.members.values())


def _own_steps(found: Geometry) -> int:
    mapped = sum(each.count for placed in found.placements.values() for each in placed)
    made = sum(group.count for group in found.every)
    parts = sum(len(group.buffers) for group in found.of(ExternalObject).values())
    return mapped + made + parts


class _Chooser:
    """Builds a structure from bytes, each of which selects the next part."""

    def __init__(self, data: bytes) -> None:
        self._bytes = iter(data)

    def mapping(self, depth: int) -> dict[str, object]:
        return {self._of(KEYS): self._value(depth + 1) for _ in range(self._next() % 8)}

    def _value(self, depth: int) -> object:
        kind = self._next() % 4 if depth < 5 else 3
        if kind == 0:
            return self.mapping(depth)
        if kind == 1:
            return [self._value(depth + 1) for _ in range(self._next() % 4)]
        return self._of(KEYS if kind == 2 else VALUES)

    def _of(self, words: list[str]) -> str:
        return words[self._next() % len(words)]

    def _next(self) -> int:
        return next(self._bytes, 0)
