"""Specs with nodes on the command line: a machine for each, and what names its node."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from memtopo.machine import dump
from tests.cli.conftest import InlineRunner
from tests.helpers.machines import with_fabric

SPEC = """
memtopo: 1
name: heap
processes:
  pe:
    count: 4
    nodes: [a, b]
    devices: {mine: gpus}
    ranges: {heap: {size: 16MiB}}
    chunks: {part: {location: mine, size: 4MiB, handles: fabric}}
    exports: {part: {chunk: part, via: fabric}}
    imports: {every: {from: pe.part}}
    map: {heap: [every]}
    access: {heap: {mine: rw}}
"""


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a spec of two nodes in the present folder, beside the record of a machine with fabric."""
    monkeypatch.chdir(tmp_path)
    Path("two.json").write_text(dump(with_fabric(2)))
    Path("heap.yaml").write_text(SPEC)
    return "heap.yaml"


def test_one_machine_is_that_of_every_node(run_inline: InlineRunner, spec: str) -> None:
    assert run_inline("validate", spec, "-m", "./two.json").out == "heap.yaml: ok on ./two.json\n"


def test_each_node_has_a_machine_of_its_own(run_inline: InlineRunner, spec: str) -> None:
    found = run_inline("validate", spec, "-m", "a=./two.json", "-m", "b=./two.json")
    assert found.out == "heap.yaml: ok on a=./two.json b=./two.json\n"


def test_machines_of_nodes_stand_in_the_variable(run_inline: InlineRunner, spec: str) -> None:
    found = run_inline("validate", spec, MEMTOPO_MACHINE="a=./two.json b=./two.json")
    assert found.out == "heap.yaml: ok on a=./two.json b=./two.json\n"


def test_validation_names_plain_machines_beside_those_of_nodes(run_inline: InlineRunner, spec: str) -> None:
    found = run_inline("validate", spec, "-m", "./two.json", "-m", "a=./two.json", "-m", "b=./two.json", "--json")
    assert [each["machine"] for each in json.loads(found.out)["results"]] == ["./two.json", "a=./two.json b=./two.json"]


@pytest.mark.parametrize(
    ("machines", "message"),
    [
        (["a=./two.json", "./two.json"], "machine './two.json' has no node, but others have one"),
        (["a=./two.json", "a=./two.json"], "node 'a' has two machines"),
    ],
)
def test_machines_that_contradict_each_other_are_refused(
    run_inline: InlineRunner, spec: str, machines: list[str], message: str
) -> None:
    found = run_inline("plan", spec, *(word for each in machines for word in ("-m", each)))
    assert found.status == 2
    assert message in found.err


def test_a_plan_names_the_node_of_each_process(run_inline: InlineRunner, spec: str) -> None:
    plan = json.loads(run_inline("plan", spec, "-m", "./two.json", "--json").out)["plan"]
    assert [(each["first"], each["node"]) for each in plan["processes"]] == [
        ("pe.0", "a"),
        ("pe.1", "a"),
        ("pe.2", "b"),
        ("pe.3", "b"),
    ]
    assert list(plan["memory"]) == ["a/gpu0", "a/gpu1", "b/gpu0", "b/gpu1"]


def test_a_saved_plan_has_the_machine_of_each_node_without_its_identity(run_inline: InlineRunner, spec: str) -> None:
    run_inline("plan", spec, "-m", "a=./two.json", "-m", "b=./two.json", "-o", "plan.json")
    saved = json.loads(Path("plan.json").read_text())
    assert list(saved["nodes"]) == ["a", "b"]
    clusters = {device["fabric"]["cluster"] for machine in saved["nodes"].values() for device in machine["devices"]}
    assert clusters == {"cluster 0"}
    assert run_inline("validate", "plan.json", "-m", "./two.json").status == 0


@pytest.mark.parametrize("form", ["text", "json", "svg", "html", "dot", "mermaid"])
def test_every_drawing_names_the_node_of_processes_and_devices(run_inline: InlineRunner, spec: str, form: str) -> None:
    drawn = run_inline("draw", spec, "-m", "./two.json", "--format", form).out
    assert "b/gpu0" in drawn
    assert '"node": "b"' in drawn if form == "json" else "pe.2 … 3 on b" in drawn
    every = run_inline("draw", spec, "-m", "./two.json", "--format", form, "--all").out
    assert every == drawn if form == "json" else "pe.2 on b" in every


@pytest.mark.parametrize("more", [(), ("--machine", "./two.json"), ("--hold",), ("--machine", "a=./two.json")])
def test_apply_without_a_cluster_says_how_to_start_the_spec(
    run_inline: InlineRunner, spec: str, more: tuple[str, ...]
) -> None:
    found = run_inline("apply", spec, *more)
    assert (found.status, found.out) == (2, "")
    assert "the processes of 'heap.yaml' are on nodes: a, b" in found.err
    assert "memtopo apply heap.yaml --on ray" in found.err


@pytest.mark.parametrize(
    "words",
    [
        ("--trace", "calls"), ("--with", "a=/b"), ("--metrics", "m", "--hold"), ("--log", "l", "--hold"),
        ("--reload", "--hold"), ("--detach", "--hold"), ("--ready-fd", "9", "--hold"),
    ],
)  # fmt: skip
def test_an_option_of_one_host_is_refused_for_several_nodes(
    run_inline: InlineRunner, spec: str, words: tuple[str, ...]
) -> None:
    found = run_inline("apply", spec, "--on", "ray", *words)
    assert (found.status, found.out) == (2, "")
    assert f"{words[0]} is for layouts of one host" in found.err


def test_a_difference_has_the_memory_of_each_node(run_inline: InlineRunner, spec: str) -> None:
    Path("larger.yaml").write_text(SPEC.replace("4MiB", "8MiB").replace("16MiB", "32MiB"))
    found = run_inline("diff", spec, "larger.yaml", "-m", "./two.json", "--json").document
    assert {name: (each["before"], each["after"]) for name, each in found["memory"].items()} == {
        f"{node}/gpu{n}": (4 << 20, 8 << 20) for node in "ab" for n in range(2)
    }


def test_a_process_on_another_node_is_no_change_of_a_layout(run_inline: InlineRunner, spec: str) -> None:
    Path("moved.yaml").write_text(SPEC.replace("[a, b]", "[b, a]"))
    found = run_inline("diff", spec, "moved.yaml", "-m", "./two.json")
    assert found.status == 1
    assert "error[MT807]: process 'pe.0' of the layout is on node a, and on node b here" in found.err


def test_a_picture_has_the_memory_of_each_gpu_of_each_node_once(run_inline: InlineRunner, spec: str) -> None:
    picture = run_inline("draw", spec, "-m", "./two.json", "--json").document["picture"]
    assert [(each["device"], each["used"]) for each in picture["memory"]] == [
        (f"{node}/gpu{n}", 4 << 20) for node in "ab" for n in range(2)
    ]
    shown = {place for each in picture["processes"][3]["picture"]["ranges"][0]["pieces"] for place in each["locations"]}
    assert shown == {"a/gpu0", "a/gpu1", "b/gpu0", "b/gpu1"}
