"""Chunks: handle types and properties that a machine supports, by trial or else as advertised."""

from __future__ import annotations

import pytest

from memtopo.common.units import MiB
from memtopo.driver.types import HandleType, Location, LocationKind, Properties, gpu
from memtopo.drivers.sim import SimDriver
from memtopo.machine import Machine, Trial, queries
from tests.contract.memory import created, refused
from tests.helpers.machines import invented
from tests.helpers.specs import diagnose, run, run_request

FAILED = Trial(advertised=True, works=False, error="CUDA_ERROR_NOT_SUPPORTED")

UNTRIED = Trial()

HOST_VMM = {"HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED": 0}

NODE_VMM = {"HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED": 0}


def errors(chunk: str, machine: Machine) -> list[str]:
    """The codes of the errors of one chunk."""
    found = diagnose(f"chunks: {{c: {{size: 2MiB, {chunk}}}}}", machine)
    return [diagnostic.code for diagnostic in found if diagnostic.severity == "error"]


@pytest.mark.parametrize(
    ("chunk", "machine", "properties"),
    [
        ("location: gpu0", invented(1, trials={"vmm": FAILED}), Properties(gpu(0))),
        ("location: gpu0", invented(1, attributes={"VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED": 0}), Properties(gpu(0))),
        ("location: host", invented(1, attributes=HOST_VMM), Properties(Location(LocationKind.HOST))),
        ("location: host:0", invented(1, attributes=NODE_VMM), Properties(Location(LocationKind.HOST_NUMA, 0))),
    ],
)
def test_devices_without_vmm_are_refused_by_rule_and_simulator(
    chunk: str, machine: Machine, properties: Properties
) -> None:
    assert errors(chunk, machine) == ["MT405"]
    with SimDriver(machine) as sim:
        sim.init()
        with refused("CUDA_ERROR_NOT_SUPPORTED"):
            sim.mem_create(2 * MiB, properties)


def test_host_memory_needs_one_gpu_that_advertises_it() -> None:
    none, some = invented(2, attributes=HOST_VMM | NODE_VMM), invented(2)
    either = some.model_copy(update={"devices": [none.devices[0], some.devices[1]]})
    assert errors("location: host", either) == []
    assert errors("location: host:0", either) == []


def test_a_failed_trial_of_both_handle_types_refuses_their_combination_only() -> None:
    works = Trial(advertised=True, works=True)
    machine = invented(1, trials={"fabric": works, "fd+fabric": FAILED})
    assert errors("location: gpu0, handles: [fd, fabric]", machine) == ["MT404"]
    assert errors("location: gpu0, handles: fabric", machine) == []
    with SimDriver(machine) as sim:
        sim.init()
        with refused("CUDA_ERROR_NOT_SUPPORTED"):
            sim.mem_create(2 * MiB, Properties(gpu(0), HandleType.FD | HandleType.FABRIC))


@pytest.mark.parametrize(
    ("word", "attribute"),
    [
        ("fd", "HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED"),
        ("fabric", "HANDLE_TYPE_FABRIC_SUPPORTED"),
    ],
)
def test_without_a_trial_the_attribute_decides(word: str, attribute: str) -> None:
    untried = {word: UNTRIED}
    assert errors(f"location: gpu0, handles: {word}", invented(1, trials=untried, attributes={attribute: 0})) == [
        "MT404"
    ]
    assert errors(f"location: gpu0, handles: {word}", invented(1, trials=untried)) == []


@pytest.mark.parametrize("word", ["win32", "win32_kmt"])
@pytest.mark.parametrize("place", ["gpu0", "host:0"])
def test_windows_handles_are_refused_on_linux(word: str, place: str) -> None:
    """Fact 3."""
    says = {"HANDLE_TYPE_WIN32_HANDLE_SUPPORTED": 1, "HANDLE_TYPE_WIN32_KMT_HANDLE_SUPPORTED": 1}
    machine = invented(1, trials={"win32": UNTRIED}, attributes=says)
    (diagnostic,) = (
        each
        for each in diagnose(f"chunks: {{c: {{location: {place}, size: 2MiB, handles: {word}}}}}", machine)
        if each.severity == "error"
    )
    assert (diagnostic.code, diagnostic.notes) == ("MT404", ("the driver returns INVALID_VALUE on Linux",))


def test_host_memory_has_the_handle_types_of_its_node() -> None:
    """Facts 6, 61."""
    works = invented(1, nodes=2)
    assert errors("location: host:1, handles: fd", works) == []
    refused_there = {"host:1": works.host["host:1"].model_copy(update={"trials": {"fd": FAILED}})}
    machine = queries.changed(works, host=works.host | refused_there)
    assert errors("location: host:1, handles: fd", machine) == ["MT404"]
    assert errors("location: [host:0, host:1], handles: fd, count: 2", machine) == ["MT404"]
    assert errors("location: host:0, handles: fd", machine) == []
    for each in (works, machine):
        assert errors("location: host, handles: fd", each) == ["MT404"]


def test_host_memory_is_reported_on_node_0_even_if_not_recorded() -> None:
    """Fact 6."""
    machine = invented(1)
    bare = machine.model_copy(update={"host": {"host": machine.host["host"]}})
    with SimDriver(bare) as sim:
        sim.init()
        with created(sim, 2 * MiB, Properties(Location(LocationKind.HOST))) as handle:
            observed = sim.mem_get_allocation_properties_from_handle(handle)
            assert observed.location == Location(LocationKind.HOST_NUMA, 0)
        with refused("CUDA_ERROR_INVALID_VALUE"):
            sim.mem_create(2 * MiB, Properties(Location(LocationKind.HOST_NUMA, 0)))
    text = (
        "ranges: {kv: {size: 2MiB}}\nchunks: {c: {location: host, size: 2MiB}}\nmap: {kv: c}\naccess: {kv: {gpu0: rw}}"
    )
    assert run(run_request(text, bare), bare).report.exit_code == 0
