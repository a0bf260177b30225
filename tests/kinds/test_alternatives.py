"""Alternatives of a spec (`fabric else fd`), which the trials of a machine decide."""

from __future__ import annotations

import json

import pytest

from memtopo import planner
from memtopo.driver.types import HandleType, Properties, gpu
from memtopo.geometry.groups import ChunkGroup
from memtopo.geometry.model import Geometry
from memtopo.kinds.chunks.support import Support, needed_trials, weakest
from memtopo.kinds.exportable import ExportGroup
from memtopo.language import read_text
from memtopo.machine import Machine, Trial, load
from memtopo.machine.queries import changed
from memtopo.output.blocks import Drawing
from memtopo.output.diagram import FORMATS
from memtopo.output.diagram.build import build_diagram
from memtopo.output.json import dumps
from memtopo.spec import read
from tests.helpers.machines import invented
from tests.helpers.specs import document, geometry_of

WORKS = Trial(advertised=True, works=True)
FABRIC = {"fabric": WORKS, "fd+fabric": WORKS}
UNTRIED = {"fabric": Trial(advertised=True), "fd+fabric": Trial(advertised=True)}
SHIPPED = ("h100x1", "h200x2", "h200x4")


def chunk(fields: str, location: str = "gpus") -> str:
    exports = "exports: {w: {chunk: c, via: fabric else fd}}" if "fabric else fd" in fields else ""
    return f"chunks: {{c: {{location: {location}, size: 2MiB, {fields}}}}}\n{exports}"


def properties(text: str, machine: Machine) -> Properties:
    return geometry_of(text, machine).of(ChunkGroup)["c"].properties[0]


def lines(geometry: Geometry) -> list[str]:
    return [each.text for each in geometry.choices]


def with_trial(machine: Machine, ordinal: int, trials: dict[str, Trial]) -> Machine:
    """The machine with other trials of one GPU."""
    devices = list(machine.devices)
    memory = devices[ordinal].memory
    devices[ordinal] = devices[ordinal].model_copy(
        update={"memory": memory.model_copy(update={"trials": memory.trials | trials})}
    )
    return changed(machine, devices=devices)


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_machines_take_descriptors_since_their_trial_of_fabric_failed(name: str) -> None:
    geometry = geometry_of(chunk("handles: fabric else fd, rdma: true else false"), load(name))
    assert geometry.of(ChunkGroup)["c"].properties[0] == Properties(gpu(0), HandleType.FD, rdma=True)
    assert geometry.of(ExportGroup)["w"].via == "fd"
    handles, rdma, via = geometry.choices
    assert (handles.taken, rdma.taken, via.taken) == ("fd", "true", "fd")
    assert [each.alternative for each in handles.refused] == ["fabric"]
    assert "CUDA_ERROR_NOT_PERMITTED in cuMemCreate on gpu0" in handles.refused[0].reason
    assert handles.path == ("chunks", "c", "handles")


def test_the_first_alternative_that_works_is_taken() -> None:
    geometry = geometry_of(chunk("handles: fabric else fd"), invented(2, trials=FABRIC))
    assert geometry.of(ChunkGroup)["c"].handles == HandleType.FABRIC
    assert geometry.of(ExportGroup)["w"].via == "fabric"
    assert lines(geometry) == [
        "chunk c: handles fabric (it worked in a trial on gpu0, gpu1)",
        "export w: via fabric (chunk c is created with it)",
    ]


def test_a_list_of_handles_has_each_item_decided_beside_the_others() -> None:
    both = chunk("handles: [fd, fabric else fd]")
    assert properties(both, invented(1, trials=FABRIC)).handles == HandleType.FD | HandleType.FABRIC
    assert properties(both, invented(1)).handles == HandleType.FD
    choice = geometry_of(both, invented(1)).choices[0]
    assert choice.path == ("chunks", "c", "handles", 1)
    alone = FABRIC | {"fd+fabric": Trial(advertised=True, works=False, error="CUDA_ERROR_NOT_PERMITTED")}
    assert properties(both, invented(1, trials=alone)).handles == HandleType.FD


def test_an_alternative_works_at_all_locations_or_is_not_taken() -> None:
    machine = with_trial(invented(2), 0, FABRIC)
    assert properties(chunk("handles: fabric else fd", "gpu0"), machine).handles == HandleType.FABRIC
    assert properties(chunk("handles: fabric else fd", "gpu1"), machine).handles == HandleType.FD
    assert properties(chunk("handles: fabric else fd", "[gpu0, gpu1]\n, count: 2"), machine).handles == HandleType.FD


