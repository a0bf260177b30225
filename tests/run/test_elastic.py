"""Elastic ranges against a plain model: any sequence of batches leaves what the model has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from msgspec.structs import replace

from memtopo import planner
from memtopo.common.errors import ExchangeError
from memtopo.driver.ledger import Ledger
from memtopo.driver.types import DriverError, gpu
from memtopo.drivers.sim import SimDriver
from memtopo.drivers.target import Target, uuids
from memtopo.executor import Execution, StepFailed
from memtopo.kinds.chunks.pools import lend
from memtopo.kinds.elastic import ELASTIC_CONTENTS, ELASTIC_POOLS
from memtopo.kinds.resources import WAITING, Wait
from memtopo.run import elastic
from memtopo.run.elastic import ElasticRefused, MapRequest, UnmapRequest
from memtopo.run.messages import Lend, Lent
from memtopo.run.transition import DoesNotFit
from memtopo.sharing.imports import HolderHandles
from tests.helpers.conducted import conducted, make_transition
from tests.helpers.examples import examples
from tests.helpers.failing_driver import Failing
from tests.helpers.held_layouts import held
from tests.helpers.machines import invented
from tests.helpers.specs import geometry_of, run_request

M = 2 << 20
PAGES, LIMIT, LEAST = 12, 7, 2
SPEC = """
ranges: {kv: {size: 24MiB, elastic: {chunks: [page, pair]%s}}}
chunks:
  page: {location: gpu0, size: 2MiB, count: {min: 2, max: 7}}
  pair: {location: gpu1, size: 4MiB, count: {max: 3}}
  blank: {location: gpu0, size: 2MiB}
