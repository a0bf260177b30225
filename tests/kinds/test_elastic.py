"""Elastic chunks and ranges: pools of chunks, chunks that are lent, limits, zero pages, and what a failure leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from memtopo.common.errors import MemtopoError
from memtopo.driver.handles import Handle
from memtopo.driver.ledger import Ledger
from memtopo.driver.protocol import Driver
from memtopo.driver.recorder import CallContext, CallList, Recorder
from memtopo.driver.types import Access, DriverError, Grant, HandleType, Properties, gpu
from memtopo.driver.wrappers import Forwarder
from memtopo.drivers.sim import SimDriver
from memtopo.executor import Execution, StepFailed
from memtopo.kinds.chunks.pools import Borrowed, KeepPool, LimitPool, NoneLeft, lend, release_all, take_back
from memtopo.kinds.chunks.steps import RETAINED
from memtopo.kinds.elastic import (
    ELASTIC_CONTENTS,
    ELASTIC_POOLS,
    AccessPiece,
    ElasticChunk,
    ElasticChunkPool,
    ElasticContent,
    runs,
)
from memtopo.kinds.layout import HandleSource, Layout, LentBlock, current
from memtopo.kinds.ranges.elastic_steps import OpenRange
from memtopo.kinds.step import HandleReference
from memtopo.plans.transition import transition
from memtopo.run.elastic import ElasticFailed, MapRequest, UnmapRequest, change_range
from tests.helpers.conducted import make_transition
from tests.helpers.failing_driver import Failing
from tests.helpers.machines import invented
from tests.helpers.specs import plan_of, steps_of
from tests.run.test_transition import Built, built

M = 2 << 20
TWO = invented(2)
PLAIN = """
ranges: {kv: {size: 16MiB, elastic: {chunks: page}}}
chunks: {page: {location: [gpu0, gpu1], size: 2MiB, count: {min: 2, max: 6}}}
access: {kv: {gpu0: rw}}
"""
ZERO = """
ranges: {kv: {size: 16MiB, elastic: {chunks: page, zero: blank}}}
chunks:
  page: {location: gpu0, size: 2MiB, count: {min: 1, max: 4}}
  blank: {location: gpu0, size: 2MiB}
  hot: {location: gpu0, size: 4MiB}
