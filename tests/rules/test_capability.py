"""What a machine can create: by a trial and, where nothing was tried, by what is advertised."""

from __future__ import annotations

import pytest

from memtopo.common.units import MiB
from memtopo.driver.sim import SimDriver
from memtopo.driver.types import HandleType, Location, LocationKind, Properties, gpu
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
    return [fault.code for fault in found if fault.severity == "error"]


@pytest.mark.parametrize(
    ("chunk", "machine", "properties"),
    [
        ("location: gpu0", invented(1, trials={"vmm": FAILED}), Properties(gpu(0))),
        ("location: gpu0", invented(1, attributes={"VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED": 0}), Properties(gpu(0))),
        ("location: host", invented(1, attributes=HOST_VMM), Properties(Location(LocationKind.HOST))),
        ("location: host:0", invented(1, attributes=NODE_VMM), Properties(Location(LocationKind.HOST_NUMA, 0))),
    ],
)
def test_memory_that_cannot_be_created_at_all(chunk: str, machine: Machine, properties: Properties) -> None:
    """Where the plain trial failed, or nothing advertises it, the rule and the simulator refuse alike"""
    assert errors(chunk, machine) == ["MT405"]
    with SimDriver(machine) as sim:
        sim.init()
        with refused("CUDA_ERROR_NOT_SUPPORTED"):
            sim.mem_create(2 * MiB, properties)


def test_a_host_is_as_able_as_any_gpu_says() -> None:
    """Host memory can be had where one GPU says so, whatever another says"""
    none, some = invented(2, attributes=HOST_VMM | NODE_VMM), invented(2)
    either = some.model_copy(update={"devices": [none.devices[0], some.devices[1]]})
    assert errors("location: host", either) == []
    assert errors("location: host:0", either) == []


def test_both_handle_types_at_once() -> None:
    """A failed trial of fd and fabric together is refused by the simulator too, though each works alone"""
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
    """A handle type that was never tried is refused where the GPU does not advertise it"""
    untried = {word: UNTRIED}
    assert errors(f"location: gpu0, handles: {word}", invented(1, trials=untried, attributes={attribute: 0})) == [
        "MT404"
    ]
    assert errors(f"location: gpu0, handles: {word}", invented(1, trials=untried)) == []


@pytest.mark.parametrize("word", ["win32", "win32_kmt"])
@pytest.mark.parametrize("place", ["gpu0", "host:0"])
def test_windows_handles(word: str, place: str) -> None:
    """Handles of Windows are refused with the reason, tried or not, whatever is advertised (fact 3)"""
    says = {"HANDLE_TYPE_WIN32_HANDLE_SUPPORTED": 1, "HANDLE_TYPE_WIN32_KMT_HANDLE_SUPPORTED": 1}
    machine = invented(1, trials={"win32": UNTRIED}, attributes=says)
    (fault,) = (
        each
        for each in diagnose(f"chunks: {{c: {{location: {place}, size: 2MiB, handles: {word}}}}}", machine)
        if each.severity == "error"
    )
    assert (fault.code, fault.notes) == ("MT404", ("the driver returns INVALID_VALUE on Linux",))


def test_host_memory_that_cannot_be_shared() -> None:
    """A node's memory takes the handle types that a trial there worked with; the host's takes none (facts 6, 61)"""
    works = invented(1, nodes=2)
    assert errors("location: host:1, handles: fd", works) == []
    refused_there = {"host:1": works.host["host:1"].model_copy(update={"trials": {"fd": FAILED}})}
    machine = queries.changed(works, host=works.host | refused_there)
    assert errors("location: host:1, handles: fd", machine) == ["MT404"]
    assert errors("location: [host:0, host:1], handles: fd, count: 2", machine) == ["MT404"]
    assert errors("location: host:0, handles: fd", machine) == []
    for each in (works, machine):
        assert errors("location: host, handles: fd", each) == ["MT404"]


def test_a_host_without_its_first_node() -> None:
    """Memory of the host is node 0's, as the driver reports it (fact 6), also where no node was recorded"""
    machine = invented(1)
    bare = machine.model_copy(update={"host": {"host": machine.host["host"]}})
    with SimDriver(bare) as sim:
        sim.init()
        with created(sim, 2 * MiB, Properties(Location(LocationKind.HOST))) as handle:
            seen = sim.mem_get_allocation_properties_from_handle(handle)
            assert seen.location == Location(LocationKind.HOST_NUMA, 0)
        with refused("CUDA_ERROR_INVALID_VALUE"):
            sim.mem_create(2 * MiB, Properties(Location(LocationKind.HOST_NUMA, 0)))
    text = (
        "ranges: {kv: {size: 2MiB}}\nchunks: {c: {location: host, size: 2MiB}}\nmap: {kv: c}\naccess: {kv: {gpu0: rw}}"
    )
    assert run(run_request(text, bare), bare).report.exit_code == 0


IPC = """\
buffers: {b: {location: gpu0, size: 2MiB}}
events: {e: {device: gpu0}}
exports: {out: {buffer: b, via: ipc}, done: {event: e, via: ipc}}
"""


@pytest.mark.parametrize(("what", "told"), [("ipc", "buffers"), ("ipc-event", "events")])
def test_legacy_ipc_that_failed(what: str, told: str) -> None:
    """What a trial across two processes refused is not exported; one that was never made forbids nothing"""
    found = diagnose(IPC, invented(1, trials={what: FAILED}))
    assert [fault.code for fault in found] == ["MT404"]
    assert f"legacy IPC of {told}" in found[0].message
    assert not diagnose(IPC, invented(1))
