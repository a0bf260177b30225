"""Specs given as paths, texts, mappings and loaded specs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import memtopo
from memtopo.common.errors import Unavailable
from memtopo.drivers.target import Target
from memtopo.language import read_file
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
    with pytest.raises(memtopo.Unsuitable, match=r"memtopo\.hold starts"), memtopo.applied(spec, machine):
        pass


def test_notes_about_a_mapping_have_the_paths_of_its_entries(machine: Target) -> None:
    large = {"large": {"location": "gpu0", "size": "1TiB"}, "page": {"location": "gpu0", "size": "64GiB"}}
    with pytest.raises(memtopo.InvalidSpec, match=r"chunks\.page\.size: 64 GiB of it here"):
        memtopo.plan(SMALL | {"chunks": large, "ranges": {"kv": {"size": "64GiB"}}}, machine)


PAGES: dict[str, Any] = {
    **SMALL,
    "params": {"pages": 2, "page": "2MiB"},
    "ranges": {"kv": {"size": "$pages * $page"}},
    "chunks": {"page": {"location": "gpu0", "size": "$page", "count": "$pages"}},
}


def test_parameters_of_a_spec_are_given_as_text_or_numbers(machine: Target) -> None:
    """The digest is that of the values in effect."""
    loaded = memtopo.load(PAGES, params={"pages": 4, "page": "$pages * 1MiB"})
    assert loaded.params == {"pages": "4", "page": "4MiB"}
    assert loaded.spec.section("chunks")["page"].count == 4
    assert memtopo.load(loaded, params={"pages": 8}).params == {"pages": "8", "page": "8MiB"}
    assert memtopo.load(PAGES, params={"pages": 2}).digest == memtopo.load(PAGES).digest != loaded.digest
    assert memtopo.plan(PAGES, machine, params={"pages": 3}).memory == {"gpu0": 6 << 20}


def test_a_layout_is_applied_and_changed_with_values_of_parameters(machine: Target) -> None:
    with memtopo.applied(PAGES, machine, params={"pages": 4}) as layout:
        assert (layout.plan.params, layout.plan.reserved) == ({"pages": "4", "page": "2MiB"}, 8 << 20)
        assert layout.change(PAGES, params={"pages": 3}).different == 0
        assert (layout.plan.params["pages"], layout.plan.reserved) == ("3", 6 << 20)


def test_a_parameter_that_is_not_declared_or_has_no_text_is_refused(machine: Target) -> None:
    with pytest.raises(memtopo.InvalidSpec, match=r"error\[MT901\]: params: 'pgaes' is set(?s:.*)did you mean pages"):
        memtopo.load(PAGES, params={"pgaes": 4})
    with pytest.raises(memtopo.UsageError, match="is not text or a whole number"):
        memtopo.plan(PAGES, machine, params={"pages": 1.5})  # type: ignore[dict-item]
    with pytest.raises(memtopo.InvalidSpec, match=r"note: \$pages is 0 as set"):
        memtopo.load(PAGES, params={"pages": 0})


def test_each_node_of_a_spec_has_a_machine_of_a_mapping() -> None:
    spec = ROOT / "specs" / "nodes" / "tensor-parallel.yaml"
    found = memtopo.plan(spec, {"a": "h200x4", "b": "h200x2"})
    assert {name: labels[0] for name, labels in found.nodes.items()} == {"a": "rank.0", "b": "rank.4"}
    assert list(found.memory) == ["a/gpu0", "a/gpu1", "a/gpu2", "a/gpu3", "b/gpu0", "b/gpu1"]
    assert memtopo.plan(spec, "h200x4").nodes == found.nodes


def test_a_mapping_of_machines_without_a_node_of_the_spec_is_refused() -> None:
    spec = ROOT / "specs" / "nodes" / "tensor-parallel.yaml"
    with pytest.raises(memtopo.InvalidSpec, match="no machine is named for node 'b'"):
        memtopo.plan(spec, {"a": "h200x4"})
    with pytest.raises(memtopo.UsageError, match="is not a machine"):
        memtopo.plan(spec, {})


def test_the_hint_of_an_unusable_machine_is_in_the_traceback_without_its_causes() -> None:
    with pytest.raises(Unavailable) as error:
        memtopo.plan(QUICK, "h200x3")
    assert f"(hint: {error.value.hint})" in str(error.value)
    assert error.value.__cause__ is None


def test_machines_of_a_spec_choose_none(tmp_path: Path) -> None:
    """An unknown one is an error of the spec, and another one than those a warning."""
    with pytest.raises(memtopo.InvalidSpec, match=r"MT205.*h200x3"):
        memtopo.load({**SMALL, "machines": ["h200x2", "h200x3"]})
    with memtopo.applied({**SMALL, "machines": "h200x2"}, "h100x1") as live:
        (warning,) = live.plan.warnings
    assert "warning[MT507]: the spec is for h200x2, and h100x1 has other GPUs" in warning
    with memtopo.applied({**SMALL, "machines": "h200x2"}, "h200x4") as live:
        assert live.plan.warnings == ()
