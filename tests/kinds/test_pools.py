"""Memory pools and their allocations: resolution, rules, plans, and imports."""

from __future__ import annotations

from contextlib import suppress

import pytest

from memtopo.common.units import MiB
from memtopo.driver.handles import Handle, Secret
from memtopo.driver.ledger import Ledger
from memtopo.driver.types import (
    Access,
    DriverError,
    Grant,
    HandleType,
    Location,
    LocationKind,
    PoolAttribute,
    PoolProperties,
    gpu,
)
from memtopo.drivers.sim import SimDriver
from memtopo.kinds.layout import HandleSource, Layout, current
from memtopo.kinds.pools import PoolGroup
from memtopo.kinds.pools.allocations import AllocationGroup
from memtopo.kinds.pools.steps import (
    POOL_HANDLES,
    AliasAllocation,
    AliasPool,
    AllocateFromPool,
    CreatePool,
    ImportPointer,
    ImportPool,
    SetImportedAccess,
    SetPoolAccess,
    SetPoolAttribute,
)
from memtopo.kinds.step import HandleReference
from memtopo.plans.transition import transitions
from tests.helpers.failing_driver import Failing
from tests.helpers.machines import invented
from tests.helpers.specs import clean_geometry, codes, geometry_of, plan_of, steps_of

HOST, NODE = Location(LocationKind.HOST), Location(LocationKind.HOST_NUMA, 0)
RW = Access.RW
MACHINE = invented(2)
SERVER = """
processes:
  server:
    pools: {p: {location: gpus, handles: fd}, h: {location: "host:0", handles: fd}}
    allocations: {a: {pool: p, size: 8MiB, count: 4}, b: {pool: p, size: 1MiB}, c: {pool: h, size: 1MiB}}
    exports:
      a: {allocation: a, via: fd}
      odd: {allocation: "a.1:2", via: fd}
      b: {allocation: b, via: fd}
      c: {allocation: c, via: fd}
  reader: {imports: IMPORTS}
"""


def reader(imports: str) -> str:
    return SERVER.replace("IMPORTS", imports)


def test_an_entry_becomes_pools_with_what_differs_from_the_defaults() -> None:
    text = """
pools:
  p: {location: [gpu1, host:0], handles: [fd], max_size: 40MiB, release_threshold: 1MiB, accessed_by: [gpu0, gpu1],
    reuse_allow_opportunistic: false, reuse_follow_event_dependencies: true}
allocations: {a: {pool: p, size: 20MiB, count: 3}}
"""
    geometry = clean_geometry(text)
    p = geometry.of(PoolGroup)["p"]
    assert (p.locations, p.handles, p.max_size, p.home) == ((gpu(1), NODE), HandleType.FD, 40 * MiB, 0)
    assert p.attributes == ((PoolAttribute.REUSE_ALLOW_OPPORTUNISTIC, 0), (PoolAttribute.RELEASE_THRESHOLD, MiB))
    assert [p.grants_of(0), p.grants_of(1)] == [(Grant(gpu(0), RW),), (Grant(gpu(0), RW), Grant(gpu(1), RW))]
    assert p.reserves == (64 * MiB, 32 * MiB)  # two of 20 MiB, and one
    assert (p.size, p.demand()) == (32 * MiB, {gpu(1): 64 * MiB, NODE: 32 * MiB})
    a = geometry.of(AllocationGroup)["a"]
    assert [a.pool_of(index) for index in range(3)] == ["p.0", "p.1", "p.0"]
    assert [a.location_of(index) for index in range(3)] == [gpu(1), NODE, gpu(1)]
    assert a.own_access(0, None) == (Grant(gpu(1), RW), Grant(gpu(0), RW))
    assert a.own_access(1, None) == (Grant(HOST, RW), Grant(gpu(0), RW), Grant(gpu(1), RW))


