"""Replicas: processes that make forbidden accesses and must not survive them."""

from __future__ import annotations

import time

import pytest
from msgspec.structs import replace

from memtopo.driver.types import Access, DriverError, HandleType, LocationKind, Properties, gpu
from memtopo.drivers.sim import SimDriver
from memtopo.machine import Machine
from memtopo.plans.report import Tally
from memtopo.run.verification import replicas as module
from memtopo.run.verification.replicas import ENDS_PROCESS, Replica, ReplicaHost, Tried, replicas, try_all
from memtopo.run.verification.rounds import FORBIDDEN
from tests.helpers import faulty_drivers
from tests.helpers.faulty_drivers import run_on
from tests.helpers.machines import invented
from tests.helpers.processes import open_descriptors
from tests.helpers.reports import tallies
from tests.helpers.specs import run_request, validate_text

GRANULE = 2 << 20
MACHINE = invented(1)
SPEC = """
ranges: {kv: {size: 12MiB, count: 2}, staging: {size: 2MiB}}
chunks:
  hot: {location: gpu0, size: 2MiB, handles: fd}
  page: {location: [gpu0, gpu1], size: 2MiB, count: 4}
  host: {location: host, size: 2MiB}
map: {kv.0: [hot, page], kv.1: [hot], staging: host}
access: {kv.0: {gpu0: rw, gpu1: r}, kv.1: {gpu0: r}, staging: {gpu0: r, host: rw}}
"""


def tried(replica: Replica, machine: Machine | None = None) -> Tried:
    place = ReplicaHost(machine or invented(2), simulated=True)
    ((found, outcome),) = try_all({replica: ()}, place, lambda: None)
    assert found == replica
    return outcome


@pytest.mark.parametrize("access", [Access.NONE, Access.R])
@pytest.mark.parametrize("device", [0, 1])
def test_a_forbidden_store_or_load_ends_the_process(access: Access, device: int) -> None:
    assert tried(Replica(Properties(gpu(0)), GRANULE, device, access)) == Tried("ends the process")


def test_a_permitted_access_does_not_end_the_process() -> None:
    assert tried(Replica(Properties(gpu(0)), GRANULE, 0, Access.RW)) == Tried("nothing happened")


def test_a_replica_that_cannot_be_built_is_not_tried() -> None:
    """Without memory for it, or without access to grant."""
    full = tried(Replica(Properties(gpu(0)), GRANULE, 0, Access.R), invented(2, memory=GRANULE))
    assert not full.seen
    assert full.why_not
    assert "OUT_OF_MEMORY" in full.why_not
    apart = tried(Replica(Properties(gpu(0)), GRANULE, 1, Access.NONE), invented(2, peers=False))
    assert apart.why_not
    assert "NOT_SUPPORTED" in apart.why_not


def test_each_set_of_properties_gpu_and_access_has_one_replica_named_by_its_first_mapping() -> None:
    geometry = validate_text(SPEC).geometry
    assert geometry
    shared, plain = Properties(gpu(0), HandleType.FD), Properties(gpu(0))
    first, second, other = ("map", "kv.0", 0), ("map", "kv.0", 1), ("map", "kv.1", 0)
    assert replicas(geometry) == {
        Replica(shared, GRANULE, 1, Access.R): first,
        Replica(plain, GRANULE, 1, Access.R): second,
        Replica(Properties(gpu(1)), GRANULE, 1, Access.R): second,
        Replica(shared, GRANULE, 0, Access.R): other,
        Replica(shared, GRANULE, 1, Access.NONE): other,
    }
    assert not any(each.properties.location.kind is LocationKind.HOST for each in replicas(geometry))


def test_a_full_check_counts_replicas_and_refusals_and_leaves_the_layout_intact() -> None:
    made = invented(2)
    done = run_on(SimDriver(made), replace(run_request(SPEC, made, "full"), machine_facts=made))
    assert done.report.exit_code == 0, done.report
    found = tallies(done.report.checks)
    assert found[FORBIDDEN] == Tally(FORBIDDEN, 5, 5, 1, "host memory has no replica")
    # 5 fills by gpu1 in kv.0; in kv.1 one by gpu0, one by gpu1, and a copy by gpu1; one of host memory by each GPU
    assert found["refused"] == Tally("refused", 10, 10)
    assert not found["every byte"].why_not or "no gpu can write" in found["every byte"].why_not