def test_all_instances_of_a_process_take_the_same() -> None:
    """Instance 0 has a GPU with fabric handles, instance 1 has one without."""
    text = """processes:
  s:
    count: 2
    devices: {mine: gpus}
    chunks: {c: {location: mine, size: 2MiB, handles: fabric else fd}}
    exports: {w: {chunk: c, via: fabric else fd}}
  r:
    ranges: {kv: {size: 4MiB}}
    imports: {w: {from: s.w, via: fabric else fd}}
    map: {kv: [w]}
    access: {kv: {gpu0: r}}"""
    members = geometry_of(text, with_trial(invented(2), 0, FABRIC)).processes
    for label in ("s.0", "s.1"):
        assert members[label].of(ChunkGroup)["c"].handles == HandleType.FD
        assert members[label].of(ExportGroup)["w"].via == "fd"
    origin = members["r"].of(ChunkGroup)["w"].origin
    assert origin
    assert origin.via == "fd"
    assert lines(members["s.0"]) == lines(members["s.1"])


def test_memory_is_rdma_or_compressible_and_rdma_comes_first() -> None:
    both = chunk("handles: fd, rdma: true else false, compressible: true else false")
    refused = {"rdma": Trial(advertised=False)}
    assert properties(both, invented(1)) == Properties(gpu(0), HandleType.FD, rdma=True)
    assert properties(both, invented(1, trials=refused)) == Properties(gpu(0), HandleType.FD, compressible=True)
    fixed = chunk("handles: fd, rdma: true else false, compressible: true")
    assert properties(fixed, invented(1)) == Properties(gpu(0), HandleType.FD, compressible=True)
    host = chunk("handles: fd, rdma: true else false", "host:0")
    assert not properties(host, load("h200x2")).rdma


def test_what_was_not_tried_is_taken_only_as_the_last_alternative() -> None:
    machine = invented(1, trials=UNTRIED)
    geometry = geometry_of(chunk("handles: fabric else fd"), machine)
    assert geometry.of(ChunkGroup)["c"].handles == HandleType.FD
    assert geometry.choices[0].refused[0].reason == "it was not tried on gpu0"
    assert properties(chunk("handles: win32 else fabric"), machine).handles == HandleType.FABRIC
    neither = invented(1, trials=UNTRIED | {"fd": Trial(advertised=True)})
    assert properties(chunk("handles: fabric else fd"), neither).handles == HandleType.FD


def test_an_import_from_a_holder_takes_what_the_holder_takes() -> None:
    text = "imports: {w: {from: x/w, location: gpus, size: 2MiB, via: fabric else fd}}"
    for trials, via in (({}, "fd"), (FABRIC, "fabric")):
        origin = geometry_of(text, invented(2, trials=trials)).of(ChunkGroup)["w"].origin
        assert origin
        assert origin.via == via


def test_plans_drawings_and_json_name_what_was_taken() -> None:
    machine = load("h200x2")
    mapped = "ranges: {kv: {size: 4MiB}}\nmap: {kv: [c]}\naccess: {kv: {gpus: rw}}"
    geometry = geometry_of(f"{chunk('handles: fabric else fd')}\n{mapped}", machine)
    choices = lines(geometry)
    plan = planner.plan(geometry, machine)
    assert [note for note in plan.notes if note in choices] == choices
    shown = json.loads(dumps(plan.summary()))["choices"]
    assert [(each["taken"], each["alternatives"]) for each in shown] == [("fd", ["fabric", "fd"])] * 2
    assert shown[0]["refused"][0]["alternative"] == "fabric"
    picture = build_diagram(geometry, machine)
    assert list(picture.choices) == choices
    for form in FORMATS.values():
        assert "CUDA_ERROR_NOT_PERMITTED" in form(Drawing(picture, "test"))


def test_drawings_have_a_bounded_number_of_choices() -> None:
    machine = invented(1)
    many = "\n".join(f"  c{n}: {{location: gpu0, size: 2MiB, handles: fabric else fd}}" for n in range(20))
    picture = build_diagram(geometry_of(f"chunks:\n{many}", machine), machine)
    assert len(picture.choices) == 9
    assert picture.choices[-1] == "… and 12 more choices"


def test_trials_that_a_spec_needs_are_those_of_its_alternatives() -> None:
    text = chunk("handles: fabric else fd, rdma: true else false, compressible: true")
    found, _ = read(document(text).root)
    assert needed_trials(found) == {"fabric", "fd", "fd+fabric", "rdma"}
    plain, _ = read(read_text(b"memtopo: 1\nname: t\nchunks: {c: {location: gpu0, size: 2MiB, handles: fd}}", "t").root)
    assert needed_trials(plain) == frozenset()


def test_what_was_not_tried_at_one_location_is_not_known_to_work_at_all() -> None:
    works, untried, refused = (Support(works=each) for each in (True, None, False))
    assert weakest([works, untried, works]) == untried
    assert weakest([untried, refused, works]) == refused
    assert weakest([works, works]) == works