def test_allocations_are_one_of_each_pool_by_default() -> None:
    text = """
pools: {p: {location: gpus}, q: {location: gpu1}}
allocations: {a: {pool: p, size: 1MiB}, b: {pool: q, size: 1MiB}, c: {pool: p, size: 1MiB, count: 1}}
"""
    found = clean_geometry(text).of(AllocationGroup)
    assert [found["a"].label(index) for index in range(found["a"].count)] == ["a.0", "a.1"]
    assert (found["b"].count, found["b"].label(0), found["b"].location_of(0)) == (1, "b", gpu(1))
    assert (found["c"].pools, found["c"].locations) == (("p.0",), (gpu(0),)), "of the pools that are used"


@pytest.mark.parametrize(
    ("allocations", "reserves", "least"),
    [
        ("a: {pool: p, size: 20MiB, count: 2}, b: {pool: p, size: 1MiB, count: 2}", (32 * MiB, 32 * MiB), 32 * MiB),
        ("a: {pool: p, size: 1B, count: 131073}", (64 * MiB, 32 * MiB), 32 * MiB),
        ("a: {pool: p, size: 1MiB, count: 1}", (32 * MiB, 0), 32 * MiB),
    ],
)
def test_a_pool_reserves_whole_units_for_all_of_its_aligned_allocations_together(
    allocations: str, reserves: tuple[int, ...], least: int
) -> None:
    p = geometry_of(f"pools: {{p: {{location: gpus}}}}\nallocations: {{{allocations}}}").of(PoolGroup)["p"]
    assert (p.reserves, p.size) == (reserves, least)


@pytest.mark.parametrize(("location", "home", "contexts"), [("gpu0", 1, {0, 1}), ("host:0", 1, {1})])
def test_a_pool_uses_the_contexts_of_its_gpu_or_else_of_one_that_accesses_it(
    location: str, home: int, contexts: set[int]
) -> None:
    text = f"pools: {{p: {{location: '{location}', accessed_by: gpu1}}}}\nallocations: {{a: {{pool: p, size: 8MiB}}}}"
    p = clean_geometry(text).of(PoolGroup)["p"]
    assert (p.home, {*p.contexts}) == (home, contexts)


def test_a_plan_creates_a_pool_then_its_attributes_access_and_allocations() -> None:
    text = """
pools: {p: {location: gpu0, max_size: 64MiB, release_threshold: 1MiB, accessed_by: gpu1}}
allocations: {a: {pool: p, size: 8MiB, count: 2}}
"""
    plan = plan_of(text, MACHINE)
    kinds = (CreatePool, SetPoolAttribute, SetPoolAccess, AllocateFromPool)
    assert [type(step) for step in plan.steps if isinstance(step, kinds)] == [*kinds, AllocateFromPool]
    assert plan.memory == {"gpu0": 32 * MiB}
    assert [step.readers for step in steps_of(plan, AllocateFromPool)] == [(0, 1), (0, 1)]


def test_several_imports_of_one_pool_import_it_once_with_the_access_of_all() -> None:
    text = reader("{a: {from: server.a, accessed_by: gpu1}, b: {from: server.b, accessed_by: gpu0}}")
    plan = plan_of(text, MACHINE).processes["reader"]
    assert [step.label for step in steps_of(plan, ImportPool)] == ["server.p.0", "server.p.1"]
    assert [step.imports for step in steps_of(plan, ImportPool)] == [
        ("server", ("pool", "p.0")),
        ("server", ("pool", "p.1")),
    ]
    assert [(step.label, step.grants) for step in steps_of(plan, SetImportedAccess)] == [
        ("server.p.0", (Grant(gpu(1), RW),)),
        ("server.p.1", (Grant(gpu(0), RW),)),
    ]
    pools = {step.label: step.pool for step in steps_of(plan, ImportPointer)}
    assert pools == {f"a.{index}": f"server.p.{index % 2}" for index in range(4)} | {
        f"b.{index}": f"server.p.{index}" for index in range(2)
    }


