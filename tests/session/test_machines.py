"""Machines that a spec names: its own targets, and the warning on other machines."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from memtopo.driver.types import gpu
from memtopo.drivers.target import Target, of_nodes, recorded
from memtopo.geometry.groups import ChunkGroup
from memtopo.language import Document, read_file, read_text
from memtopo.machine import Machine, Memory, dump, load
from memtopo.machine.queries import changed
from memtopo.rules import validate
from memtopo.session.composition import Composition
from memtopo.session.machines import own_targets, tried_for, with_needed_trials
from memtopo.session.saved import spec_digest
from memtopo.spec import MACHINES, SECTIONS
from tests.helpers.specs import document

SPEC = """memtopo: 1
name: test
machines: {}
ranges: {{kv: {{size: 2MiB}}}}
chunks: {{hot: {{location: gpu0, size: 2MiB}}}}
map: {{kv: [hot]}}
access: {{kv: {{gpu0: rw}}}}
"""


def of(machines: str) -> Document:
    return read_text(SPEC.format(machines).encode(), "specs/test.yaml")


def target(name: str) -> Target:
    return recorded(name, load(name))


def codes(machines: str, on: Target) -> list[str]:
    return [each.code for each in Composition.of(of(machines), on).diagnostics]


@pytest.mark.parametrize(
    ("machines", "name", "warned"),
    [
        ("h200x2", "h200x2", False),
        ("h200x2", "h200x4", False),  # it has two of its GPUs
        ("h200x4", "h200x2", True),
        ("h200x2", "h100x1", True),
        ("[h100x1, h200x4]", "h100x1", False),
        ("[h100x1, h200x4]", "h200x2", True),
        ("", "h100x1", False),
        ("./nowhere.json", "h100x1", False),  # a spec is applied where the record is not
        ("[./nowhere.json, h200x2]", "h100x1", False),
    ],
)
def test_a_machine_without_the_gpus_of_any_that_a_spec_names_is_a_warning(
    machines: str, name: str, warned: bool
) -> None:
    assert codes(machines, target(name)) == ["MT507"] * warned


def test_the_warning_names_the_gpus_at_the_line_of_the_machines() -> None:
    found = Composition.of(of("h200x2"), target("h100x1"))
    assert found.valid
    (warning,) = found.warnings
    assert warning == (
        "specs/test.yaml:3:11: warning[MT507]: the spec is for h200x2, and h100x1 has other GPUs: "
        "1 × NVIDIA H100 80GB HBM3"
    )


def test_every_node_needs_the_gpus_that_a_spec_names() -> None:
    text = "memtopo: 1\nname: test\nmachines: h200x2\nprocesses: {one: {node: a}, two: {node: b}}\n"
    document, found = read_text(text.encode(), "test.yaml"), {}
    for name in ("h200x2", "h100x1"):
        nodes = of_nodes({"a": target("h200x2"), "b": target(name)})
        found[name] = [each.code for each in Composition.of(document, nodes).diagnostics]
    assert found == {"h200x2": [], "h100x1": ["MT507"]}
    (warning,) = Composition.of(document, nodes).diagnostics
    assert warning.message.endswith("has other GPUs: 1 × NVIDIA H100 80GB HBM3")


def test_the_warning_is_beside_those_of_the_text() -> None:
    twice = read_text(f"{SPEC.format('h200x2')}name: twice\n".encode(), "test.yaml")
    assert {each.code for each in Composition.of(twice, target("h100x1")).diagnostics} == {"MT009", "MT507"}


def test_a_comment_ignores_the_warning() -> None:
    assert codes("h200x2 # memtopo: ignore[MT507] smaller in the laboratory", target("h100x1")) == []


def test_files_of_machines_are_in_the_folder_of_the_spec(tmp_path: Path) -> None:
    """From the folder above too; without a slash, a name with the suffix of a record."""
    for folder in ("specs", "machines"):
        (tmp_path / folder).mkdir()
    for file in ("specs/ours.json", "machines/theirs"):
        (tmp_path / file).write_text(dump(load("h200x2")))
    path = tmp_path / "specs" / "test.yaml"
    path.write_text(SPEC.format("[ours.json, ../machines/theirs, h100x1, ours.json]"))
    found, wrong = own_targets(read_file(path))
    assert ([*found], wrong) == ([str(tmp_path / "specs/ours.json"), str(tmp_path / "machines/theirs"), "h100x1"], [])
    assert [len(each.machine.devices) for each in found.values()] == [2, 2, 1]


def test_a_file_needs_no_suffix_if_it_is_written_as_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("h100x1").write_text(dump(load("h200x2")))
    found, wrong = own_targets(read_text(SPEC.format("[./h100x1, h100x1]").encode(), "test.yaml"))
    assert ({name: len(each.machine.devices) for name, each in found.items()}, wrong) == (
        {"./h100x1": 2, "h100x1": 1},
        [],
    )


def test_a_file_that_is_no_record_is_an_error_at_its_item(tmp_path: Path) -> None:
    path = tmp_path / "test.yaml"
    path.write_text(SPEC.format(f"[h200x2, ./test.yaml, ./nowhere.json, ./{'n' * 300}.json]"))
    document = read_file(path)
    found, wrong = own_targets(document)
    assert [*found] == ["h200x2"]
    assert [(each.code, each.path) for each in wrong] == [("MT205", ("machines", index)) for index in (1, 2, 3)]
    hints = [each.help or "" for each in wrong]
    assert hints[0].startswith("'memtopo probe -o FILE' records a machine")
    assert hints[1].startswith("the machines that are part of memtopo are")
    assert document.line(3)[20:31] == "/test.yaml,"
    assert document.span(("machines", 1)) == (3, 20, 3, 31)


def test_the_name_of_a_recorded_machine_is_none_of_a_file_beside_the_spec(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever has the name: a file, as above, a folder or a pipe."""
    monkeypatch.chdir(tmp_path)
    os.mkfifo("h100x1")
    Path("h200x2").mkdir()
    found, wrong = own_targets(read_text(SPEC.format("[h100x1, h200x2]").encode(), "test.yaml"))
    assert ({name: len(each.machine.devices) for name, each in found.items()}, wrong) == (
        {"h100x1": 1, "h200x2": 2},
        [],
    )


@pytest.mark.parametrize("machines", ["nothing", "local", "none", "[[h200x2], {a: b}]", "", "[]"])
def test_what_is_no_name_of_a_machine_is_no_target(machines: str) -> None:
    assert own_targets(of(machines)) == ({}, [])


def test_machines_are_no_part_of_the_digest() -> None:
    assert spec_digest(of("h200x2")) == spec_digest(of("[h100x1, h200x4]"))
    other = read_text(SPEC.format("h200x2").replace("rw", "r").encode(), "test.yaml")
    assert spec_digest(other) != spec_digest(of("h200x2"))


def test_all_sections_but_the_machines_are_part_of_the_digest() -> None:
    before = spec_digest(Document.from_object({"memtopo": 1, "name": "test"}))
    changed = {
        key
        for key in ("memtopo", "name", MACHINES, "processes", *SECTIONS)
        if spec_digest(Document.from_object({"memtopo": 1, "name": "test", key: "other"})) != before
    }
    assert changed == {"memtopo", "name", "processes", *SECTIONS}


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
