"""Whatever a trial does to its process, it is told, the other trials are made, and no process is left."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from memtopo.common.spawn import inherited_socket, python_command
from memtopo.driver.types import gpu
from memtopo.machine import Machine, Trial
from memtopo.machine.probe import Limits, Probed, Stopped, probe
from memtopo.machine.probe.messages import Broken
from memtopo.sharing.channel import Channel
from tests.cli.running import ROOT
from tests.helpers.machines import complete, invented

DYING = Path(__file__).parent / "dying.py"
NO_DRIVER = python_command("tests.machine.probe.test_supervisor:report_no_driver")
SHORT = Limits(trial=1.0, handed=0.5, start=30.0)
MACHINE = complete(invented(2))


def report_no_driver(descriptor: str) -> None:
    """Be a child that finds no driver."""
    Channel[object](inherited_socket(descriptor), ()).send(Broken("no driver"))


def children() -> set[str]:
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def probed(method: str, how: str, machine: Machine = MACHINE) -> Probed:
    script = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import runpy; "
    command = [sys.executable, "-c", f"{script}runpy.run_path({str(DYING)!r}, run_name='__main__')", method, how]
    before = children()
    found = probe(machine, simulated=True, limits=SHORT, child=command)
    assert children() == before
    return found


def trials(found: Probed) -> dict[str, Trial]:
    return found.machine.devices[0].memory.trials


@pytest.mark.parametrize("how", ["SIGSEGV", "SIGKILL", "SIGABRT"])
def test_a_trial_that_dies(how: str) -> None:
    """A trial that ends its process is a no with the signal's name, and the trials after it are made"""
    found = probed("event_create", how)
    assert trials(found)["ipc-event"] == Trial(advertised=True, works=False, error=how)
    assert trials(found)["pool-fd"].works
    assert found.machine.peers[0][1] == MACHINE.peers[0][1]


def test_a_trial_that_hangs() -> None:
    """A trial that does not end in time is killed and told as such"""
    found = probed("event_create", "hang")
    assert trials(found)["ipc-event"] == Trial(advertised=True, works=False, error="TIMEOUT")
    assert trials(found)["pool-fd"].works


@pytest.mark.parametrize(("how", "error"), [("hang", "TIMEOUT"), ("SIGSEGV", "SIGSEGV")])
def test_the_importing_process(how: str, error: str) -> None:
    """The importing process may hang or die of what it is handed; another one takes what comes next"""
    found = probed("ipc_open_mem_handle", how)
    assert trials(found)["ipc"] == Trial(works=False, error=error)
    assert trials(found)["ipc-event"].works


def test_an_error_that_ends_all_use() -> None:
    """After an error that poisons a process, another one goes on"""
    found = probed("event_create", "CUDA_ERROR_ILLEGAL_ADDRESS")
    no = Trial(advertised=True, works=False, error="CUDA_ERROR_ILLEGAL_ADDRESS", call="cuEventCreate")
    assert trials(found)["ipc-event"] == no
    assert trials(found)["pool-fd"].works


def test_a_gpu_without_contexts() -> None:
    """A GPU that gives no context is not said to be unable to do anything"""
    found = probed("device_primary_ctx_retain", "CUDA_ERROR_UNKNOWN")
    told = trials(found)["ipc"]
    assert (told.works, told.error, told.call) == (None, "CUDA_ERROR_UNKNOWN", "cuDevicePrimaryCtxRetain")
    assert found.machine.host["host"].trials["vmm"].works


def test_a_child_with_a_bug() -> None:
    """A bug is told as what it is, with its trial"""
    found = probed("event_create", "raise")
    told = trials(found)["ipc-event"]
    assert (told.works, told.error) == (False, "EXIT 0")
    assert "RuntimeError: a bug" in str(told.note)


def test_a_child_that_does_not_start() -> None:
    """Where no child starts, nothing was tried, and that is said"""
    found = probe(MACHINE, simulated=True, child=[sys.executable, "-c", "raise SystemExit(3)"])
    assert trials(found)["vmm"] == Trial(advertised=True, note="its process did not start: EXIT 3")


def test_a_child_that_cannot_be_started() -> None:
    """Nor is it a crash where there is no such program"""
    found = probe(MACHINE, simulated=True, child=["/nowhere/python"])
    assert "no process could be started" in str(trials(found)["vmm"].note)


def test_stopping() -> None:
    """Whoever asks to stop is obeyed, and no child is left"""
    before = children()
    with pytest.raises(Stopped):
        probe(MACHINE, simulated=True, stop=lambda: 15)
    assert children() == before


def test_descriptors_are_back() -> None:
    """A probe leaves no descriptor open"""
    count = len(list(Path("/proc/self/fd").iterdir()))
    probe(MACHINE, simulated=True)
    assert len(list(Path("/proc/self/fd").iterdir())) == count
    assert MACHINE.locations[gpu(0)].trials


def test_a_driver_that_does_not_open_there() -> None:
    """Where children find no driver, everything is said not to have been tried, and why; nothing was measured"""
    found = probe(invented(1), simulated=False, bandwidth=True, child=NO_DRIVER)
    assert "no driver" in str(trials(found)["fd"].note)
    assert trials(found)["multicast"].note == "others share its switch"
    assert found.machine.devices[0].copies is None
    assert found.machine.surroundings