def test_a_slice_is_of_the_pools_of_its_elements() -> None:
    plan = plan_of(reader("{a: {from: server.odd}}"), MACHINE).processes["reader"]
    assert [(step.label, step.pool, step.device) for step in steps_of(plan, ImportPointer)] == [("a", "server.p.1", 1)]


def test_outside_of_the_spec_there_is_a_pool_at_each_location() -> None:
    text = 'imports: {a: {from: server/a, pool: [gpu1, "host:0"], size: 8MiB, count: 3, accessed_by: gpu0}}'
    plan = plan_of(text, MACHINE)
    assert [step.label for step in steps_of(plan, ImportPool)] == ["server/a.0", "server/a.1"]
    assert [step.pool for step in steps_of(plan, ImportPointer)] == ["server/a.0", "server/a.1", "server/a.0"]
    assert [step.grants for step in steps_of(plan, SetImportedAccess)] == [(Grant(gpu(0), RW),)] * 2


@pytest.mark.parametrize(("accessed_by", "device"), [("gpu1", 1), ("[gpu1, gpu0]", 1), ("gpu0", 0)])
def test_memory_of_the_host_from_outside_is_imported_with_the_first_gpu_that_accesses_it(
    accessed_by: str, device: int
) -> None:
    text = f"imports: {{a: {{from: server/a, pool: host:0, size: 8MiB, accessed_by: {accessed_by}}}}}"
    assert [step.device for step in steps_of(plan_of(text, MACHINE), ImportPointer)] == [device]


def test_a_process_uses_its_own_allocation_as_the_imported_one() -> None:
    text = """
processes:
  rank:
    count: 2
    devices: {mine: gpus}
    pools: {p: {location: mine, handles: fd}}
    allocations: {a: {pool: p, size: 8MiB}}
    exports: {a: {allocation: a, via: fd}}
    imports: {all: {from: rank.a, accessed_by: mine}}
"""
    for number, (_, plan) in enumerate(plan_of(text, MACHINE).processes.items()):
        assert [(step.label, step.own) for step in steps_of(plan, AliasAllocation)] == [(f"all.{number}", "a")]
        assert [step.label for step in steps_of(plan, ImportPool)] == [f"rank.{1 - number}.p"]
        assert not steps_of(plan, AliasPool)


def test_what_a_process_uses_of_its_own_is_made_anew_with_it() -> None:
    text = """
processes:
  rank:
    count: 2
    devices: {mine: gpus}
    pools: {p: {location: mine, handles: fd, max_size: 64MiB}}
    allocations: {a: {pool: p, size: 8MiB}}
    exports: {a: {allocation: a, via: fd}}
    imports: {all: {from: rank.a, accessed_by: mine}}
"""
    before, after = (plan_of(each, MACHINE).steps_by_process for each in (text, text.replace("64MiB", "96MiB")))
    found = transitions(before, after)["rank.0"]
    for steps in (found.undo, found.do):
        assert [(each.label, each.own) for each in steps if isinstance(each, AliasAllocation)] == [("all.0", "a")]
    names = [type(each) for each in found.undo]
    assert names.index(AliasAllocation) < names.index(AllocateFromPool)


def test_an_own_pool_that_is_imported_gets_the_access_that_it_lacks() -> None:
    text = """
processes:
  rank:
    count: 2
    pools: {p: {location: gpus, handles: fd, accessed_by: gpu0}}
    allocations: {a: {pool: p, size: 8MiB, count: 4}}
    exports: {a: {allocation: "a.1:4", via: fd}}
    imports: {all: {from: rank.a, accessed_by: gpus}}
"""
    plan = plan_of(text, MACHINE).processes["rank.1"]
    assert [(step.label, step.own) for step in steps_of(plan, AliasPool)] == [("rank.1.p.0", "p.0")]
    assert [(step.label, step.grants) for step in steps_of(plan, SetImportedAccess)] == [
        ("rank.0.p.1", (Grant(gpu(0), RW),)),
        ("rank.0.p.0", (Grant(gpu(1), RW),)),
        ("rank.1.p.0", (Grant(gpu(1), RW),)),
    ]


