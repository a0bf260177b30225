"""Elastic ranges: a program maps and unmaps chunks under addresses that stay, all or nothing."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from threading import Thread
from typing import Any

import numpy as np
import pytest

import memtopo
from memtopo.api.elastic import ElasticRange, MappedChunk
from memtopo.drivers.target import Target
from memtopo.plans.report import Report
from tests.api.test_apply import failing
from tests.helpers.elastic import HEAP, KV, M, batched, offsets, spec
from tests.helpers.processes import open_descriptors
from tests.helpers.reports import require_taken_down


def test_a_cache_grows_and_shrinks_with_its_bytes(machine: Target) -> None:
    with memtopo.applied(KV, machine) as layout:
        kv, pages = layout.range("kv"), layout.chunks("page")
        for blocks in range(1, 9):
            kv.map((blocks - 1) * 16 * M, "page", 16)
            np.from_dlpack(kv.view((blocks - 1) * 16 * M, 16 * M))[:] = blocks
        assert (pages.created, pages.free) == (128, 0)
        kv.unmap(0, 64 * M)
        assert (pages.created, pages.free, pages.trim()) == (128, 64, 64 - 16)
        assert [np.from_dlpack(kv.view(each * 16 * M, M))[0] for each in range(8)] == [0, 0, 0, 0, 5, 6, 7, 8]
        assert not layout.check().different
    require_taken_down(layout)


def test_a_heap_grows_at_its_end(machine: Target) -> None:
    with memtopo.applied(HEAP, machine) as layout:
        heap, end = layout.range("heap"), 32 << 20
        for count in (1, 2, 4):
            heap.map(end, "segment", count)
            end += count * (32 << 20)
        assert heap.view(size=end).size == end
        heap.unmap(4 * (32 << 20), 4 * (32 << 20), release=True)
        assert layout.chunks("segment").created == 3
        assert heap.view(size=4 * (32 << 20)).size == 4 * (32 << 20)
    require_taken_down(layout)


def test_map_takes_chunks_that_exist_in_order_before_it_creates_any(machine: Target) -> None:
    with memtopo.applied(spec(), machine) as layout:
        kv, pages = layout.range("kv"), layout.chunks("page")
        assert kv.map(0, "page", 3) == ("page.0", "page.1", "page.2")
        assert kv.mappings == tuple(MappedChunk(at * M, M, f"page.{at}") for at in range(3))
        kv.unmap(M, 2 * M)
        assert (pages.created, pages.free, pages.limit, pages.size) == (3, 2, 8, M)
        assert kv.map(8 * M, "page", 2) == ("page.1", "page.2")
        assert "3 chunks mapped, 6MiB of 32MiB" in repr(kv)
        assert "3 of 8 exist, 0 not mapped" in repr(pages)


def test_unmapped_chunks_keep_their_bytes_until_they_are_released(machine: Target) -> None:
    with memtopo.applied(spec(), machine) as layout:
        kv = layout.range("kv")
        kv.map(0, "page")
        np.from_dlpack(kv.view(0, M))[:] = 7
        kv.unmap(0, M)
        kv.map(5 * M, "page")
        assert np.from_dlpack(kv.view(5 * M, M))[0] == 7


def test_released_numbers_are_used_again(machine: Target) -> None:
    with memtopo.applied(spec(least=0), machine) as layout:
        kv = layout.range("kv")
        kv.map(0, "page", 3)
        kv.unmap(M, M, release=True)
        assert layout.chunks("page").created == 2
        assert kv.map(M, "page") == ("page.1",)


def test_create_and_trim_change_what_is_not_mapped(machine: Target) -> None:
    with memtopo.applied(spec(), machine) as layout:
        kv, pages = layout.range("kv"), layout.chunks("page")
        pages.create(5)
        assert (pages.created, pages.free) == (7, 7)
        kv.map(0, "page", 4)
        assert (pages.free, pages.trim(keep=9), pages.trim(keep=1)) == (3, 0, 0)
        kv.unmap(0, 4 * M)
        assert (pages.trim(keep=2), pages.created) == (3, 4)
        with pytest.raises(memtopo.Unsuitable, match="a number of chunks"):
            pages.trim(keep="a")  # type: ignore[arg-type]
        assert (pages.trim(keep=-1), pages.created) == (2, 2)
        with pytest.raises(
            memtopo.Unsuitable, match="chunks 'page': 7 more are requested, and 6 of 8 can still be created"
        ):
            pages.create(7)


def test_a_batch_unmaps_everything_before_it_maps(machine: Target) -> None:
    with memtopo.applied(spec(least=0, most=4), machine) as layout:
        kv = layout.range("kv")
        kv.map(0, "page", 4)
        with kv.batch() as batch:
            batch.map(M, "page", 3)
            batch.map(9 * M, "page")
            batch.unmap(0, 4 * M)
        assert len(set(batch.labels)) == 4
        assert offsets(kv) == [1, 2, 3, 9]
        assert not layout.check().different


def test_a_batch_is_not_made_after_an_error_in_its_block(machine: Target) -> None:
    with memtopo.applied(spec(), machine) as layout:
        kv = layout.range("kv")
        with pytest.raises(TypeError):
            batched(kv, [(0, 1)], [(0, 1), None])  # type: ignore[list-item]
        assert kv.mappings == ()


def test_a_batch_takes_no_requests_after_its_end(machine: Target) -> None:
    with memtopo.applied(spec(), machine) as layout:
        with layout.range("kv").batch() as batch:
            batch.map(0, "page")
        for request in (lambda: batch.map(M, "page"), lambda: batch.unmap(0, M), batch.__enter__):
            with pytest.raises(memtopo.Unsuitable, match="batch has ended"):
                request()
        assert offsets(layout.range("kv")) == [0]


def test_work_is_awaited_before_anything_is_unmapped_unless_the_program_does_that() -> None:
    """Also where a chunk takes the place of a zero page."""
    with memtopo.applied(spec(zero=True), failing(0)) as layout:
        driver: Any = layout._session._opened
        kv = layout.range("kv")

        def calls(*, wait: bool) -> Iterator[int]:
            before = driver.calls
            kv.map(0, "page", wait=wait)
            yield driver.calls - before
            kv.unmap(0, M, wait=wait)
            yield driver.calls - before
            with kv.batch(wait=wait) as batch:
                batch.map(0, "page")
            yield driver.calls - before
            kv.unmap(0, M, wait=False)

        _first, waiting, others = ([*calls(wait=wait)] for wait in (False, True, False))
        wait, *after = (more - fewer for more, fewer in zip(waiting, others, strict=True))
        assert wait > 0
        assert after == [2 * wait, 3 * wait]


def test_offsets_and_counts_may_be_integers_of_numpy(machine: Target) -> None:
    with memtopo.applied(spec(), machine) as layout:
        kv = layout.range("kv")
        kv.map(np.int32(4 * M), "page", np.uint8(3))
        kv.unmap(np.int32(4 * M), np.int32(M))
        assert offsets(kv) == [5, 6]


def test_a_zero_chunk_is_mapped_wherever_nothing_else_is(machine: Target) -> None:
    with memtopo.applied(spec(zero=True), machine) as layout:
        kv = layout.range("kv")
        whole = np.from_dlpack(kv.view())
        assert not whole.flags.writeable
        assert not whole.any()
        kv.map(3 * M, "page", 2)
        page = np.from_dlpack(kv.view(3 * M, 2 * M))
        page[:] = 9
        assert sorted(set(whole[:: M // 2])) == [0, 9]
        kv.unmap(3 * M, M)
        assert (whole[3 * M], whole[4 * M]) == (0, 9)
        assert not layout.check().different
        with kv.batch() as batch:
            batch.unmap(4 * M, M)
            batch.map(3 * M, "page", 3)
        assert offsets(kv) == [3, 4, 5]
        assert not layout.check().different
        del whole, page


def test_access_by_part_is_that_of_the_place(machine: Target) -> None:
    access = [
        {"size": "16MiB", "grant": {"gpu0": "rw"}},
        {"offset": "16MiB", "size": "8MiB", "grant": {"gpu0": "rw", "gpu1": "r"}},
    ]
    with memtopo.applied(spec(access=access), machine) as layout:
        kv = layout.range("kv")
        kv.map(6 * M, "page", 7)
        assert not layout.check().different
        assert kv.view(8 * M, M, device="gpu1").read_only
        for offset in (7, 12):
            with pytest.raises(memtopo.Unsuitable, match=r"gpu1 has no access"):
                kv.view(offset * M, M, device="gpu1")


def test_a_chunk_across_a_change_of_access_is_refused(machine: Target) -> None:
    access = [{"size": "2MiB", "grant": {"gpu0": "rw"}}]
    found = spec(access=access)
    found["chunks"]["page"]["size"] = "4MiB"
    with memtopo.applied(found, machine) as layout:
        with pytest.raises(memtopo.Unsuitable, match="would lie across 2MiB, where the access changes"):
            layout.range("kv").map(0, "page")
        assert layout.range("kv").map(M, "page") == ("page.0",)


REFUSED: dict[str, tuple[Callable[[ElasticRange], object], str]] = {
    "offset": (lambda kv: kv.map(M // 2, "page"), "offset 1MiB is not a multiple of 2MiB .*0 and 2MiB"),
    "negative offset": (lambda kv: kv.map(-M, "page"), "ends at 32MiB: -2MiB is outside"),
    "offset beyond the end": (lambda kv: kv.map(20 * M, "page"), "ends at 32MiB: 40MiB is outside"),
    "offset as a text": (lambda kv: kv.map("2MiB", "page"), "offset is a whole number, not '2MiB'"),  # type: ignore[arg-type]
    "half a chunk": (lambda kv: kv.map(0, "page", 1.5), "count is a whole number, not '1.5'"),  # type: ignore[arg-type]
    "size as a float": (lambda kv: kv.unmap(4 * M, 2.0 * M), "size is a whole number"),  # type: ignore[arg-type]
    "end": (lambda kv: kv.map(14 * M, "page", 3), "3 chunks 'page' would end at 34MiB .*2 fit"),
    "end and limit": (lambda kv: kv.map(0, "page", 100), "from 0 on, 8 fit"),
    "count": (lambda kv: kv.map(0, "page", 0), "0 chunks cannot be mapped"),
    "name": (lambda kv: kv.map(0, "pages"), "did you mean 'page'"),
    "occupied": (lambda kv: kv.map(3 * M, "page", 2), "'page.0' is mapped from 8MiB to 10MiB .*same batch"),
    "limit": (lambda kv: kv.map(6 * M, "page", 7), "7 are requested, and 6 of 8 are left"),
    "nothing mapped": (lambda kv: kv.unmap(0, M), "nothing is mapped at 0"),
    "hole": (lambda kv: kv.unmap(4 * M, 3 * M), "nothing is mapped at 12MiB"),
    "inside": (lambda kv: kv.unmap(4 * M + M // 2, M), "9MiB is inside of 'page.0', mapped at 8MiB"),
    "part": (lambda kv: kv.unmap(4 * M, M // 2), "'page.0' is mapped from 8MiB to 10MiB .*whole"),
    "no bytes": (lambda kv: kv.unmap(4 * M, 0), "0 bytes cannot be unmapped"),
    "view of a hole": (lambda kv: kv.view(4 * M, 3 * M), "nothing is mapped in range 'kv' from 12MiB"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_before_the_first_call(name: str) -> None:
    call, message = REFUSED[name]
    with memtopo.applied(spec(), failing(0)) as layout:
        driver: Any = layout._session._opened
        kv = layout.range("kv")
        kv.map(4 * M, "page", 2)
        before, calls = kv.mappings, driver.calls
        with pytest.raises(memtopo.Unsuitable, match=message):
            call(kv)
        assert (kv.mappings, driver.calls) == (before, calls)


def test_a_batch_that_contradicts_itself_is_refused(machine: Target) -> None:
    with memtopo.applied(spec(), machine) as layout:
        kv = layout.range("kv")
        kv.map(0, "page", 2)
        with pytest.raises(memtopo.Unsuitable, match="unmaps the same chunk twice"):
            batched(kv, [(0, 2), (1, 1)], [])
        with pytest.raises(memtopo.Unsuitable, match="maps two chunks at 10MiB"):
            batched(kv, [], [(4, 2), (5, 1)])
        assert offsets(kv) == [0, 1]


def test_what_the_spec_maps_is_neither_unmapped_nor_mapped_over(machine: Target) -> None:
    with memtopo.applied(HEAP, machine) as layout:
        heap = layout.range("heap")
        with pytest.raises(memtopo.Unsuitable, match="the spec itself maps something from 0 to 32MiB"):
            heap.map(0, "segment")
        with pytest.raises(memtopo.Unsuitable, match="the mapping at 0 is fixed by the spec"):
            heap.unmap(0, 32 << 20)
        heap.map(32 << 20, "segment")
        assert heap.view(size=64 << 20).size == 64 << 20


@pytest.mark.parametrize("zero", [False, True])
def test_any_failing_call_of_a_batch_brings_everything_back(zero: bool) -> None:
    """Content, chunks, ledger and bytes are as before, whichever call fails."""
    with memtopo.applied(spec(zero=zero), failing(0)) as layout:
        driver: Any = layout._session._opened
        kv, pages = layout.range("kv"), layout.chunks("page")
        kv.map(0, "page", 3)
        kv.map(6 * M, "page", 2)
        kv.unmap(7 * M, M)
        np.from_dlpack(kv.view(0, 3 * M)).reshape(3, -1)[:] = [[1], [2], [3]]
        before = kv.mappings, pages.created, pages.free, layout._session.run.ledger.counts()
        points, failures = 0, []
        while True:
            points += 1
            driver.at = driver.calls + points
            try:
                batched(kv, [(1, 2)], [(2, 3), (9, 2)])
                break
            except memtopo.NotMapped as error:
                failures.append(str(error))
            driver.at = 0
            assert (kv.mappings, pages.created, pages.free, layout._session.run.ledger.counts()) == before
            assert not layout.check().different
            assert np.from_dlpack(kv.view(0, 3 * M))[::M].tolist() == [1, 2, 3]
        driver.at = 0
        assert points > 8
        assert all("it is as before" in each for each in failures)
        assert offsets(kv) == [0, 2, 3, 4, 6, 9, 10]
        assert not layout.check().different
    require_taken_down(layout)


def test_a_failed_return_leaves_a_range_that_can_only_be_taken_down() -> None:
    with memtopo.applied(spec(), failing(0)) as layout:
        driver: Any = layout._session._opened
        kv = layout.range("kv")
        kv.map(0, "page", 2)
        driver.at, driver._every = driver.calls + 5, True
        with pytest.raises(memtopo.NotMapped, match="can only be taken down"):
            batched(kv, [(0, 1)], [(4, 2)])
        driver.at = 0
        with pytest.raises(memtopo.Unsuitable, match="can only be taken down"):
            kv.map(8 * M, "page")
    require_taken_down(layout)


def test_a_view_shows_no_memory_that_a_failed_return_has_left_unmapped() -> None:
    with memtopo.applied(spec(), failing(0)) as layout:
        driver: Any = layout._session._opened
        kv = layout.range("kv")
        kv.map(0, "page", 2)
        view = np.from_dlpack(kv.view(0, 2 * M))
        view[:] = 7
        driver.at, driver._every = driver.calls + 6, True
        with pytest.raises(memtopo.NotMapped, match="can only be taken down"):
            batched(kv, [(0, 1)], [(4, 2)])
        driver.at = 0
        assert (offsets(kv), view[0], view[M]) == ([1], 0, 7)
        del view
    require_taken_down(layout)


def test_a_failed_creation_or_release_leaves_the_pool_consistent() -> None:
    with memtopo.applied(spec(), failing(0)) as layout:
        driver: Any = layout._session._opened
        pages = layout.chunks("page")
        driver.at = driver.calls + 3
        with pytest.raises(memtopo.NotMapped, match="they are as before"):
            pages.create(4)
        assert (pages.created, pages.free) == (2, 2)
        pages.create(4)
        driver.at = driver.calls + 2
        with pytest.raises(memtopo.NotMapped, match="1 were released, and the others stay"):
            pages.trim()
        assert (pages.created, pages.free) == (5, 5)
        assert pages.trim() == 3
        assert not layout.check().different
    require_taken_down(layout)


def test_a_batch_whose_release_is_refused_is_completed() -> None:
    """Chunks of the other entry are released, and what it maps stays."""
    two = spec(least=0)
    two["chunks"]["big"] = {"location": "gpu0", "size": "4MiB", "count": {"min": "0", "max": "2"}}
    with memtopo.applied(two, failing(0)) as layout:
        driver: Any = layout._session._opened
        kv, pages, large = layout.range("kv"), layout.chunks("page"), layout.chunks("big")
        kv.map(0, "page", 2)
        kv.map(2 * M, "big", 2)
        point = 0
        while driver.failed != "cuMemRelease":
            point += 1
            batch = kv.batch()
            batch.unmap(0, 6 * M, release=True)
            batch.map(12 * M, "page")
            driver.at = driver.calls + point
            with pytest.raises(memtopo.NotMapped), batch:
                pass
        driver.at = 0
        assert (offsets(kv), large.created, pages.free) == ([12], 0, pages.created - 1)
        assert not layout.check().different
    require_taken_down(layout)


def test_memory_that_is_exhausted_names_the_remedy() -> None:
    with memtopo.applied(spec(), failing(0, error="CUDA_ERROR_OUT_OF_MEMORY")) as layout:
        driver: Any = layout._session._opened
        driver.at = driver.calls + 1
        with pytest.raises(memtopo.NotMapped, match=r"OUT_OF_MEMORY.*release chunks that are not mapped by 'trim'"):
            layout.range("kv").map(0, "page", 4)


def taken_down_with_a_failure(at: int) -> Report:
    """Report of a layout whose teardown fails at a call."""
    applied = memtopo.applied(spec(), failing(0))
    layout = applied.__enter__()
    layout.range("kv").map(0, "page", 3)
    driver: Any = layout._session._opened
    driver.at = driver.calls + at
    with contextlib.suppress(memtopo.NotApplied):
        applied.__exit__(None, None, None)
    assert layout.report
    return layout.report


def test_a_failed_teardown_names_what_is_left() -> None:
    found: dict[str, tuple[str, ...]] = {}
    for at in range(1, 20):
        found |= {leak.what: leak.stays for leak in taken_down_with_a_failure(at).leaks}
    assert found.keys() >= {"chunk page.0", "chunk page.1", "range kv"}
    assert "mappings in kv" not in found  # they are unmapped one by one


def test_a_layout_is_taken_down_with_everything_mapped(machine: Target) -> None:
    before = open_descriptors()
    for zero in (False, True):
        with memtopo.applied(spec(zero=zero, least=1), machine) as layout:
            layout.range("kv").map(2 * M, "page", 5)
            layout.chunks("page").create(2)
        assert layout.report
        assert (layout.report.outcome, layout.report.leaks) == ("ok", ())
        assert layout.report.left
        assert not any(layout.report.left.ledger_after.values())
    assert open_descriptors() == before


def test_an_elastic_range_is_not_used_after_its_layout(machine: Target) -> None:
    with memtopo.applied(spec(), machine) as layout:
        kv, pages = layout.range("kv"), layout.chunks("page")
        batch = kv.batch()
        batch.map(0, "page")
    for call in (lambda: kv.map(0, "page"), lambda: kv.mappings, pages.trim, lambda: batch.__exit__(None, None, None)):
        with pytest.raises(memtopo.Unsuitable, match="taken down"):
            call()
    assert repr(kv) == "<range 'kv' no longer exists: its layout was taken down>"
    assert repr(pages) == "<chunks 'page' no longer exists: its layout was taken down>"


def test_an_elastic_range_has_no_view_as_a_whole(machine: Target) -> None:
    with memtopo.applied(spec(), machine) as layout:
        with pytest.raises(memtopo.Unsuitable, match=r"view a part of it: range\('kv'\)\.view"):
            layout.range("kv", dtype="float16")
        with pytest.raises(memtopo.Unsuitable, match=r"there is no entry of elastic chunks 'pages'.*'page'"):
            layout.chunks("pages")


def test_counted_elastic_ranges_share_their_chunks(machine: Target) -> None:
    found = spec(least=0)
    found["ranges"]["kv"]["count"] = "2"
    with memtopo.applied(found, machine) as layout:
        layout.range("kv.0").map(0, "page", 5)
        with pytest.raises(memtopo.Unsuitable, match="4 are requested, and 3 of 8 are left"):
            layout.range("kv.1").map(0, "page", 4)
        layout.range("kv.1").map(0, "page", 3)
        assert not layout.check().different


def test_threads_change_a_range_one_after_another(machine: Target) -> None:
    with memtopo.applied(spec(least=0), machine) as layout:
        kv = layout.range("kv")

        def rounds(at: int) -> None:
            for _ in range(20):
                kv.map(at * M, "page", 2)
                layout.check()
                kv.unmap(at * M, 2 * M, release=at % 4 == 0)

        threads = [Thread(target=rounds, args=(at,)) for at in (0, 2, 4, 6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert kv.mappings == ()
        assert not layout.check().different


def test_a_signal_is_handled_after_the_batch() -> None:
    """It is raised at the end of the change, which is complete."""
    with memtopo.applied(spec(), failing(0)) as layout:
        ledger: Any = layout._session.driver
        driver = ledger._driver
        original = driver.mem_map

        def interrupted(*arguments: int) -> None:
            signal.raise_signal(signal.SIGINT)
            original(*arguments)

        driver.mem_map = interrupted
        kv = layout.range("kv")
        with pytest.raises(KeyboardInterrupt):
            kv.map(0, "page", 4)
        driver.mem_map = original
        assert offsets(kv) == [0, 1, 2, 3]
        assert not layout.check().different


def test_an_elastic_chunk_is_viewed_through_its_range(machine: Target) -> None:
    with memtopo.applied(spec(), machine) as layout:
        layout.range("kv").map(0, "page")
        with pytest.raises(memtopo.Unsuitable, match=r"chunk 'page\.0' is elastic.*\n?.*through its range"):
            layout.chunk("page.0")