access: {kv: {gpu0: rw, gpu1: r}}
"""
WIDTH = {"page": 1, "pair": 2}
LARGEST = {"page": LIMIT, "pair": 3}

at = st.integers(0, PAGES - 1)
maps = st.lists(st.tuples(at, st.sampled_from(["page", "pair"]), st.integers(1, 4)), max_size=3)
unmaps = st.lists(st.tuples(at, st.integers(1, 5), st.booleans()), max_size=2)


class ElasticRange(RuleBasedStateMachine):
    """Map, unmap, release, create and trim, on the simulator and in a model by pages; some calls fail."""

    @initialize(zero=st.booleans())
    def build(self, zero: bool) -> None:
        machine = invented(2)
        self.simulator = SimDriver(machine)
        self.simulator.init()
        self.driver = Failing(self.simulator)
        self.ledger = Ledger(self.driver)
        geometry = geometry_of(SPEC % (", zero: blank" if zero else ""))
        self.execution = Execution(planner.plan(geometry, machine), self.ledger)
        self.execution.build()
        self.layout, self.zero = self.execution.layout, zero
        self.mapped: dict[int, tuple[str, str]] = {}
        """Kind and label of each mapped chunk by its first page."""
        self.existing = {"page": LEAST, "pair": 0}

    @rule(maps=maps, unmaps=unmaps, fails=st.integers(0, 12))
    def change(self, maps: list[tuple[int, str, int]], unmaps: list[tuple[int, int, bool]], fails: int) -> None:
        after = self.model(maps, unmaps)
        before = self.ledger.counts()
        self.driver.at = self.driver.calls + fails if fails else 0
        try:
            labels = elastic.change_range(
                self.ledger,
                self.layout,
                "kv",
                [MapRequest(start * M, name, count) for start, name, count in maps],
                [UnmapRequest(start * M, count * M, release) for start, count, release in unmaps],
            )
        except ElasticRefused:
            assert after is None
        except elastic.ElasticFailed as error:
            assert after is not None
            if "were released" in str(error):
                self.accept(after, None)
            else:
                assert self.ledger.counts() == before
        else:
            assert after is not None
            self.accept(after, labels)
        self.driver.at = 0

    def model(
        self, maps: list[tuple[int, str, int]], unmaps: list[tuple[int, int, bool]]
    ) -> tuple[dict[int, str], set[int]] | None:
        """Kinds of chunks by page after a change, and the pages released; None if it does not fit."""
        kept, released = dict(self.mapped), set[int]()
        for start, count, release in unmaps:
            page = start
            while page < start + count:
                if page not in kept:
                    return None
                width = WIDTH[kept.pop(page)[0]]
                released |= {page} if release else set()
                page += width
            if page != start + count:
                return None
        found = {page: kind for page, (kind, _) in kept.items()}
        used = {page + each for page, kind in found.items() for each in range(WIDTH[kind])}
        for start, kind, count in maps:
            pages = set(range(start, start + count * WIDTH[kind]))
            if pages & used or max(pages) >= PAGES:
                return None
            used |= pages
            found |= dict.fromkeys(range(start, start + count * WIDTH[kind], WIDTH[kind]), kind)
        if any(sum(1 for each in found.values() if each == kind) > LARGEST[kind] for kind in LARGEST):
            return None
        return found, released

    def accept(self, after: tuple[dict[int, str], set[int]], labels: list[str] | None) -> None:
        """Take over what the layout has, where it is of the kinds that the model expects."""
        kinds, _ = after
        content = self.layout.of(ELASTIC_CONTENTS)["kv"]
        here = {offset // M: chunk for offset, chunk in content.present() if chunk is not content.zero}
        assert {page: chunk.pool for page, chunk in here.items()} == kinds
        assert len({chunk.label for chunk in here.values()}) == len(here)
        assert labels is None or set(labels) <= {chunk.label for chunk in here.values()}
        for page, (_, label) in self.mapped.items():
            if page in here and labels is not None and here[page].label not in labels:
                assert here[page].label == label
        self.mapped = {page: (chunk.pool, chunk.label) for page, chunk in here.items()}

    @rule(name=st.sampled_from(["page", "pair"]), count=st.integers(1, 4))
    def create(self, name: str, count: int) -> None:
        pool = self.layout.of(ELASTIC_POOLS)[name]
        room = pool.limit - len(pool.created)
        try:
            elastic.create(self.ledger, self.layout, name, count)
        except ElasticRefused:
            assert count > room

    @rule(name=st.sampled_from(["page", "pair"]))
    def trim(self, name: str) -> None:
        pool = self.layout.of(ELASTIC_POOLS)[name]
        elastic.release(self.ledger, self.layout, name, pool.releasable)
        assert all(chunk.number < pool.kept for chunk in pool.free)

    @invariant()
    def the_driver_has_what_the_records_say(self) -> None:
        if not hasattr(self, "layout"):
            return
        assert [each for each in self.execution.check() if each.expected != each.observed] == []
        zeros = PAGES - sum(WIDTH[kind] for kind, _ in self.mapped.values()) if self.zero else 0
        created = sum(len(pool.created) for pool in self.layout.of(ELASTIC_POOLS).values())
        counts = self.ledger.counts()
        assert (counts["mappings"], counts["handles"]) == (len(self.mapped) + zeros, created + 1)
        for pool in self.layout.of(ELASTIC_POOLS).values():
            used = [label for kind, label in self.mapped.values() if kind == pool.name]
            assert sorted([*used, *(chunk.label for chunk in pool.free)]) == sorted(
                chunk.label for chunk in pool.created.values()
            )
            assert pool.kept <= len(pool.created) <= pool.limit
        for page in range(PAGES):
            covered = self.zero or any(start <= page < start + WIDTH[kind] for start, (kind, _) in self.mapped.items())
            assert self.reachable(page) == covered

    def reachable(self, page: int) -> bool:
        try:
            return bool(self.simulator.mem_get_access(self.layout.of(ELASTIC_CONTENTS)["kv"].base + page * M, gpu(1)))
        except DriverError:
            return False

    def teardown(self) -> None:
        if hasattr(self, "execution"):
            assert not self.execution.take_down().leaks
            assert self.ledger.empty
            self.simulator.close()


def test_a_chunk_that_a_batch_unmaps_for_release_and_maps_again_is_not_released() -> None:
    with SimDriver(invented(2)) as simulator:
        simulator.init()
        ledger = Ledger(simulator)
        execution = Execution(planner.plan(geometry_of(SPEC % ""), invented(2)), ledger)
        execution.build()
        layout = execution.layout
        elastic.change_range(ledger, layout, "kv", [MapRequest(0, "page", 3)], [])
        before, freed = ledger.counts(), [UnmapRequest(2 * M, M, release=True)]
        assert elastic.change_range(ledger, layout, "kv", [MapRequest(6 * M, "page")], freed) == ["page.2"]
        assert (ledger.counts(), "page.2" in layout.chunks) == (before, True)
        assert not execution.take_down().leaks


def test_a_range_that_cannot_be_emptied_for_a_change_has_again_all_that_a_program_mapped() -> None:
    with SimDriver(invented(2)) as simulator:
        simulator.init()
        driver = Failing(simulator, only={"mem_unmap"})
        ledger = Ledger(driver)
        execution = Execution(planner.plan(geometry_of(SPEC % ""), invented(2)), ledger)
        execution.build()
        requests = [MapRequest(0, "page", 2), MapRequest(6 * M, "pair", 1)]
        elastic.change_range(ledger, execution.layout, "kv", requests, [])
        before, mapped = ledger.counts(), dict(execution.layout.mappings)
        driver.at = driver.calls + 2
        less = geometry_of("chunks: {blank: {location: gpu0, size: 2MiB}}")
        with pytest.raises(StepFailed, match=r"^undo open kv"):
            make_transition(execution, planner.plan(less, invented(2)))
        assert (ledger.counts(), execution.layout.mappings) == (before, mapped)
        assert [each for each in execution.check() if each.expected != each.observed] == []
        assert not execution.take_down().leaks


@pytest.mark.parametrize("lent", [0, 1])
def test_a_chunk_that_stays_mapped_in_a_broken_range_or_is_lent_is_mapped_nowhere_else(lent: int) -> None:
    """The other ranges of its pool go on."""
    spec = """