def test_a_pool_with_two_names_keeps_access_until_the_last_of_them_goes() -> None:
    """As one that a holder exports twice (fact 82)."""
    with SimDriver(MACHINE) as driver:
        driver.init()
        layout, pools = Layout(), steps_of(plan_of("pools: {p: {location: gpu0}}", MACHINE), CreatePool)
        pools[0].do(driver, layout)
        layout.of(POOL_HANDLES)["q"] = pool = layout.of(POOL_HANDLES)["p"]
        one, other = (SetImportedAccess(("imports", label), label, 0, (Grant(gpu(1), RW),)) for label in "pq")
        for each in (one, other):
            each.do(driver, layout)
        one.undo(driver, layout)
        assert driver.mem_pool_get_access(pool, gpu(1)) == Access.RW
        with pytest.raises(DriverError):
            other.undo(Failing(driver, 1, only={"mem_pool_set_access"}), layout)
        other.undo(driver, layout)
        assert driver.mem_pool_get_access(pool, gpu(1)) == Access.NONE


class Exported(HandleSource):
    """Handles of one allocation, and of its pool."""

    def __init__(self, driver: SimDriver, pool: int, address: int) -> None:
        self.driver, self.pool, self.address = driver, pool, address

    def take(self, holder: str, export: str, index: int) -> Handle:
        del holder, export, index
        fd = self.driver.mem_pool_export_to_shareable_handle(self.pool, HandleType.FD)
        assert isinstance(fd, int)
        return Handle(fd, Secret(self.driver.mem_pool_export_pointer(self.address)))


@pytest.mark.parametrize(
    ("order", "location"), [("abpq", gpu(0)), ("baqp", gpu(0)), ("bqap", gpu(0)), ("apbq", gpu(0)), ("abpq", NODE)]
)
def test_what_two_exports_offer_is_there_until_the_last_import_of_it_ends(order: str, location: Location) -> None:
    """And is released as often as it was imported: a pool twice, an allocation once (fact 82), after failures too."""
    with SimDriver(MACHINE) as exporter, SimDriver(MACHINE) as importer:
        for each in (exporter, importer):
            each.init()
        context = exporter.device_primary_ctx_retain(0)
        with current(exporter, context):
            own = exporter.mem_pool_create(PoolProperties(location, HandleType.FD))
            address = exporter.mem_alloc_from_pool_async(8 * MiB, own)
            exporter.ctx_synchronize()
        failing, layout = Failing(importer, only={"mem_pool_destroy", "mem_free"}), Layout()
        ledger = Ledger(failing)
        layout.contexts[0], layout.handle_source = (
            importer.device_primary_ctx_retain(0),
            Exported(exporter, own, address),
        )
        source = HandleReference("server", "a", 0, "server.a")
        pools = {label: ImportPool((), label, 0, source) for label in "pq"}
        pointers = {
            label: ImportPointer((), label, 0, 8 * MiB, pool, (0,), source)
            for label, pool in zip("ab", "pq", strict=True)
        }
        steps = pools | pointers
        for step in steps.values():
            step.do(ledger, layout)
        assert layout.buffers["a"].address == layout.buffers["b"].address
        for label in order:
            for nth in (1, 2):
                failing.at = failing.calls + nth
                with suppress(DriverError):
                    steps[label].undo(ledger, layout)
            failing.at = 0
            steps[label].undo(ledger, layout)
            if (left := [*layout.buffers.values()]) and location == gpu(0):
                with current(importer, layout.contexts[0]):
                    assert importer.memcpy_dtoh(left[0].address, 1) == b"\0"
            for pool in layout.of(POOL_HANDLES).values():
                assert importer.mem_pool_get_access(pool, location) == Access.RW
            steps[label].undo(ledger, layout)
        assert {what: number for what, number in ledger.counts().items() if number} == {}


