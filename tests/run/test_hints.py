"""Hints for driver errors."""

from __future__ import annotations

import re
from pathlib import Path

from memtopo.driver.ledger import Ledger
from memtopo.driver.protocol import Driver, call_name
from memtopo.driver.sim import SimDriver
from memtopo.driver.types import DriverError
from memtopo.run.apply import apply
from memtopo.run.hints import _BY_CALL, _BY_ERROR, error_hint
from tests.helpers.failing_driver import Failing
from tests.helpers.machines import invented
from tests.helpers.specs import run_request

FACTS = (Path(__file__).parent.parent.parent / "docs" / "driver-facts.md").read_text()
EVERY = [*_BY_CALL.values(), *_BY_ERROR.values()]
SPEC = "ranges: {r: {size: 4MiB}}\nchunks: {c: {location: gpu0, size: 2MiB}}\nmap: {r: c}\naccess: {r: {gpu0: rw}}\n"


def test_every_cited_fact_exists() -> None:
    cited = {
        number
        for each in EVERY
        for citation in re.findall(r"\(facts? ([^)]*)\)", each.cause or "")
        for number in re.findall(r"\d+", citation)
    }
    assert cited
    assert all(f'id="fact-{number}"' in FACTS for number in cited)


def test_every_hint_is_for_a_call_that_memtopo_makes() -> None:
    calls = {call_name(method) for method in dir(Driver) if not method.startswith("_")}
    assert {call for call, _ in _BY_CALL} <= calls


def test_a_hint_depends_on_call_and_error() -> None:
    addresses = error_hint(DriverError("cuMemAddressReserve", "CUDA_ERROR_OUT_OF_MEMORY"))
    memory = error_hint(DriverError("cuMemCreate", "CUDA_ERROR_OUT_OF_MEMORY"))
    assert addresses
    assert memory
    assert "fact 9" in str(addresses.cause)
    assert "nvidia-smi" in memory.advice
    assert error_hint(DriverError("cuMemCreate", "CUDA_ERROR_SOMETHING_NEW")) is None


def test_report_of_a_failure_has_cause_and_advice() -> None:
    made = invented(1)
    with SimDriver(made) as sim:
        sim.init()
        failing = Failing(sim, 1, error="CUDA_ERROR_NOT_SUPPORTED", only={"mem_map"})
        failure = apply(run_request(SPEC, made), Ledger(failing)).failure
    assert failure
    assert failure.cause
    assert "fact" in failure.cause
    assert failure.hint == "declare the size that the exporter created it with"
    assert failure.path == ("map", "r", 0)