ranges: {kv: {size: 4MiB, elastic: true}, other: {size: 4MiB, elastic: true}}
chunks: {page: {location: gpu0, size: 2MiB, count: {min: 1, max: 3}}}
access: {kv: {gpu0: rw}, other: {gpu0: rw}}
"""
    with SimDriver(invented(1)) as simulator:
        simulator.init()
        driver = Failing(simulator, only={"mem_set_access", "mem_unmap"}, every=True)
        execution = Execution(planner.plan(geometry_of(spec), invented(1)), Ledger(driver))
        execution.build()
        layout, one = execution.layout, [MapRequest(0, "page")]
        lend(execution.driver, layout, "page", lent, "pages")
        driver.at = driver.calls + 1
        with pytest.raises(elastic.ElasticFailed, match="range 'kv' can only be taken down"):
            elastic.change_range(execution.driver, layout, "kv", one, [])
        driver.at = 0
        calls = driver.calls
        with pytest.raises(ElasticRefused, match="range 'kv' can only be taken down"):
            elastic.change_range(execution.driver, layout, "kv", [MapRequest(2 * M, "page")], [])
        assert driver.calls == calls
        assert [chunk.label for chunk in layout.of(ELASTIC_CONTENTS)["kv"].at.values()] == [f"page.{lent}"]
        assert layout.of(ELASTIC_POOLS)["page"].free == []
        assert elastic.change_range(execution.driver, layout, "other", one, []) == [f"page.{lent + 1}"]
        assert not execution.take_down().leaks


@contextmanager
def built(spec: str = SPEC % "", only: set[str] | None = None) -> Iterator[tuple[Execution, Failing]]:
    """A layout of a spec, on a driver of which the named methods are counted and may fail."""
    with SimDriver(invented(2)) as simulator:
        simulator.init()
        driver = Failing(simulator, only=only)
        execution = Execution(planner.plan(geometry_of(spec), invented(2)), Ledger(driver))
        execution.build()
        yield execution, driver
        driver.at = 0
        assert not execution.take_down().leaks


def test_a_call_refused_at_the_end_is_reported_though_all_is_unmapped_one_by_one() -> None:
    with built(only={"mem_unmap"}) as (execution, driver):
        elastic.change_range(execution.driver, execution.layout, "kv", [MapRequest(0, "page", 2)], [])
        driver.at = driver.calls + 1
        down = execution.take_down()
        assert [each.action for each in down.failures] == ["open kv"]
        assert not down.leaks
        assert not execution.layout.of(ELASTIC_CONTENTS)


def test_labels_of_a_batch_are_in_the_order_of_its_requests() -> None:
    """Whatever their offsets: a caller tells by them what is mapped where."""
    requests = [MapRequest(8 * M, "page", 2), MapRequest(4 * M, "pair"), MapRequest(0, "page", 1)]
    with built() as (execution, _):
        labels = elastic.change_range(execution.driver, execution.layout, "kv", requests, [])
        at = execution.layout.of(ELASTIC_CONTENTS)["kv"].at
        assert labels == [at[page * M].label for page in (8, 9, 4, 0)]
        assert not [each for each in execution.check() if each.expected != each.observed]


def test_a_creation_that_fails_in_between_leaves_the_pool_as_it_was() -> None:
    with built(only={"mem_create"}) as (execution, driver):
        pool, before = execution.layout.of(ELASTIC_POOLS)["page"], dict(execution.layout.chunks)
        free = [*pool.free]
        driver.at = driver.calls + 3
        with pytest.raises(elastic.ElasticFailed, match="they are as before") as failed:
            elastic.create(execution.driver, execution.layout, "page", 4)
        with pytest.raises(ElasticRefused, match="6 more are requested, and 5 of 7 can still be created"):
            elastic.create(execution.driver, execution.layout, "page", LIMIT - LEAST + 1)
        assert (failed.value.hint, execution.layout.chunks, pool.free) == (None, before, free)
        elastic.create(execution.driver, execution.layout, "page", LIMIT - LEAST)
        assert len(pool.free) == LIMIT


def test_chunks_that_were_unmapped_are_mapped_again_in_their_order_and_those_of_the_layout_are_not_released() -> None:
    with built() as (execution, _):
        made = execution.driver, execution.layout
        labels = elastic.change_range(*made, "kv", [MapRequest(0, "page", LEAST + 2)], [])
        elastic.change_range(*made, "kv", [], [UnmapRequest(0, (LEAST + 2) * M)])
        assert elastic.change_range(*made, "kv", [MapRequest(0, "page", LEAST + 2)], []) == labels
        elastic.change_range(*made, "kv", [], [UnmapRequest(0, (LEAST + 2) * M)])
        pool = execution.layout.of(ELASTIC_POOLS)["page"]
        assert elastic.release(*made, "page", [*pool.free]) == 2
        assert len(pool.free) == LEAST


def test_work_of_gpus_is_awaited_before_chunks_are_unmapped_and_only_then() -> None:
    """But not of a GPU whose stream waits for a producer, and not where the caller has waited (facts 18 and 58)."""
    with built(only={"ctx_synchronize", "mem_unmap"}) as (execution, driver):
        made = execution.driver, execution.layout, "kv"

        def waits(maps: list[MapRequest], unmaps: list[UnmapRequest], *, wait: bool = True) -> int:
            before = driver.calls
            elastic.change_range(*made, maps, unmaps, wait=wait)
            return driver.calls - before - len(unmaps)

        assert waits([MapRequest(0, "page", 4)], []) == 0
        assert waits([MapRequest(8 * M, "page")], [UnmapRequest(0, M)]) == 2
        assert waits([], [UnmapRequest(M, M)], wait=False) == 0
        execution.layout.of(WAITING)[1] = Wait("ready", 1, "camera")
        assert waits([], [UnmapRequest(2 * M, M)]) == 1
        driver.at = driver.calls + 1
        with pytest.raises(elastic.ElasticFailed, match="cuCtxSynchronize"):
            elastic.change_range(*made, [], [UnmapRequest(3 * M, M)])
        assert 3 * M in execution.layout.of(ELASTIC_CONTENTS)["kv"].at
        del execution.layout.of(WAITING)[1]


PIECES = """
ranges: {kv: {size: 16MiB, elastic: {chunks: [page, pair]}}}
chunks:
  page: {location: gpu0, size: 2MiB, count: {min: 2, max: 7}}
  pair: {location: gpu0, size: 4MiB, count: {max: 3}}
