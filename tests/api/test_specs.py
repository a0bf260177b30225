"""Specs given as paths, texts, mappings and loaded specs."""

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
def test_a_path_text_document_or_loaded_spec_is_the_same_spec(given: Any, machine: Target) -> None:
    assert memtopo.load(given).name == "quickstart"
    assert memtopo.plan(given, machine) == memtopo.plan(QUICK, machine)


def test_a_mapping_is_planned_like_a_file(machine: Target) -> None:
    assert memtopo.load(SMALL).spec.section("chunks")["page"].count == 2
    calls = [step.call for step in memtopo.plan(SMALL, machine).steps]
    assert calls.count("cuMemCreate") == 2


def test_a_spec_of_another_type_is_a_type_error() -> None:
    """The message lists the accepted types."""
    with pytest.raises(TypeError, match="not a int"):
        memtopo.load(7)  # type: ignore[arg-type]


def test_an_invalid_file_raises_once_with_every_diagnostic(tmp_path: Path, machine: Target) -> None:
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


def test_a_diagnostic_of_a_mapping_has_its_keys_as_position(machine: Target) -> None:
    with pytest.raises(memtopo.InvalidSpec, match=r"ranges\.kv\.size"):
        memtopo.plan({**SMALL, "ranges": {"kv": {"size": "4MB"}}}, machine)


def test_load_reports_only_what_needs_no_machine(tmp_path: Path) -> None:
    """A misspelled key is reported, a limit of a machine is not."""
    assert memtopo.load({**SMALL, "access": {"kv": {"gpu7": "rw"}}}).name == "small"
    with pytest.raises(memtopo.InvalidSpec, match="did you mean 'size'"):
        memtopo.load({**SMALL, "ranges": {"kv": {"sise": "4MiB"}}})
    with pytest.raises(memtopo.InvalidSpec, match="cannot be read"):
        memtopo.load(tmp_path / "none.yaml")


def test_a_multi_process_spec_is_planned_for_each_process(machine: Target) -> None:
    """Functions that build one layout refuse it."""
    spec = memtopo.load(ROOT / "specs" / "legacy-ipc.yaml")
    assert memtopo.plan(spec, machine).processes
    with pytest.raises(memtopo.Unsuitable, match="memtopo apply"), memtopo.applied(spec, machine):
        pass


def test_notes_about_a_mapping_have_the_paths_of_its_entries(machine: Target) -> None:
    large = {"large": {"location": "gpu0", "size": "1TiB"}, "page": {"location": "gpu0", "size": "64GiB"}}
    with pytest.raises(memtopo.InvalidSpec, match=r"chunks\.page\.size: 64 GiB of it here"):
        memtopo.plan(SMALL | {"chunks": large, "ranges": {"kv": {"size": "64GiB"}}}, machine)
