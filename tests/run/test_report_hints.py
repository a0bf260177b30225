"""Hints for driver errors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

import pytest

from memtopo import kinds
from memtopo.common.errors import InternalError, MemtopoError, Unavailable
from memtopo.driver.ledger import Ledger
from memtopo.driver.protocol import Driver, call_name
from memtopo.driver.types import Access, DriverError, Grant, Location, LocationKind, MemAttach, Properties, gpu
from memtopo.drivers.sim import SimDriver
from memtopo.executor import StepFailed
from memtopo.kinds.chunks.steps import CreateChunk
from memtopo.kinds.ipc.steps import AllocateBuffer
from memtopo.kinds.managed.steps import AllocateManaged
from memtopo.kinds.mappings.steps import SetAccess
from memtopo.kinds.pinned.steps import PINNED, AllocatePinned
from memtopo.kinds.resources import ReserveRange
from memtopo.kinds.step import Step
from memtopo.run.apply import apply
from memtopo.run.reports import _BY_ERROR, _INVALID_VALUE, error_hint, exit_code, failure
from memtopo.run.transition import attempted
from tests.helpers.failing_driver import Failing
from tests.helpers.machines import invented
from tests.helpers.specs import run_request

FACTS = (Path(__file__).parent.parent.parent / "docs" / "driver-facts.md").read_text()
SPEC = "ranges: {r: {size: 4MiB}}\nchunks: {c: {location: gpu0, size: 2MiB}}\nmap: {r: c}\naccess: {r: {gpu0: rw}}\n"


def _step_classes(base: type[Step] = Step) -> Iterator[type[Step]]:
    for module in walk_packages(kinds.__path__, f"{kinds.__name__}."):
        import_module(module.name)
    for each in base.__subclasses__():
        yield each
        yield from _step_classes(each)


def _causes() -> Iterator[str | None]:
    yield from (hint.cause for hint in (*_INVALID_VALUE.values(), *_BY_ERROR.values()))
    for step in _step_classes():
        yield from (hint.cause for hint in step.hints.values())


def test_every_cited_fact_exists() -> None:
    cited = [
        number
        for cause in _causes()
        for citation in re.findall(r"\(facts? ([^)]*)\)", cause or "")
        for number in re.findall(r"\d+", citation)
    ]
    assert len(cited) > 30
    assert all(f'id="fact-{number}"' in FACTS for number in cited)


def test_every_hint_is_for_a_call_that_memtopo_makes() -> None:
    calls = {call_name(method) for method in dir(Driver) if not method.startswith("_")}
    steps = list(_step_classes())
    assert {step.call for step in steps if step.hints and hasattr(step, "call")} <= calls
    assert _INVALID_VALUE.keys() <= calls


def test_a_hint_depends_on_call_and_error() -> None:
    create, reserve = (
        CreateChunk((), "c", 2 << 20, Properties(gpu(0))),
        ReserveRange((), "r", 2 << 20, 0, 0, fixed=False),
    )
    addresses = error_hint(DriverError("cuMemAddressReserve", "CUDA_ERROR_OUT_OF_MEMORY"), reserve)
    memory = error_hint(DriverError("cuMemCreate", "CUDA_ERROR_OUT_OF_MEMORY"), create)
    assert addresses
    assert memory
    assert "fact 9" in str(addresses.cause)
    assert "memtopo who" in memory.advice
    assert error_hint(DriverError("cuMemCreate", "CUDA_ERROR_SOMETHING_NEW"), create) is None


def test_a_hint_for_an_undo_is_not_one_for_the_call() -> None:
    reserve = ReserveRange((), "r", 2 << 20, 0, 0, fixed=False)
    reserved = error_hint(DriverError("cuMemAddressReserve", "CUDA_ERROR_INVALID_VALUE"), reserve)
    freed = error_hint(DriverError("cuMemAddressFree", "CUDA_ERROR_INVALID_VALUE"), reserve)
    assert "granularity" in str(reserved and reserved.cause)
    assert "mapped inside" in str(freed and freed.cause)


def test_a_hint_of_a_step_is_not_given_for_another_call() -> None:
    grant = SetAccess((), "r", 0, 2 << 20, (Grant(gpu(0), Access.RW),))
    assert error_hint(DriverError("cuMemMap", "CUDA_ERROR_INVALID_VALUE"), grant) is None
    assert error_hint(DriverError("cuMemMap", "CUDA_ERROR_INVALID_VALUE")) is None


def test_host_memory_that_is_exhausted_has_its_own_hint() -> None:
    host = CreateChunk((), "c", 2 << 20, Properties(Location(LocationKind.HOST_NUMA, 0)))
    found = error_hint(DriverError("cuMemCreate", "CUDA_ERROR_OUT_OF_MEMORY"), host)
    assert found
    assert "numactl" in found.advice
    assert str(found.cause).startswith("NUMA node host:0 has less than 2MiB of free memory")


@pytest.mark.parametrize(
    ("step", "blamed"),
    [
        (CreateChunk((), "c", 2 << 20, Properties(gpu(1))), "gpu1 has less than 2MiB"),
        (CreateChunk((), "c", 2 << 20, Properties(Location(LocationKind.HOST_NUMA, 3))), "NUMA node host:3"),
        (CreateChunk((), "c", 2 << 20, Properties(Location(LocationKind.HOST))), "the host has less than 2MiB"),
        (AllocatePinned((), "c@pinned", 2 << 20, (0,), PINNED), "2MiB of the host's memory cannot be page-locked"),
        (AllocateManaged((), "m", 0, 2 << 20, MemAttach.GLOBAL, gpu(0)), "no GPU's memory is taken yet"),
        (AllocateBuffer((), "b", 1, 2 << 20), "gpu1 has less than 2MiB"),
    ],
)
def test_exhausted_memory_is_that_of_the_step(step: Step, blamed: str) -> None:
    found = error_hint(DriverError(step.call, "CUDA_ERROR_OUT_OF_MEMORY"), step)
    assert found
    assert str(found.cause).startswith(blamed)
    assert ("memtopo who" in found.advice) == blamed.startswith("gpu1")


def test_report_of_a_failure_has_cause_and_advice() -> None:
    made = invented(1)
    with SimDriver(made) as sim:
        sim.init()
        failing = Failing(sim, 1, error="CUDA_ERROR_NOT_SUPPORTED", only={"mem_map"})
        found = apply(run_request(SPEC, made), Ledger(failing)).failure
    assert found
    assert found.cause
    assert "fact" in found.cause
    assert found.hint == "declare the size that the exporter created it with"
    assert found.path == ("map", "r", 0)


@pytest.mark.parametrize(
    ("error", "status", "told", "advice"),
    [
        (Unavailable("no driver", hint="install one"), 3, "no driver", "install one"),
        (MemtopoError("no room", hint="free some"), 4, "no room", "free some"),
        (OSError("no file"), 4, "OSError: no file", None),
        (MemoryError("no bytes"), 4, "MemoryError: no bytes", None),
        (InternalError("a bug"), 70, "InternalError: a bug", None),
        (ValueError("a bug"), 70, "ValueError: a bug", None),
    ],
)
def test_an_error_of_no_driver_has_its_status_text_and_advice(
    error: Exception, status: int, told: str, advice: str | None
) -> None:
    found = failure(StepFailed(None, "work", error), run_request(SPEC, invented(1)))
    assert (exit_code(error), found.step, found.error, found.hint) == (status, "work", told, advice)
    refused = attempted(lambda: throw(error))
    told = error.message if isinstance(error, MemtopoError) else f"internal error: {told}"
    assert (refused.error, refused.hint) == (told, advice)


def throw(error: Exception) -> None:
    raise error


def test_difference_of_a_fixed_address_has_a_hint() -> None:
    made = invented(1)
    with SimDriver(made) as sim:
        sim.init()
        taken = sim.mem_address_reserve(4 << 20, 0, 0x7_0000_0000)
        text = f"ranges: {{r: {{size: 4MiB, address: {taken:#x}, fixed: true}}}}\n"
        checks = apply(run_request(text, made), Ledger(sim)).checks
    assert checks
    assert [(each.aspect, "fact 11" in str(each.hint)) for each in checks.differences] == [("address", True)]