access: {kv: [{size: 6MiB, grant: {gpu0: rw}}, {offset: 6MiB, size: 10MiB, grant: {gpu0: r}}]}
"""


def test_a_batch_maps_what_it_unmaps_of_a_pool_that_has_no_others() -> None:
    with built(PIECES) as (execution, _):
        made = execution.driver, execution.layout, "kv"
        labels = elastic.change_range(*made, [MapRequest(0, "page", 7)], [])
        assert elastic.change_range(*made, [MapRequest(7 * M, "page")], [UnmapRequest(0, M)]) == labels[:1]


def test_a_batch_that_fails_before_it_unmaps_leaves_what_it_would_map_again_at_its_place() -> None:
    with built(PIECES, only={"ctx_synchronize"}) as (execution, driver):
        made = execution.driver, execution.layout, "kv"
        elastic.change_range(*made, [MapRequest(0, "page", 7)], [])
        mappings, mapped = {**execution.layout.mappings}, {**execution.layout.of(ELASTIC_CONTENTS)["kv"].at}
        driver.at = driver.calls + 1
        with pytest.raises(elastic.ElasticFailed, match="it is as before"):
            elastic.change_range(*made, [MapRequest(0, "page")], [UnmapRequest(0, M)])
        assert (execution.layout.mappings, execution.layout.of(ELASTIC_CONTENTS)["kv"].at) == (mappings, mapped)
        driver.at = 0
        elastic.change_range(*made, [], [UnmapRequest(0, 7 * M)])


@pytest.mark.parametrize(
    ("maps", "unmaps", "why"),
    [
        ([MapRequest(2 * M, "pair")], [], "would lie across 6MiB, where the access changes"),
        ([MapRequest(0, "pair", 2)], [], "would lie across 6MiB, where the access changes"),
        ([MapRequest(3 * M, "blank")], [], "has no elastic chunks 'blank'"),
        ([MapRequest(M // 2, "page")], [], "the offset 1MiB is not a multiple of 2MiB"),
        ([MapRequest(7 * M, "pair")], [], "from 14MiB on, 0 fit|would end at 18MiB"),
        ([MapRequest(5 * M, "page", 2), MapRequest(6 * M, "page")], [], "a batch maps two chunks at 12MiB"),
        ([MapRequest(3 * M, "page")], [], "'pair.0' is mapped from 6MiB to 10MiB"),
        ([], [UnmapRequest(3 * M, M)], "'pair.0' is mapped from 6MiB to 10MiB"),
        ([], [UnmapRequest(4 * M, M)], "8MiB is inside of 'pair.0', mapped at 6MiB"),
        ([], [UnmapRequest(3 * M, 3 * M)], "nothing is mapped at 10MiB"),
        ([], [UnmapRequest(3 * M, 2 * M)] * 2, "a batch unmaps the same chunk twice"),
        ([MapRequest(0, "page", 8)], [], "would end at|8 are requested, and 7 of 7 are left|is mapped from"),
    ],
)
def test_a_batch_that_does_not_fit_is_refused_before_its_first_call(
    maps: list[MapRequest], unmaps: list[UnmapRequest], why: str
) -> None:
    with built(PIECES) as (execution, driver):
        elastic.change_range(execution.driver, execution.layout, "kv", [MapRequest(3 * M, "pair")], [])
        calls = driver.calls
        with pytest.raises(ElasticRefused, match=why):
            elastic.change_range(execution.driver, execution.layout, "kv", maps, unmaps)
        assert driver.calls == calls


LENDING = """
ranges: {kv: {size: 8MiB, elastic: true}}
chunks: {page: {location: gpu0, size: 2MiB, count: {max: 2}, handles: fd}}
access: {kv: {gpu0: rw}}
exports: {page: {chunk: page, via: fd}}
"""


def test_what_is_given_back_can_be_lent_again() -> None:
    """To a client that takes the last chunks; one that asks for more is told why, and has what it had."""
    with SimDriver(invented(1)) as simulator:
        simulator.init()
        run = conducted(run_request(LENDING, invented(1)), Ledger(simulator)).run
        run.build()
        lent = run.handle(Lend("page", 2))
        assert isinstance(lent, Lent)
        assert sorted(lent.numbers) == [0, 1]
        with pytest.raises(ExchangeError) as refused:
            run.handle(Lend("page", 1))
        assert refused.value.code == "full"
        assert run.handle(Lend("page", back=(1,))) == Lent()
        assert isinstance(run.handle(Lend("page", 1)), Lent)
        assert sorted(run.execution.layout.of(ELASTIC_POOLS)["page"].lent) == [0, 1]
        run.take_down()
        assert run.ledger.empty


BORROWING = """
ranges: {kv: {size: 8MiB, elastic: true}}
imports: {page: {from: pool/page, location: gpu0, size: 2MiB, count: {max: 3}}}
access: {kv: {gpu0: rw}}
"""


def test_the_epoch_of_a_seal_is_the_latest_one_of_its_chunks(runtime: Path) -> None:
    """Also if the chunk that was lent last is not mapped last."""
    del runtime
    page = {"location": "gpu0", "size": "2MiB", "count": {"max": 3}, "handles": "fd"}
    pool = {"memtopo": 1, "name": "pool", "chunks": {"page": page}, "exports": {"page": {"chunk": "page", "via": "fd"}}}
    asked = replace(run_request(BORROWING, invented(1)), exclusive=False)
    with held(pool, Target("invented", invented(1), simulated=True, _opener=opened)), opened() as driver:
        handles = HolderHandles(asked.geometry, uuids(invented(1)))
        made = conducted(asked, Ledger(driver), handle_source=handles)
        made.build()
        layout = made.run.execution.layout
        for place in (2, 0, 1):
            elastic.change_range(made.run.ledger, layout, "kv", [MapRequest(place * M, "page")], [])
        parts = [UnmapRequest(0, 3 * M), UnmapRequest(2 * M, M), UnmapRequest(0, M)]
        assert [elastic.seal(layout, "kv", part, "prompt") for part in parts] == [3, 1, 2]
        made.take_down()


def opened() -> Any:
    driver = SimDriver(invented(1))
    driver.init()
    return driver


def test_a_limit_below_what_is_mapped_is_refused_unless_the_change_takes_the_range_away() -> None:
    with SimDriver(invented(2)) as simulator:
        simulator.init()
        made = conducted(run_request(SPEC % "", invented(2)), Ledger(simulator))
        made.build()
        layout = made.run.execution.layout
        elastic.change_range(made.run.ledger, layout, "kv", [MapRequest(0, "page", 5)], [])
        fewer = (SPEC % "").replace("max: 7", "max: 4")
        with pytest.raises(DoesNotFit, match="chunks 'page': 5 are mapped, and max is 4"):
            made.change(run_request(fewer, invented(2)))
        assert (len(layout.of(ELASTIC_CONTENTS)["kv"].at), layout.of(ELASTIC_POOLS)["page"].limit) == (5, LIMIT)
        made.change(run_request(fewer.replace("kv: ", "other: "), invented(2)))
        assert layout.of(ELASTIC_POOLS)["page"].limit == 4
        made.take_down()
        assert made.report().leaks == ()


@contextmanager
def pool_of_three() -> Iterator[tuple[Execution, Failing]]:
    """A layout with three chunks of a pool that no range has, on a driver whose release may fail."""
    with SimDriver(invented(1)) as simulator:
        simulator.init()
        driver = Failing(simulator, only={"mem_release"})
        pool = geometry_of("chunks: {page: {location: gpu0, size: 2MiB, count: {max: 4}}}")
        execution = Execution(planner.plan(pool, invented(1)), Ledger(driver))
        execution.build()
        elastic.create(execution.driver, execution.layout, "page", 3)
        yield execution, driver


def test_a_chunk_of_a_pool_that_cannot_be_released_leaves_no_other_one() -> None:
    with pool_of_three() as (execution, driver):
        driver.at = 1
        leaks = execution.take_down().leaks
        assert [leak.what for leak in leaks] == ["chunk page"]
        assert list(execution.layout.chunks) == ["page.0"]


def test_a_pool_that_cannot_be_given_up_for_a_change_has_the_chunks_that_are_left() -> None:
    with pool_of_three() as (execution, driver):
        driver.at = 2
        other = geometry_of("chunks: {blank: {location: gpu0, size: 2MiB}}")
        with pytest.raises(StepFailed, match=r"^undo chunk pool page"):
            make_transition(execution, planner.plan(other, invented(1)))
        pool = execution.layout.of(ELASTIC_POOLS)["page"]
        assert [chunk.label for chunk in pool.free] == ["page.1"]
        assert elastic.release(execution.driver, execution.layout, "page", pool.releasable) == 1
        assert not execution.take_down().leaks


TestElasticRange = ElasticRange.TestCase
TestElasticRange.settings = settings(max_examples=examples(30), stateful_step_count=20, deadline=None)
