"""Elastic ranges on a real GPU: bytes of what stays mapped, zero pages, and a thousand rounds without a trace."""

from __future__ import annotations

import random

import pytest

import memtopo
from memtopo.api import Live
from memtopo.driver.types import DriverError
from memtopo.kinds.layout import current
from tests.helpers.processes import open_descriptors
from tests.helpers.specs import ROOT

pytestmark = pytest.mark.gpu
KV, HEAP = ROOT / "specs/elastic-kv.yaml", ROOT / "specs/growing-heap.yaml"
M = 2 << 20
SEGMENT = 32 << 20


def fill(layout: Live, name: str, offset: int, size: int, value: int) -> None:
    session = layout._session
    with current(session.driver, session.layout.contexts[0]):
        session.driver.memset_d8(layout.range(name).address + offset, value, size)


def found(layout: Live, name: str, offset: int, size: int) -> set[int]:
    """Different bytes in a part of a range."""
    session = layout._session
    with current(session.driver, session.layout.contexts[0]):
        data = session.driver.memcpy_dtoh(layout.range(name).address + offset, size)
    return {data[0]} if data == data[:1] * size else set(data)


def free_memory(layout: Live) -> int:
    session = layout._session
    with current(session.driver, session.layout.contexts[0]):
        return session.driver.mem_get_info()[0]


def test_pages_keep_their_bytes_while_others_come_and_go() -> None:
    """Where no page is mapped, the zero page is; a page that is mapped again has the bytes that it had."""
    with memtopo.applied(KV) as layout:
        kv = layout.range("kv")
        kv.map(0, "page", 64)
        for page in range(64):
            fill(layout, "kv", page * M, M, page + 1)
        with kv.batch() as batch:
            batch.unmap(16 * M, 32 * M)
            batch.map(128 * M, "page", 48)
        assert not layout.check().different
        assert [found(layout, "kv", page * M, M) for page in range(16)] == [{page + 1} for page in range(16)]
        assert [found(layout, "kv", page * M, M) for page in range(48, 64)] == [{page + 1} for page in range(48, 64)]
        assert found(layout, "kv", 16 * M, 32 * M) == {0}
        assert found(layout, "kv", 64 * M, 64 * M) == {0}
        kv.unmap(0, M)
        (label,) = kv.map(300 * M, "page")
        assert (label, found(layout, "kv", 300 * M, M)) == ("page.0", {1})
        with pytest.raises(DriverError, match="INVALID_VALUE"):  # the zero page is read-only (fact 23)
            fill(layout, "kv", 0, M, 9)
    assert layout.report
    assert layout.report.outcome == "ok"


def test_a_heap_grows_and_shrinks_at_one_address() -> None:
    with memtopo.applied(HEAP) as layout:
        heap = layout.range("heap")
        before = free_memory(layout)
        fill(layout, "heap", 0, SEGMENT, 1)
        heap.map(SEGMENT, "segment", 31)
        fill(layout, "heap", SEGMENT, 31 * SEGMENT, 2)
        assert before - free_memory(layout) == 31 * SEGMENT
        heap.unmap(16 * SEGMENT, 16 * SEGMENT, release=True)
        assert before - free_memory(layout) == 15 * SEGMENT
        assert found(layout, "heap", 0, SEGMENT) == {1}
        assert found(layout, "heap", SEGMENT, 15 * SEGMENT) == {2}
        assert not layout.check().different
    assert layout.report
    assert layout.report.outcome == "ok"


def test_a_state_drops_a_cache_and_gives_back_its_memory() -> None:
    with memtopo.applied(KV) as layout:
        before = free_memory(layout)
        layout.range("kv").map(0, "page", 200)
        assert not layout.switch("idle").different
        assert free_memory(layout) == before + 16 * M
        assert not layout.switch("awake").different
        assert layout.range("kv").mappings == ()
        assert found(layout, "kv", 0, 64 * M) == {0}


def test_a_thousand_rounds_leave_memory_ledger_and_descriptors_unchanged() -> None:
    """Random batches, and a check of the bytes of what stays."""
    choose = random.Random(7)
    with memtopo.applied(KV) as layout:
        kv, pages, ledger = layout.range("kv"), layout.chunks("page"), layout._session.run.ledger
        kv.map(0, "page", 8)
        fill(layout, "kv", 0, 8 * M, 0x5A)
        before = free_memory(layout), ledger.counts(), open_descriptors()
        for n in range(1000):
            places = sorted(choose.sample(range(1, 8), choose.randint(1, 4)))
            counts = [choose.randint(1, 32) for _ in places]
            with kv.batch() as batch:
                for place, count in zip(places, counts, strict=True):
                    batch.map(place * 64 * M, "page", count)
            if n % 100 == 0:
                assert not layout.check().different
            with kv.batch() as batch:
                for place, count in zip(places, counts, strict=True):
                    batch.unmap(place * 64 * M, count * M, release=n % 3 == 0)
        assert found(layout, "kv", 0, 8 * M) == {0x5A}
        assert [found(layout, "kv", place * 64 * M, 32 * M) for place in range(1, 8)] == [{0}] * 7
        pages.trim()
        assert (free_memory(layout), ledger.counts(), open_descriptors()) == before
    assert layout.report
    assert (layout.report.outcome, layout.report.leaks) == ("ok", ())
