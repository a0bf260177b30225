"""The trial supervisor with children that hang, die or do not start."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from memtopo.common.processes import Broken, inherited_socket, python_command, spawn
from memtopo.driver.handles import Handle
from memtopo.driver.types import gpu
from memtopo.machine import Machine, Surroundings, Trial
from memtopo.machine.queries import changed
from memtopo.plans.progress import CountedProgress, Progress
from memtopo.probe import Limits, Probed, ProbeStopped, probe, with_pinned
from memtopo.probe.supervisor import Finished, ImportAnswer, ImportRequest, Start, _Importer, _start_child
from memtopo.sharing.channel import Channel
from tests.helpers.machines import complete, invented

DYING = python_command("tests.probe.dying_child:probe_and_die")
LEAKING = python_command("tests.probe.test_supervisor:report_leaks")
NO_DRIVER = python_command("tests.probe.test_supervisor:report_no_driver")
SHORT = Limits(trial=1.0, request=0.5, start=30.0)
MACHINE = complete(invented(2))


def report_no_driver(descriptor: str) -> None:
    """Be a child that finds no driver."""
    Channel[object](inherited_socket(descriptor), ()).send(Broken("no driver"))


def report_leaks(descriptor: str) -> None:
    """Be a child whose trials have left two chunks."""
    Channel[object](inherited_socket(descriptor), ()).send(Finished({"chunks": 2, "events": 0}))


@pytest.fixture(autouse=True, scope="module")
def _fork_server_runs() -> None:
    """The server of processes has started: it is no child that a probe leaves."""
    spawn(python_command("builtins:str")).wait()


def children() -> set[str]:
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def probed(method: str, how: str, machine: Machine = MACHINE, progress: Progress | None = None) -> Probed:
    before = children()
    found = probe(machine, simulated=True, limits=SHORT, child=[*DYING, method, how], progress=progress)
    assert children() == before
    return found


def trials(found: Probed) -> dict[str, Trial]:
    return found.machine.devices[0].memory.trials


@pytest.mark.parametrize("how", ["SIGSEGV", "SIGKILL", "SIGABRT"])
def test_a_trial_that_ends_its_process_fails_and_the_others_are_made(how: str) -> None:
    found = probed("event_create", how)
    assert trials(found)["ipc-event"] == Trial(advertised=True, works=False, error=how)
    assert trials(found)["pool-fd"].works
    assert found.machine.peers[0][1] == MACHINE.peers[0][1]


def test_a_trial_that_hangs_is_killed() -> None:
    found = probed("event_create", "hang")
    assert trials(found)["ipc-event"] == Trial(advertised=True, works=False, error="TIMEOUT")
    assert trials(found)["pool-fd"].works


@pytest.mark.parametrize(("how", "error"), [("hang", "TIMEOUT"), ("SIGSEGV", "SIGSEGV")])
def test_the_importing_child_is_replaced_when_it_hangs_or_dies(how: str, error: str) -> None:
    found = probed("ipc_open_mem_handle", how)
    assert trials(found)["ipc"] == Trial(works=False, error=error)
    assert trials(found)["ipc-event"].works


def test_the_importing_child_is_replaced_after_a_fatal_error() -> None:
    found = probed("ipc_open_mem_handle", "CUDA_ERROR_ILLEGAL_ADDRESS")
    assert trials(found)["ipc"].error == "CUDA_ERROR_ILLEGAL_ADDRESS"
    assert trials(found)["ipc-event"].works


def test_a_child_is_replaced_after_a_fatal_error() -> None:
    found = probed("event_create", "CUDA_ERROR_ILLEGAL_ADDRESS")
    no = Trial(advertised=True, works=False, error="CUDA_ERROR_ILLEGAL_ADDRESS", call="cuEventCreate")
    assert trials(found)["ipc-event"] == no
    assert trials(found)["pool-fd"].works


def test_without_a_context_nothing_is_known() -> None:
    found = probed("device_primary_ctx_retain", "CUDA_ERROR_UNKNOWN")
    result = trials(found)["ipc"]
    assert (result.works, result.error, result.call) == (None, "CUDA_ERROR_UNKNOWN", "cuDevicePrimaryCtxRetain")
    assert found.machine.host["host"].trials["vmm"].works


def test_an_exception_in_a_child_is_noted_with_its_trial() -> None:
    found = probed("event_create", "raise")
    result = trials(found)["ipc-event"]
    assert (result.works, result.error) == (False, "EXIT 0")
    assert "RuntimeError: a bug" in str(result.note)


def test_a_child_that_ends_at_its_start_is_noted() -> None:
    found = probe(MACHINE, simulated=True, child=[sys.executable, "-c", "raise SystemExit(3)"])
    assert trials(found)["vmm"] == Trial(advertised=True, note="its process did not start: EXIT 3")


def test_a_command_that_does_not_exist_is_noted() -> None:
    found = probe(MACHINE, simulated=True, child=["/nowhere/python"])
    assert "no process could be started" in str(trials(found)["vmm"].note)


def test_an_interrupted_probe_leaves_no_child() -> None:
    before = children()
    with pytest.raises(ProbeStopped):
        probe(MACHINE, simulated=True, stop=lambda: 15)
    assert children() == before


def test_a_probe_leaves_no_descriptor_open() -> None:
    count = len(list(Path("/proc/self/fd").iterdir()))
    probe(MACHINE, simulated=True)
    assert len(list(Path("/proc/self/fd").iterdir())) == count
    assert MACHINE.locations[gpu(0)].trials


def test_handles_are_closed_if_no_child_can_be_started_to_import_them() -> None:
    """The other end of a pipe has no writer then."""
    importer = _Importer(lambda: _start_child(Start(None, None), ["/nowhere/python"]), lambda: 0, SHORT)
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as end:
        assert importer.answer(ImportRequest("chunk", 0), [Handle.of(writer)]) == ImportAnswer(error="EXIT")
        os.set_blocking(reader, False)
        assert end.read() == b""


def test_a_child_without_a_driver_makes_all_trials_not_tried() -> None:
    found = probe(invented(1), simulated=False, bandwidth=True, child=NO_DRIVER)
    assert "no driver" in str(trials(found)["fd"].note)
    assert trials(found)["multicast"].note == "others share its switch"
    assert found.machine.devices[0].copies is None
    around = found.machine.surroundings
    assert around
    assert (trials(found)["pool-fabric"].note == "no IMEX channel") is not bool(around.imex_channels)


def test_every_trial_is_counted_as_a_step_even_if_it_ends_its_process() -> None:
    counted = CountedProgress()
    probed("event_create", "SIGKILL", progress=counted)
    assert counted.state
    assert (counted.state.name, counted.state.whole.share) == ("try", 1.0)
    assert counted.state.whole.total > 8


def test_what_trials_have_left_is_a_note() -> None:
    found = probe(MACHINE, simulated=True, child=LEAKING)
    assert found.notes == ("trials left 2 chunks, which ended with their process",)


@pytest.mark.parametrize(("wsl", "known"), [(None, False), (True, False), (False, True)])
def test_the_bytes_that_may_be_page_locked_are_those_of_the_host_but_not_known_in_wsl(
    wsl: bool | None, known: bool
) -> None:
    around = None
    if wsl is not None:
        around = Surroundings(container=False, wsl=wsl, imex_channels=0, open_files=9, vulkan=False)
    machine = changed(MACHINE, surroundings=around, host_bytes=64 << 30)
    assert with_pinned(machine).pinned_bytes == (64 << 30 if known else None)
