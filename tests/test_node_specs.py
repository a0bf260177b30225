"""Specs of several nodes that come with memtopo."""

from __future__ import annotations

import pytest

from memtopo import machine, planner
from memtopo.language import read_file
from memtopo.machine import Cluster
from memtopo.output.diagram.build import build_diagram
from memtopo.rules import validate
from tests.helpers.machines import with_fabric
from tests.helpers.specs import ROOT

SPECS = sorted((ROOT / "specs" / "nodes").glob("*.yaml"))


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_a_spec_of_nodes_is_planned_and_drawn_on_machines_of_one_clique(path: object) -> None:
    machines = Cluster({"a": with_fabric(4), "b": with_fabric(4)})
    found = validate(read_file(str(path)), machines)
    assert {each.code for each in found.diagnostics} <= {"MT505"}  # for shipped machines, a comment ignores MT404
    assert found.geometry
    assert set(found.geometry.nodes) == {"a", "b"}
    plan = planner.plan(found.geometry, machines)
    assert {name.partition("/")[0] for name in plan.memory} == {"a", "b"}
    assert {each.node for each in build_diagram(found.geometry, machines).processes} == {"a", "b"}


def test_what_stays_on_each_node_is_valid_on_a_shipped_machine() -> None:
    found = validate(read_file(str(ROOT / "specs" / "nodes" / "tensor-parallel.yaml")), machine.load("h200x4"))
    assert found.diagnostics == ()


def test_fabric_between_nodes_works_on_no_shipped_machine() -> None:
    """A comment ignores it in validation, and nothing is planned."""
    found = validate(read_file(str(ROOT / "specs" / "nodes" / "symmetric-heap.yaml")), machine.load("h200x4"))
    assert {each.code for each in found.ignored} == {"MT404"}
    assert found.geometry is None
