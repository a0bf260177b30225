"""Specs with an elastic range, and batches of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memtopo.api.elastic import ElasticRange
from tests.helpers.specs import ROOT

M = 2 << 20
KV = ROOT / "specs/elastic-kv.yaml"
HEAP = ROOT / "specs/growing-heap.yaml"


def spec(*, zero: bool = False, access: Any = None, least: int = 2, most: int = 8, **more: Any) -> dict[str, Any]:
    """Elastic range of 16 pages, of which `most` may be mapped at once."""
    page = {"location": "gpu0", "size": "2MiB", "count": {"min": str(least), "max": str(most)}}
    elastic: Any = {"chunks": ["page"], "zero": "blank"} if zero else "true"
    return {
        "memtopo": 1,
        "name": "elastic",
        "ranges": {"kv": {"size": "32MiB", "elastic": elastic}},
        "chunks": {"page": page, **({"blank": {"location": "gpu0", "size": "2MiB"}} if zero else {})},
        "access": {"kv": access or {"gpu0": "rw"}},
        **more,
    }


def batched(kv: ElasticRange, unmaps: Sequence[tuple[int, int]], maps: Sequence[tuple[int, int]]) -> tuple[str, ...]:
    """Make a batch of unmaps and maps, each a number of pages from a page on; return the labels mapped."""
    with kv.batch() as batch:
        for at, count in unmaps:
            batch.unmap(at * M, count * M)
        for at, count in maps:
            batch.map(at * M, "page", count)
    return batch.labels


def offsets(kv: ElasticRange) -> list[int]:
    return [each.offset // M for each in kv.mappings]
