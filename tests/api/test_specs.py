"""Specs as programs have them: paths, mappings and what was loaded before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import memtopo
from memtopo.language import read_file
from memtopo.machine.target import Target
from tests.helpers.specs import ROOT

QUICK = ROOT / "specs" / "quickstart.yaml"
SMALL: dict[str, Any] = {
    "memtopo": 1,
    "name": "small",
    "ranges": {"kv": {"size": "4MiB"}},
    "chunks": {"page": {"location": "gpu0", "size": "2MiB", "count": 2}},
    "map": {"kv": ["page"]},
    "access": {"kv": {"gpu0": "rw"}},
}


@pytest.mark.parametrize("given", [QUICK, str(QUICK), read_file(QUICK), memtopo.load(QUICK)])
def test_a_spec_may_be_given_in_several_ways(given: Any, machine: Target) -> None:
    """A path, its text, a document and what load gave are the same spec"""
    assert memtopo.load(given).name == "quickstart"
    assert memtopo.plan(given, machine) == memtopo.plan(QUICK, machine)


def test_a_mapping_is_a_spec(machine: Target) -> None:
    """A mapping of Python's is planned like a file, with its names in the steps"""
    assert memtopo.load(SMALL).spec.chunks["page"].count == 2
    calls = [step.call for step in memtopo.plan(SMALL, machine).steps]
    assert calls.count("cuMemCreate") == 2


def test_a_spec_of_another_type_is_an_error() -> None:
    """Something that is no spec at all is a TypeError that says what one is"""
    with pytest.raises(TypeError, match="not a int"):
        memtopo.load(7)  # type: ignore[arg-type]


def test_every_fault_is_in_the_message(tmp_path: Path, machine: Target) -> None:
    """An invalid file raises once, and its message has each diagnostic with line and column"""
    file = tmp_path / "bad.yaml"
    file.write_text("memtopo: 1\nname: bad\nranges: {kv: {size: 3MiB}}\nchunks: {c: {location: gpu9, size: 2MB}}\n")
    with pytest.raises(memtopo.InvalidSpec) as raised:
        memtopo.plan(file, machine)
    text = str(raised.value)
    codes = [fault.code for fault in raised.value.diagnostics]
    assert len(codes) > 1
    assert all(f"[{code}]" in text for code in codes)
    assert f"{file}:3:" in text
    assert f"{file}:4:" in text


def test_a_fault_of_a_mapping_is_told_with_its_path(machine: Target) -> None:
    """A mapping has no lines: its faults are told with the keys that lead to them"""
    with pytest.raises(memtopo.InvalidSpec, match=r"ranges\.kv\.size"):
        memtopo.plan({**SMALL, "ranges": {"kv": {"size": "4MB"}}}, machine)


def test_load_needs_no_machine(tmp_path: Path) -> None:
    """What only a machine can judge is no fault for load; what is misspelled is"""
    assert memtopo.load({**SMALL, "access": {"kv": {"gpu7": "rw"}}}).name == "small"
    with pytest.raises(memtopo.InvalidSpec, match="did you mean 'size'"):
        memtopo.load({**SMALL, "ranges": {"kv": {"sise": "4MiB"}}})
    with pytest.raises(memtopo.InvalidSpec, match="cannot be read"):
        memtopo.load(tmp_path / "none.yaml")


def test_a_spec_of_several_processes_is_planned(machine: Target) -> None:
    """A layout of several processes is loaded and planned, with a plan for each, and refused where one builds it"""
    spec = memtopo.load(ROOT / "specs" / "legacy-ipc.yaml")
    assert memtopo.plan(spec, machine).processes
    with pytest.raises(memtopo.Unsuitable, match="memtopo apply"), memtopo.applied(spec, machine):
        pass
