"""The coordinator: the first message to a worker, and the progress and times of a whole run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from memtopo import machine as machines
from memtopo.common.errors import InternalError
from memtopo.machine import target
from memtopo.plans.report import MachineLine, Progress
from memtopo.run import processes
from memtopo.run.processes.messages import Start
from tests.helpers.machines import identified, invented
from tests.helpers.specs import ensemble

TWO = Path(__file__).with_name("two.yaml")
MACHINE = invented(2)


def test_the_first_message_has_all_from_which_a_worker_plans() -> None:
    made = ensemble(TWO, MACHINE, check="full", timeout=7.0)
    made = replace(
        made,
        request=replace(made.request, seed=11, machine=MachineLine("mine", simulated=True, devices=(), driver="1")),
        sockets={"camera": "/run/camera.sock"},
        allow_uids=(1000,),
    )
    assert made.start_message("reader", (1,)) == Start(
        process="reader",
        spec=str(TWO),
        text=TWO.read_text(),
        machine=machines.dump(MACHINE),
        machine_name="mine",
        simulated=True,
        visible=(1,),
        timeout=7.0,
        gpus=tuple(target.uuids(MACHINE)),
        sockets={"camera": "/run/camera.sock"},
        allow_uids=(1000,),
        check="full",
        seed=11,
    )
    unnamed = replace(made, request=replace(made.request, spec=None))
    assert unnamed.start_message("reader", ()).spec == "<spec>"


def test_only_real_workers_of_visible_gpus_have_an_environment() -> None:
    made = ensemble(TWO, identified(["GPU-" + each * 32 for each in "abc"]))
    real = replace(made, request=replace(made.request, machine=replace(made.request.machine, simulated=False)))
    assert (made.environment((0,)), real.environment(())) == ({}, {})
    assert real.environment((2, 0)) == {"CUDA_VISIBLE_DEVICES": f"GPU-{'c' * 32},GPU-{'a' * 32}"}
    with pytest.raises(InternalError, match="has no UUID"):
        replace(real, machine=MACHINE).environment((0,))


class Phases(Progress):
    """Notes each phase with its total and with what was counted."""

    def __init__(self) -> None:
        self.found: list[list[object]] = []
        self.ended = 0

    def phase(self, name: str, steps: int) -> None:
        self.found.append([str(name), steps, 0, 0])

    def volume(self, name: str, size: int) -> None:
        self.found.append([f"{name} bytes", size, 0, 0])

    def extend(self, steps: int) -> None:
        self.found[-1][2] += steps  # type: ignore[operator]

    def advance(self, steps: int) -> None:
        self.found[-1][3] += steps  # type: ignore[operator]

    def end(self) -> None:
        self.ended += 1


def test_progress_and_times_have_the_phases_of_all_processes() -> None:
    phases = Phases()
    report = processes.apply(ensemble(TWO, MACHINE, check="full"), progress=phases)
    assert report.exit_code == 0, report
    counts = {"open": 4, "reserve": 2, "create": 4, "export": 3, "import": 4, "map": 4, "grant": 2, "settle": 2}
    building = [[phase, 0, count, count] for phase, count in counts.items()]
    volume = 30 << 20
    assert phases.found == [
        ["start", 2, 0, 2],
        *building,
        ["check", 0, 25, 25],
        ["verify bytes", volume, 0, volume],
        ["take down", 0, 25, 25],
    ]
    assert phases.ended == 1
    times = {"start": 2, **counts, "open": 2, "check": 23, "verify": 2, "take down": 2}
    assert [(str(each.phase), each.steps) for each in report.times] == [*times.items()]
    assert all(each.seconds >= 0 for each in report.times)
