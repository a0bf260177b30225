"""Layouts with memory pools: built, changed, shared between processes, and taken down."""

from __future__ import annotations

import pytest

from memtopo.driver.types import Access, DriverError, PoolAttribute, gpu
from memtopo.kinds.pools.steps import POOL_HANDLES
from memtopo.run.process_run import ProcessRun
from memtopo.sharing.offers import LayoutExports
from tests.helpers.conducted import Conducted
from tests.helpers.failing_driver import Failing
from tests.helpers.lockstep import apply_together, together
from tests.helpers.machines import invented
from tests.helpers.processes import open_descriptors
from tests.helpers.reports import tallies
from tests.run.test_run_change import check_of_change, held, request_of

POOLS = """
pools: {p: {location: gpu0, handles: fd, release_threshold: 64MiB, accessed_by: gpu1}}
allocations: {a: {pool: p, size: 8MiB, count: 2}, b: {pool: p, size: 1MiB}}
"""
EXPORTS = "exports: {a: {allocation: a, via: fd}}\n"
SHARED = """
processes:
  server:
    pools: {p: {location: gpus, handles: fd, accessed_by: gpus}, h: {location: "host:0", handles: fd}}
    allocations: {a: {pool: p, size: 8MiB, count: 3}, b: {pool: p, size: 1000B}, c: {pool: h, size: 4MiB}}
    exports: {a: {allocation: a, via: fd}, b: {allocation: b, via: fd}, c: {allocation: c, via: fd}}
  reader:
    imports:
      a: {from: server.a, accessed_by: gpu1}
      b: {from: server.b, accessed_by: gpus}
      c: {from: server.c, accessed_by: gpu0}
  host: {imports: {c: {from: server.c}}}
"""
MACHINE = invented(2)


def pool_of(run: ProcessRun, label: str = "p") -> int:
    return run.execution.layout.of(POOL_HANDLES)[label]


def test_every_process_sees_the_bytes_of_every_other_in_shared_pools() -> None:
    for check in ("fast", "full"):
        reports = apply_together(SHARED, MACHINE, check)
        assert {report.outcome for report in reports.values()} == {"ok"}
        reader = tallies(reports["reader"].checks)
        assert reader["allocation"].as_declared == 6
        assert reader["pool access"].as_declared == 3
        assert not any(report.leaks for report in reports.values())


def test_an_importer_has_the_access_that_it_declares_whatever_its_exporter_has() -> None:
    """Fact 82."""
    with together(SHARED, MACHINE) as found:
        run = found.runs["reader"]
        pool, driver = pool_of(run, "server.p.0"), run.execution.driver
        assert driver.mem_pool_get_access(pool, gpu(1)) == Access.RW
        server = found.runs["server"]
        assert server.execution.driver.mem_pool_get_access(pool_of(server, "p.1"), gpu(0)) == Access.RW


def test_a_change_of_attributes_and_access_keeps_a_pool_and_its_allocations() -> None:
    other = POOLS.replace("64MiB, accessed_by: gpu1", "1MiB, reuse_allow_opportunistic: false")

    def use(made: Conducted, failing: Failing) -> None:
        del failing
        pool, before = pool_of(made.run), dict(made.run.execution.layout.buffers)
        driver = made.run.execution.driver
        assert driver.mem_pool_get_access(pool, gpu(1)) == Access.RW
        assert not check_of_change(made, request_of(other)).different
        assert (pool_of(made.run), made.run.execution.layout.buffers) == (pool, before)
        assert driver.mem_pool_get_access(pool, gpu(1)) == Access.NONE
        assert driver.mem_pool_get_attribute(pool, PoolAttribute.RELEASE_THRESHOLD) == 1 << 20
        assert driver.mem_pool_get_attribute(pool, PoolAttribute.REUSE_ALLOW_OPPORTUNISTIC) == 0
        assert not check_of_change(made, request_of(POOLS.replace("release_threshold: 64MiB, ", ""))).different
        assert driver.mem_pool_get_attribute(pool, PoolAttribute.RELEASE_THRESHOLD) == 0
        assert driver.mem_pool_get_attribute(pool, PoolAttribute.REUSE_ALLOW_OPPORTUNISTIC) == 1

    assert held(POOLS, use).outcome == "ok"


def test_a_change_of_allocations_leaves_the_others_of_the_pool() -> None:
    def use(made: Conducted, failing: Failing) -> None:
        del failing
        kept = made.run.execution.layout.buffers["b"]
        assert not check_of_change(made, request_of(POOLS.replace("8MiB, count: 2", "40MiB, count: 3"))).different
        assert made.run.execution.layout.buffers["b"] == kept
        assert sorted(made.run.execution.layout.buffers) == ["a.0", "a.1", "a.2", "b"]
        pool, driver = pool_of(made.run), made.run.execution.driver
        assert driver.mem_pool_get_attribute(pool, PoolAttribute.USED_MEM_CURRENT) == 121 << 20

    assert held(POOLS, use).outcome == "ok"


def test_an_export_that_fails_at_its_pointer_leaves_no_descriptor_of_the_pool() -> None:
    def use(made: Conducted, failing: Failing) -> None:
        run, before = made.run, open_descriptors()
        exports = LayoutExports(run.request.geometry, run.execution.layout, run.execution.driver, made.recheck)
        failing.at = failing.calls + 1
        with pytest.raises(DriverError, match="cuMemPoolExportPointer"):
            exports.handle("a", 0)
        assert open_descriptors() == before
        exports.handle("a", 0).close()
        assert open_descriptors() == before

    assert held(POOLS + EXPORTS, use, only={"mem_pool_export_pointer"}).outcome == "ok"


def test_memory_that_a_pool_frees_comes_back_by_the_end_of_a_change() -> None:
    """Fact 80: with the synchronisation that ends it, but for the units that allocations are in."""

    def use(made: Conducted, failing: Failing) -> None:
        del failing
        assert not check_of_change(
            made, request_of(POOLS.replace("8MiB, count: 2", "1MiB").replace("64MiB", "1MiB"))
        ).different
        pool, driver = pool_of(made.run), made.run.execution.driver
        assert driver.mem_pool_get_attribute(pool, PoolAttribute.RESERVED_MEM_CURRENT) == 64 << 20

    assert held(POOLS.replace("8MiB, count: 2", "80MiB, count: 2"), use).outcome == "ok"
