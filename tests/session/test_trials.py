"""Trials that the alternatives of a spec need."""

from __future__ import annotations

import pytest

from memtopo.driver.types import gpu
from memtopo.drivers.target import Target
from memtopo.geometry.groups import ChunkGroup
from memtopo.machine import Machine, Memory, load
from memtopo.machine.queries import changed
from memtopo.rules.validation import validate
from memtopo.session.trials import tried_for, with_needed_trials
from tests.helpers.specs import document

TEXT = """chunks: {c: {location: gpus, size: 2MiB, handles: fabric else fd, rdma: true else false}}
exports: {w: {chunk: c, via: fabric else fd}}"""


def untried(machine: Machine) -> Machine:
    """A machine as it is queried: without trials, with the free memory of its GPUs."""
    devices = [
        device.model_copy(update={"memory": Memory(granularity=device.memory.granularity), "free_bytes": 70 << 30})
        for device in machine.devices
    ]
    host = {name: memory.model_copy(update={"trials": {}}) for name, memory in machine.host.items()}
    return changed(machine, devices=devices, host=host)


@pytest.fixture(scope="module")
def after() -> Machine:
    """The machine after the trials that `TEXT` needs."""
    return tried_for(untried(load("h200x2")), document(TEXT), simulated=True)


def test_only_the_trials_that_alternatives_need_are_made_and_all_else_stays(after: Machine) -> None:
    for ordinal in range(2):
        trials = after.locations[gpu(ordinal)].trials
        assert {*trials} == {"fabric", "fd", "fd+fabric", "rdma"}
        assert all(trial.works is not None for trial in trials.values())
        assert after.devices[ordinal].free_bytes == 70 << 30
    assert untried(after) == untried(load("h200x2"))


def test_a_spec_takes_what_the_trials_of_a_queried_machine_show(after: Machine) -> None:
    geometry = validate(document(TEXT), after).geometry
    assert geometry
    works = after.trial(gpu(0), "fabric").works
    assert geometry.of(ChunkGroup)["c"].handles.words == (("fabric",) if works else ("fd",))
    assert all("was not tried" not in choice.text for choice in geometry.choices)


@pytest.mark.parametrize(
    "text", ["chunks: {c: {location: gpu0, size: 2MiB, handles: fd}}", "chunks: {orelse: {location: gpu0, size: 2MiB}}"]
)
def test_no_trial_is_made_for_a_spec_without_alternatives(text: str) -> None:
    machine = untried(load("h200x2"))
    assert tried_for(machine, document(text), simulated=True) is machine


def test_a_machine_with_these_trials_stays_as_it_is() -> None:
    machine = load("h200x2")
    assert tried_for(machine, document(TEXT), simulated=True) is machine


def test_no_trial_is_made_on_a_recorded_machine() -> None:
    machine = untried(load("h200x2"))
    found = Target("recorded", machine, simulated=True, _opener=lambda: pytest.fail("opened"))
    assert with_needed_trials(found, document(TEXT)) is found


def test_alternatives_of_a_parameter_are_tried_too() -> None:
    text = "params: {kind: fd}\nchunks: {c: {location: gpu0, size: 2MiB, handles: $kind}}"
    machine = untried(load("h100x1"))
    assert tried_for(machine, document(text), simulated=True) is machine
    given = document(text).with_settings({"kind": "fabric else fd"})
    assert "fabric" in tried_for(machine, given, simulated=True).locations[gpu(0)].trials