map: {kv: [{chunk: hot, offset: 4MiB}]}
access: {kv: {gpu0: rw}}
"""


def pool_of(layout: Built) -> ElasticChunkPool:
    return layout.execution.layout.of(ELASTIC_POOLS)["page"]


def lent(layout: Built, count: int, export: str = "pages") -> Sequence[int]:
    return lend(layout.ledger, layout.execution.layout, "page", count, export)


def returned(layout: Built, *numbers: int, export: str = "pages") -> None:
    take_back(layout.ledger, layout.execution.layout, "page", numbers, export)


def existing(layout: Built) -> list[str]:
    """Labels of the chunks that have a handle."""
    return sorted(layout.execution.layout.chunks)


def labels(chunks: Sequence[ElasticChunk]) -> list[str]:
    return [each.label for each in chunks]


def test_the_number_of_a_released_chunk_goes_to_the_next_one_with_its_location() -> None:
    with built(plan_of(PLAIN, TWO)) as layout:
        pool, driver, live = pool_of(layout), layout.ledger, layout.execution.layout
        made, _ = pool.source.create(driver, live, pool, 3)
        assert labels(made) == ["page.2", "page.3", "page.4"]
        assert pool.source.release(driver, live, pool, [made[1], made[2]]) == (2, None)
        again, _ = pool.source.create(driver, live, pool, 3)
        assert labels(again) == ["page.4", "page.3", "page.5"]
        handles = [live.chunks[each.label] for each in again]
        found = [driver.mem_get_allocation_properties_from_handle(handle).location for handle in handles]
        assert found == [gpu(0), gpu(1), gpu(1)]
        (keep,) = steps_of(layout.execution.plan, KeepPool)
        checked = [each.subject for each in keep.check(driver, live) if each.expected == each.observed]
        assert sorted(checked) == ["page.2", "page.3", "page.4", "page.5"]


def test_a_reference_that_a_failed_check_has_kept_is_released_with_its_chunk() -> None:
    with built(plan_of(PLAIN, TWO)) as layout:
        pool, live = pool_of(layout), layout.execution.layout
        made, _ = pool.source.create(layout.ledger, live, pool, 2)
        base, _ = live.ranges["kv"]
        layout.ledger.mem_map(base, M, live.chunks["page.2"])
        live.of(RETAINED)["page.2"] = layout.ledger.mem_retain_allocation_handle(base)
        layout.ledger.mem_unmap(base, M)
        failing = Failing(layout.ledger, 1, only={"mem_release"})
        released, error = pool.source.release(failing, live, pool, made)
        assert (released, isinstance(error, DriverError), [*live.of(RETAINED)]) == (0, True, ["page.2"])
        assert pool.source.release(layout.ledger, live, pool, made) == (2, None)
        assert (layout.ledger.counts()["handles"], live.of(RETAINED)) == (2, {})


def test_numbers_of_chunks_that_could_not_be_created_are_used_in_order() -> None:
    with built(plan_of(PLAIN, TWO), failing={"mem_create"}) as layout:
        pool, live = pool_of(layout), layout.execution.layout
        layout.failing.at = layout.failing.calls + 2
        made, error = pool.source.create(layout.ledger, live, pool, 3)
        layout.failing.at = 0
        assert (labels(made), error and error.message.split(":")[0]) == (["page.2"], "cuMemCreate")
        assert existing(layout) == ["page.0", "page.1", "page.2"] == sorted(labels([*pool.created.values()]))
        assert labels(pool.source.create(layout.ledger, live, pool, 2)[0]) == ["page.3", "page.4"]


def test_free_chunks_are_lent_before_new_ones_are_created_and_those_of_min_come_back() -> None:
    with built(plan_of(PLAIN, TWO)) as layout:
        assert (lent(layout, 1), lent(layout, 2)) == ([0], [1, 2])
        with pytest.raises(NoneLeft, match="4 chunks 'page' are requested, and 3 of 6 are left"):
            lent(layout, 4)
        assert existing(layout) == ["page.0", "page.1", "page.2"]
        returned(layout, 1, 2)
        assert existing(layout) == ["page.0", "page.1"]
        assert (labels(pool_of(layout).free), [*pool_of(layout).lent]) == (["page.1"], [0])
        assert lent(layout, 2) == [1, 2]


def test_a_chunk_comes_back_through_the_export_that_has_lent_it() -> None:
    with built(plan_of(PLAIN, TWO)) as layout:
        assert (lent(layout, 1), lent(layout, 2, export="more")) == ([0], [1, 2])
        returned(layout, 0, 1, 2, export="more")
        assert (pool_of(layout).lent, labels(pool_of(layout).free)) == ({0: "pages"}, ["page.1"])


def test_a_chunk_that_was_lent_before_a_change_is_free_after_the_next_one() -> None:
    with built(plan_of(PLAIN, TWO)) as layout:
        lent(layout, 1)
        for text in (PLAIN.replace("min: 2", "min: 1"), PLAIN):
            make_transition(layout.execution, plan_of(text, TWO))
        assert (pool_of(layout).lent, labels(pool_of(layout).free)) == ({}, ["page.1", "page.0"])


@pytest.mark.parametrize(
    ("failing", "free", "next_loan"),
    [
        ({"mem_create"}, ["page.1", "page.0"], [0, 1]),
        ({"mem_create", "mem_release"}, ["page.1", "page.0", "page.2"], [2, 0, 1]),
    ],
)
def test_a_loan_that_fails_leaves_the_pool_as_it_was(failing: set[str], free: list[str], next_loan: list[int]) -> None:
    """But for a chunk that cannot be released either: it is lent next."""
    with built(plan_of(PLAIN, TWO), failing=failing) as layout:
        layout.failing.at = layout.failing.calls + 2
        with pytest.raises(DriverError):
            lent(layout, 4)
        layout.failing.at = 0
        assert (labels(pool_of(layout).free), pool_of(layout).lent) == (free, {})
        assert existing(layout) == sorted(free)
        assert lent(layout, len(free)) == next_loan
        assert existing(layout) == sorted(free)


def test_a_chunk_that_comes_back_and_cannot_be_released_is_lent_again() -> None:
    with built(plan_of(PLAIN, TWO), failing={"mem_release"}) as layout:
        assert lent(layout, 4) == [0, 1, 2, 3]
        layout.failing.at = layout.failing.calls + 2
        with pytest.raises(DriverError):
            returned(layout, 2, 3)
        layout.failing.at = 0
        assert ([*pool_of(layout).lent], labels(pool_of(layout).free)) == ([0, 1], ["page.3"])
        assert lent(layout, 1) == [3]
        returned(layout, 2, 5)
        assert existing(layout) == ["page.0", "page.1", "page.3"]
        assert ([*pool_of(layout).lent], labels(pool_of(layout).free)) == ([0, 1, 3], [])


def test_a_lower_limit_releases_free_chunks_and_counts_those_that_stay() -> None:
    with built(plan_of(PLAIN.replace("max: 6", "max: 7"), TWO), failing={"mem_release"}) as layout:
        pool, live = pool_of(layout), layout.execution.layout
        assert lent(layout, 3) == [0, 1, 2]
        change_range(layout.ledger, live, "kv", [MapRequest(4 * M, "page", 2)], [])
        returned(layout, 0)
        more, _ = pool.source.create(layout.ledger, live, pool, 2)
        pool.free += more

        def refusal(most: int, *undone: tuple[str, str]) -> str:
            return str(LimitPool((), "page", most).refusal(live, undone)).removeprefix("chunks 'page': ")

        assert refusal(4) == "2 are mapped and 2 are lent, 1 of min are free, and max is 4"
        assert refusal(2, ("elastic range", "kv")) == "0 are mapped and 2 are lent, 1 of min are free, and max is 2"
        assert refusal(5) == refusal(3, ("elastic range", "kv")) == "None"
        layout.failing.at = layout.failing.calls + 2
        with pytest.raises(DriverError):
            LimitPool((), "page", 5).do(layout.ledger, live)
        layout.failing.at = 0
        assert (pool.limit, len(live.chunks), labels(pool.free)) == (7, 6, ["page.0", "page.6"])
        LimitPool((), "page", 5).do(layout.ledger, live)
        assert (pool.limit, existing(layout)) == (5, [f"page.{number}" for number in range(5)])
        with pytest.raises(NoneLeft, match="2 chunks 'page' are requested, and 1 of 5 are left"):
            lent(layout, 2)


def test_a_change_of_the_limit_alone_keeps_the_pool_and_what_is_mapped() -> None:
    old, new = (plan_of(PLAIN.replace("max: 6", f"max: {most}"), TWO) for most in (6, 3))
    assert [type(step) for step in transition(old.steps, new.steps).do if not step.in_change.repeated] == [LimitPool]
    with built(old) as layout:
        pool, live = pool_of(layout), layout.execution.layout
        change_range(layout.ledger, live, "kv", [MapRequest(0, "page", 3)], [])
        handles, mapped = dict(live.chunks), dict(layout.execution.layout.of(ELASTIC_CONTENTS)["kv"].at)
        make_transition(layout.execution, new)
        assert (pool_of(layout) is pool, pool.limit, live.chunks) == (True, 3, handles)
        assert live.of(ELASTIC_CONTENTS)["kv"].at == mapped


def test_a_change_of_the_number_of_chunks_that_stay_replaces_the_pool() -> None:
    change = transition(*(plan_of(text, TWO).steps for text in (PLAIN, PLAIN.replace("min: 2", "min: 1"))))
    for steps in (change.undo, change.do):
        assert [step.name for step in steps if isinstance(step, KeepPool)] == ["page"]


def test_the_end_of_a_pool_releases_all_that_can_be_and_the_rest_in_a_second_try() -> None:
    with built(plan_of(PLAIN, TWO)) as layout:
        pool, live = pool_of(layout), layout.execution.layout
        failing = Failing(layout.ledger, 2, only={"mem_release"})
        assert lent(layout, 5) == [0, 1, 2, 3, 4]
        for opened in steps_of(layout.execution.plan, OpenRange):
            opened.undo(layout.ledger, live)
        (keep,) = steps_of(layout.execution.plan, KeepPool)
        with pytest.raises(DriverError, match="as call 2"):
            keep.undo(failing, live)
        assert existing(layout) == ["page.0", "page.1", "page.3"]
        assert (pool_of(layout) is pool, [*pool.lent]) == (True, [0, 1, 3])
        keep.undo(failing, live)
        assert existing(layout) == ["page.0", "page.1"]
        assert not live.of(ELASTIC_POOLS)


class Holder(HandleSource):
    """Holder that lends at most two chunks at once, from number 5 on, each with an epoch of its own."""

    def __init__(self, driver: Driver) -> None:
        self.driver, self.number = driver, 5
        self.memory = driver.mem_create(M, Properties(gpu(0), HandleType.FD))
        self.open: list[Handle] = []
        self.given_back: dict[int, int] = {}
        self.refuses = False

    def lend(
        self, holder: str, export: str, count: int, *, key: str | None = None, first: int = 0, epoch: int | None = None
    ) -> tuple[Sequence[LentBlock], int]:
        assert (holder, export, key, first, epoch) == ("server", "page", None, 0, None)
        blocks = []
        for _ in range(min(count, 2)):
            handle = Handle.of(self.driver.mem_export_to_shareable_handle(self.memory, HandleType.FD))
            self.open.append(handle)
            blocks.append(LentBlock(self.number, 100 + self.number, handle))
            self.number += 1
        return blocks, 0

    def give_back(self, holder: str, export: str, blocks: Mapping[int, int]) -> None:
        del holder, export
        if self.refuses:
            raise MemtopoError("the holder has gone")
        self.given_back.update(blocks)

    def settle(self) -> None:
        while self.open:
            self.open.pop().close()


def test_of_borrowed_chunks_those_that_could_not_be_imported_are_given_back_at_once() -> None:
    """All others when they are released, but at the end of the layout, which ends the connection."""
    with SimDriver(TWO) as simulator:
        simulator.init()
        driver, layout = Failing(simulator), Layout()
        layout.handle_source = holder = Holder(simulator)
        source = Borrowed(HandleReference("server", "page", 0, "server/page"), HandleType.FD)
        pool = ElasticChunkPool("page", M, (Properties(gpu(0)),), M, 0, 8, source)
        driver.at = 4
        made, error = source.create(driver, layout, pool, 4)
        assert (labels(made), isinstance(error, DriverError)) == (["page.5", "page.6", "page.7"], True)
        assert (holder.given_back, holder.open, sorted(layout.chunks)) == ({8: 108}, [], labels(made))
        assert (source.create(driver, layout, pool, 3)[1], [*pool.created]) == (None, [5, 6, 7, 9, 10, 11])
        assert holder.open == []
        holder.given_back.clear()
        holder.number, handles = 11, dict(layout.chunks)
        again, error = source.create(driver, layout, pool, 1)
        assert (again, error and error.message) == ([], "server/page lends chunk 11, which this process has already")
        assert (layout.chunks, holder.given_back, holder.open) == (handles, {11: 111}, [])
        holder.given_back.clear()
        driver.at = driver.calls + 2
        released, error = source.release(driver, layout, pool, [*pool.created.values()])
        assert (released, isinstance(error, DriverError), holder.given_back) == (1, True, {5: 105})
        holder.refuses = True
        released, error = source.release(driver, layout, pool, [pool.created[9]])
        assert (released, error and error.message, [*pool.created]) == (1, "the holder has gone", [6, 7, 10, 11])
        holder.refuses, layout.ending = False, True
        assert release_all(driver, layout, pool, [*pool.created.values()]) == []
        assert (holder.given_back, layout.chunks, pool.created) == ({5: 105}, {}, {})
        simulator.mem_release(holder.memory)


class Dirty(Forwarder):
    """Driver whose memory has the bytes of its last user when it is first accessed."""

    def mem_set_access(self, address: int, size: int, grants: Sequence[Grant]) -> None:
        self._driver.mem_set_access(address, size, grants)
        if grants == (Grant(gpu(0), Access.RW),):
            with current(self._driver, self._driver.device_primary_ctx_retain(0)):
                self._driver.memset_d8(address, 7, size)
            self._driver.device_primary_ctx_release(0)


def bytes_at(driver: Driver, layout: Layout, offset: int) -> bytes:
    """First bytes at an offset of the range `kv`, as gpu0 reads them."""
    with current(driver, layout.contexts[0]):
        return driver.memcpy_dtoh(layout.address("kv") + offset, 4)


def test_the_end_of_a_range_gives_its_chunks_back_to_each_of_its_pools() -> None:
    text = PLAIN.replace("chunks: page}", "chunks: [page, big]}").replace(
        "chunks: {page", "chunks: {big: {location: gpu0, size: 4MiB, count: {min: 1, max: 2}}, page"
    )
    with built(plan_of(text, TWO)) as layout:
        live = layout.execution.layout
        change_range(layout.ledger, live, "kv", [MapRequest(0, "page", 3), MapRequest(6 * M, "big", 1)], [])
        for opened in steps_of(layout.execution.plan, OpenRange):
            opened.undo(layout.ledger, live)
        pools = live.of(ELASTIC_POOLS)
        assert {name: sorted(labels(pool.free)) for name, pool in pools.items()} == {
            "big": ["big.0"], "page": ["page.0", "page.1"]
        }  # fmt: skip


def test_a_zero_page_has_zeros_that_nobody_writes_wherever_a_range_has_nothing_else() -> None:
    with SimDriver(TWO) as simulator:
        simulator.init()
        ledger = Ledger(Dirty(simulator))
        execution = Execution(plan_of(ZERO, TWO), ledger)
        execution.build()
        live, base = execution.layout, execution.layout.address("kv")
        access = [Access(ledger.mem_get_access(base + at * M, gpu(0))) for at in range(8)]
        assert access == [Access.R, Access.R, Access.RW, Access.RW, *[Access.R] * 4]
        assert {bytes_at(ledger, live, at * M) for at in (0, 1, 4, 5, 6, 7)} == {bytes(4)}
        change_range(ledger, live, "kv", [MapRequest(0, "page", 2), MapRequest(6 * M, "page", 1)], [])
        (opened,) = steps_of(execution.plan, OpenRange)
        assert {each.observed == each.expected for each in opened.check(ledger, live)} == {True}
        opened.undo(ledger, live)
        opened.do(Recorder(ledger, record := CallList(CallContext())), live)
        filled = [each.method for each in record.calls if each.method in ("memset_d8", "ctx_synchronize", "mem_unmap")]
        assert filled == ["memset_d8", "ctx_synchronize", "mem_unmap"]  # fact 18
        opened.undo(ledger, live)
        assert [*live.mappings.values()] == ["hot"]
        assert ledger.counts()["mappings"] == 1
        assert sorted(live.chunks) == ["blank", "hot", "page.0"]
        assert labels(live.of(ELASTIC_POOLS)["page"].free) == ["page.0"]
        assert not execution.take_down().leaks
        assert ledger.empty


def test_all_that_a_failed_batch_has_unmapped_is_mapped_again_with_the_access_that_it_had() -> None:
    """The zero page, which nobody may write, and a chunk, which the program may write."""
    with built(plan_of(ZERO, TWO)) as layout:
        ledger, live, base = layout.ledger, layout.execution.layout, layout.execution.layout.address("kv")
        failing = Failing(ledger, 1, only={"mem_set_access"})
        change_range(ledger, live, "kv", [MapRequest(6 * M, "page")], [])
        before = layout.state()
        with pytest.raises(ElasticFailed, match="cuMemSetAccess"):
            change_range(failing, live, "kv", [MapRequest(0, "page", 2)], [UnmapRequest(6 * M, M)])
        access = [Access(ledger.mem_get_access(base + at * M, gpu(0))).word for at in range(8)]
        assert access == ["r", "r", "rw", "rw", "r", "r", "rw", "r"]
        assert layout.state() == before


def test_a_range_that_could_be_neither_emptied_nor_filled_again_fails_its_check() -> None:
    with built(plan_of(PLAIN, TWO), failing={"mem_unmap", "mem_map"}) as layout:
        live = layout.execution.layout
        change_range(layout.ledger, live, "kv", [MapRequest(0, "page", 2), MapRequest(4 * M, "page", 2)], [])
        (opened,) = steps_of(layout.execution.plan, OpenRange)
        layout.failing.at = layout.failing.calls + 2
        with pytest.raises(StepFailed, match="cuMemUnmap"):
            layout.execution.act(opened, undo=True)
        layout.failing.at = 0
        content = live.of(ELASTIC_CONTENTS)["kv"]
        assert [offset // M for offset, _ in content.present()] == [4, 5]
        (finding,) = [each for each in opened.check(layout.ledger, live) if each.expected != each.observed]
        assert (finding.aspect, finding.subject) == ("elastic range", "kv")
        assert "cuMemMap" in str(finding.observed)
        assert "while the range was rolled back" in str(finding.observed)


def test_each_part_of_an_elastic_range_gives_its_own_access_to_what_is_mapped_over_several() -> None:
    parts = "[{size: 4MiB, grant: {gpu0: rw}}, {offset: 8MiB, size: 4MiB, grant: {gpu0: r, gpu1: rw}}]"
    with built(plan_of(PLAIN.replace("{gpu0: rw}", parts).replace("max: 6", "max: 8"), TWO)) as layout:
        live = layout.execution.layout
        change_range(layout.ledger, live, "kv", [MapRequest(0, "page", 8)], [])
        base = live.address("kv")
        found = [
            [Access(layout.ledger.mem_get_access(base + at * M, each)).word for each in (gpu(0), gpu(1))]
            for at in range(8)
        ]
        none = ["none", "none"]
        assert found == [["rw", "none"]] * 2 + [none] * 2 + [["r", "rw"]] * 2 + [none] * 2
        (opened,) = steps_of(layout.execution.plan, OpenRange)
        assert [(each.start // M, each.end // M) for each in opened.pieces] == [(0, 2), (2, 4), (4, 6), (6, 8)]
        assert [each.zero_grants for each in opened.pieces][2] == (Grant(gpu(0), Access.R), Grant(gpu(1), Access.R))


def test_the_content_of_a_range_finds_what_is_mapped_between_two_offsets() -> None:
    zero, page, wide = (ElasticChunk(name, size * M, 0) for name, size in (("z", 1), ("p", 1), ("w", 4)))
    pieces = tuple(AccessPiece(start * M, end * M, (), (), (), ()) for start, end in ((0, 6), (6, 16)))
    content = ElasticContent("kv", 0, 16 * M, (), pieces, ((4 * M, 6 * M),), zero)
    content.at = {0: zero, 1 * M: page, 2 * M: page, 8 * M: wide, 12 * M: zero}
    content.rebuild()
    assert [at // M for at, _ in content.present(10 * M, 13 * M)] == [8, 12]
    assert [at // M for at, _ in content.present(M, 8 * M)] == [1, 2]
    assert content.taken(0, M, set()) is None
    assert content.taken(0, 3 * M, {M}) == (2 * M, 3 * M, "p")
    assert content.taken(11 * M, 16 * M, set()) == (8 * M, 12 * M, "w")
    assert content.taken(3 * M, 5 * M, set()) == (4 * M, 6 * M, "")
    assert [(each.start // M, each.end // M) for each in content.access(5 * M, 8 * M)] == [(5, 6), (6, 8)]
    assert [at // M for at in content.uncovered()] == [0, 1, 2, 3, *range(6, 16)]
    assert [[at // M for at, _ in run] for run in runs([*content.present()])] == [[0, 1, 2], [8, 12]]
    content.replace([[(M, page), (2 * M, page)]], [[(6 * M, page)]])
    assert [at // M for at in content.starts] == [0, 6, 8, 12]