def test_without_the_machine_no_replica_is_tried() -> None:
    made = invented(2)
    report = run_on(SimDriver(made), run_request(SPEC, made, "full")).report
    tally = tallies(report.checks)[FORBIDDEN]
    assert (tally.looked_at, tally.not_checked) == (0, 5 + 1)


def test_a_missing_refusal_is_a_difference() -> None:
    """The bytes that it changed are one as well."""
    made = invented(2)
    report = run_on(faulty_drivers.RefusesNothing(made), run_request(SPEC, made, "full")).report
    assert report.checks
    found = {(each.aspect, each.subject, each.seen) for each in report.checks.differences}
    assert ("refused", "fill of hot in kv.1 at 0x0 by gpu0", "CUDA_SUCCESS") in found
    assert any(aspect == "every byte" and "hot + 0x0" in subject for aspect, subject, _ in found)


def test_a_requested_stop_ends_the_children_at_once_and_starts_no_more() -> None:
    more = range(1, 2 * module.MAX_CHILDREN + 1)
    replicas = [Replica(Properties(gpu(0)), number * GRANULE, 0, Access.R) for number in more]

    def stop() -> None:
        raise KeyboardInterrupt

    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        list(try_all(replicas, ReplicaHost(invented(1), simulated=True), stop))
    assert time.monotonic() - start < 5


@pytest.mark.parametrize(
    ("command", "limit", "why"),
    [
        ("kill -9 $$", 60.0, "the process was killed by SIGKILL"),
        ("exit 3", 60.0, "the process ended with status 3"),
        ("exec sleep 1000", 0.1, "it took more than 0.1 s"),
    ],
)
def test_a_child_that_gives_no_result_is_a_try_that_was_not_made(command: str, limit: float, why: str) -> None:
    host = ReplicaHost(MACHINE, simulated=True, limit=limit, command=("sh", "-c", command))
    replica = Replica(Properties(gpu(0)), GRANULE, 0, Access.R)
    before = open_descriptors()
    assert [*try_all({replica: ()}, host, lambda: None)] == [(replica, Tried("", why))]
    assert open_descriptors() == before


class RefusesForbiddenStore(SimDriver):
    """Answers the second store with `error`, and later calls with `later` if it is one."""

    error, later, stores = "", "", 0

    def store(self, address: int, value: int) -> None:
        self.stores += 1
        if self.stores == 2:
            raise DriverError("cuLaunchKernel", self.error)
        super().store(address, value)

    def mem_get_info(self) -> tuple[int, int]:
        if self.later and self.stores == 2:
            raise DriverError("cuMemGetInfo", self.later)
        return super().mem_get_info()


ILLEGAL, OTHER = "CUDA_ERROR_ILLEGAL_ADDRESS", "CUDA_ERROR_INVALID_VALUE"


@pytest.mark.parametrize(
    ("error", "later", "seen"),
    [
        (ILLEGAL, ILLEGAL, ENDS_PROCESS),
        (ILLEGAL, "", f"cuLaunchKernel: {ILLEGAL}"),
        (ILLEGAL, OTHER, f"cuLaunchKernel: {ILLEGAL}"),
        (OTHER, ILLEGAL, f"cuLaunchKernel: {OTHER}"),
        (OTHER, "", f"cuLaunchKernel: {OTHER}"),
    ],
)
def test_only_an_illegal_address_that_every_later_call_reports_ends_the_process(
    error: str, later: str, seen: str
) -> None:
    """Fact 24."""
    with RefusesForbiddenStore(invented(1)) as driver:
        driver.init()
        driver.error, driver.later = error, later
        assert module._try(driver, Replica(Properties(gpu(0)), GRANULE, 0, Access.R)) == Tried(seen)