class Repeated(Exported):
    """Handles of several pools in turn, each with the pointer of one allocation."""

    def __init__(self, driver: SimDriver, pools: list[int], address: int) -> None:
        super().__init__(driver, pools[0], address)
        self.pools = pools

    def take(self, holder: str, export: str, index: int) -> Handle:
        self.pool = self.pools[index]
        return super().take(holder, export, index)


def test_an_allocation_is_imported_only_from_its_own_pool() -> None:
    """Though another pool has one with equal bytes."""
    with SimDriver(MACHINE) as exporter, SimDriver(MACHINE) as importer:
        for each in (exporter, importer):
            each.init()
        context, layout = exporter.device_primary_ctx_retain(0), Layout()
        with current(exporter, context):
            pools = [exporter.mem_pool_create(PoolProperties(gpu(0), HandleType.FD)) for _ in range(2)]
            address = exporter.mem_alloc_from_pool_async(8 * MiB, pools[0])
        layout.contexts[0] = importer.device_primary_ctx_retain(0)
        layout.handle_source = Repeated(exporter, pools, address)
        sources = [HandleReference("server", "a", index, f"server.a.{index}") for index in range(2)]
        for label, source in zip("pq", sources, strict=True):
            ImportPool((), label, 0, source).do(importer, layout)
        first, second = (
            ImportPointer((), label, 0, 8 * MiB, pool, (0,), source)
            for label, pool, source in zip("ab", "pq", sources, strict=True)
        )
        first.do(importer, layout)
        with pytest.raises(DriverError, match="INVALID_VALUE"):
            second.do(importer, layout)
        assert [*layout.buffers] == ["a"]


@pytest.mark.parametrize(
    ("attribute", "value", "default"),
    [
        (PoolAttribute.RELEASE_THRESHOLD, MiB, 0),
        (PoolAttribute.REUSE_ALLOW_OPPORTUNISTIC, 0, 1),
        (PoolAttribute.REUSE_FOLLOW_EVENT_DEPENDENCIES, 0, 1),
    ],
)
def test_an_attribute_that_goes_leaves_the_value_of_a_new_pool(
    attribute: PoolAttribute, value: int, default: int
) -> None:
    with SimDriver(MACHINE) as driver:
        driver.init()
        layout, pools = Layout(), steps_of(plan_of("pools: {p: {location: gpu0}}", MACHINE), CreatePool)
        pools[0].do(driver, layout)
        pool, step = layout.of(POOL_HANDLES)["p"], SetPoolAttribute((), "p", 0, attribute, value)
        step.do(driver, layout)
        assert driver.mem_pool_get_attribute(pool, attribute) == value
        step.undo(driver, layout)
        assert driver.mem_pool_get_attribute(pool, attribute) == default
        driver.mem_pool_set_attribute(pool, attribute, value)
        step.undo(driver, layout)
        assert driver.mem_pool_get_attribute(pool, attribute) == value


def test_allocations_count_as_memory_in_whole_units_of_their_pool() -> None:
    text = "pools: {p: {location: gpu0}}\nallocations: {a: {pool: p, size: SIZE}}"
    room = invented(2).devices[0].room
    assert codes(text.replace("SIZE", f"{room}B")) == ["MT402"]


def one_pool(text: str, pool: str = "location: gpu0, handles: fd", size: str = "size: 8MiB") -> str:
    return f"pools: {{p: {{{pool}}}}}\nallocations: {{a: {{pool: p, {size}}}}}\n{text}"


def test_a_limit_above_the_memory_is_noted() -> None:
    above = plan_of(one_pool("", "location: gpu0, max_size: 90TiB"), MACHINE)
    assert any("its max_size of 90 TiB is more than gpu0 has" in note for note in above.notes)
    assert not any(
        "max_size" in note for note in plan_of(one_pool("", "location: gpu0, max_size: 1GiB"), MACHINE).notes
    )
