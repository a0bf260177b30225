"""Chunks: handle types and properties that a machine supports, by trial or as advertised, and named parts."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import memtopo
from memtopo.api.imports import importing_spec
from memtopo.common.errors import BadPacket
from memtopo.common.units import KiB, MiB, NamedPart
from memtopo.driver.types import HandleType, Location, LocationKind, Properties, gpu
from memtopo.drivers.sim import SimDriver
from memtopo.geometry.groups import ChunkGroup
from memtopo.language.limits import LARGEST_PARTS
from memtopo.machine import Machine, Trial, queries
from memtopo.output.diagram.build import build_diagram
from memtopo.sharing.offers import Offer
from memtopo.sharing.wire import read
from tests.contract.memory import created, refused
from tests.helpers.machines import invented
from tests.helpers.specs import clean_geometry, codes, diagnose, run, run_request

FAILED = Trial(advertised=True, works=False, error="CUDA_ERROR_NOT_SUPPORTED")


HOST_VMM = {"HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED": 0}

NODE_VMM = {"HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED": 0}


def errors(chunk: str, machine: Machine) -> list[str]:
    """The codes of the errors of one chunk."""
    found = diagnose(f"chunks: {{c: {{size: 2MiB, {chunk}}}}}", machine)
    return [diagnostic.code for diagnostic in found if diagnostic.severity == "error"]


@pytest.mark.parametrize(
    ("chunk", "machine", "properties"),
    [
        ("location: gpu0", invented(1, trials={"vmm": FAILED}), Properties(gpu(0))),
        ("location: gpu0", invented(1, attributes={"VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED": 0}), Properties(gpu(0))),
        ("location: host", invented(1, attributes=HOST_VMM), Properties(Location(LocationKind.HOST))),
        ("location: host:0", invented(1, attributes=NODE_VMM), Properties(Location(LocationKind.HOST_NUMA, 0))),
    ],
)
def test_devices_without_vmm_are_refused_by_rule_and_simulator(
    chunk: str, machine: Machine, properties: Properties
) -> None:
    assert errors(chunk, machine) == ["MT405"]
    with SimDriver(machine) as sim:
        sim.init()
        with refused("CUDA_ERROR_NOT_SUPPORTED"):
            sim.mem_create(2 * MiB, properties)


def test_a_failed_trial_of_both_handle_types_refuses_their_combination_only() -> None:
    works = Trial(advertised=True, works=True)
    machine = invented(1, trials={"fabric": works, "fd+fabric": FAILED})
    assert errors("location: gpu0, handles: [fd, fabric]", machine) == ["MT404"]
    assert errors("location: gpu0, handles: fabric", machine) == []
    with SimDriver(machine) as sim:
        sim.init()
        with refused("CUDA_ERROR_NOT_SUPPORTED"):
            sim.mem_create(2 * MiB, Properties(gpu(0), HandleType.FD | HandleType.FABRIC))


def test_host_memory_has_the_handle_types_of_its_node() -> None:
    """Facts 6, 61."""
    works = invented(1, nodes=2)
    assert errors("location: host:1, handles: fd", works) == []
    refused_there = {"host:1": works.host["host:1"].model_copy(update={"trials": {"fd": FAILED}})}
    machine = queries.changed(works, host=works.host | refused_there)
    assert errors("location: host:1, handles: fd", machine) == ["MT404"]
    assert errors("location: [host:0, host:1], handles: fd, count: 2", machine) == ["MT404"]
    assert errors("location: host:0, handles: fd", machine) == []
    for each in (works, machine):
        assert errors("location: host, handles: fd", each) == ["MT404"]


def test_host_memory_is_reported_on_node_0_even_if_not_recorded() -> None:
    """Fact 6."""
    machine = invented(1)
    bare = machine.model_copy(update={"host": {"host": machine.host["host"]}})
    with SimDriver(bare) as sim:
        sim.init()
        with created(sim, 2 * MiB, Properties(Location(LocationKind.HOST))) as handle:
            observed = sim.mem_get_allocation_properties_from_handle(handle)
            assert observed.location == Location(LocationKind.HOST_NUMA, 0)
        with refused("CUDA_ERROR_INVALID_VALUE"):
            sim.mem_create(2 * MiB, Properties(Location(LocationKind.HOST_NUMA, 0)))
    text = (
        "ranges: {kv: {size: 2MiB}}\nchunks: {c: {location: host, size: 2MiB}}\nmap: {kv: c}\naccess: {kv: {gpu0: rw}}"
    )
    assert run(run_request(text, bare), bare).report.exit_code == 0


ONE = (
    "ranges: {r: {size: 8MiB}}\nchunks: {c: {location: gpu0, size: SIZE, count: 2, parts: PARTS, handles: fd}}\n"
    "map: {r: c}\naccess: {r: {gpu0: rw}}\nexports: {c: {chunk: c, via: fd}}\n"
)
PARTS = "{signal: 4KiB, counters: 60KiB, data: rest}"
OFFSETS = (
    NamedPart("signal", 0, 4 * KiB),
    NamedPart("counters", 4 * KiB, 60 * KiB),
    NamedPart("data", 64 * KiB, 4 * MiB - 64 * KiB),
)


def one(parts: str, size: str = "4MiB") -> str:
    return ONE.replace("PARTS", parts).replace("SIZE", size)


@pytest.mark.parametrize(
    ("parts", "size", "expected"),
    [
        (PARTS, "4MiB", OFFSETS),
        ("{a: rest}", "4MiB", (NamedPart("a", 0, 4 * MiB),)),
        ("{a: 1B}", "4MiB", (NamedPart("a", 0, 1),)),
        ("{a: rest, b: 1 granule}", "4MiB", (NamedPart("a", 0, 2 * MiB), NamedPart("b", 2 * MiB, 2 * MiB))),
        ("{a: 1MiB, b: rest}", "3MiB, round: up", (NamedPart("a", 0, MiB), NamedPart("b", MiB, 3 * MiB))),
    ],
)
def test_parts_follow_one_another_and_one_takes_the_rest(
    parts: str, size: str, expected: tuple[NamedPart, ...]
) -> None:
    assert clean_geometry(one(parts, size)).of(ChunkGroup)["c"].parts == expected


def test_an_import_has_the_parts_of_its_export() -> None:
    text = f"processes:\n server: {{{', '.join(one(PARTS).splitlines())}}}\n"
    reader = " reader: {imports: {x: {from: server.cMORE}}, ranges: {v: {size: 8MiB}}, map: {v: x}, "
    text += reader + "access: {v: {gpu0: r}}}\n"
    assert clean_geometry(text.replace("MORE", "")).processes["reader"].of(ChunkGroup)["x"].parts == OFFSETS
    assert codes(text.replace("MORE", f", parts: {PARTS}")) == ["MT604"]


def test_a_drawing_has_the_parts_of_each_chunk() -> None:
    geometry = clean_geometry(one(PARTS))
    (shown,) = build_diagram(geometry, invented(2)).ranges
    assert [span.parts for span in shown.pieces] == [OFFSETS] * len(shown.pieces)


def test_views_of_parts_are_at_their_offsets(tmp_path: Path) -> None:
    spec = tmp_path / "parts.yaml"
    spec.write_text(f"memtopo: 1\nname: parts\n{one(PARTS)}")
    with memtopo.applied(spec, machine="h100x1") as layout:
        whole, data = layout.chunk("c.1"), layout.chunk("c.1.data", dtype="uint32")
        assert (data.address - whole.address, data.shape) == (64 * KiB, ((4 * MiB - 64 * KiB) // 4,))
        np.from_dlpack(layout.chunk("c.1", dtype="uint32"))[:] = 0
        np.from_dlpack(layout.chunk("c.1.counters", dtype="uint32", offset=8, size=8))[:] = 7
        written = np.flatnonzero(np.from_dlpack(layout.chunk("c.1", dtype="uint32")))
        assert written.tolist() == [1024 + 2, 1024 + 3]
        for label in ("c.1.other", "c.signal", "c.2.data", "c.1.data.signal", "signal", ".signal"):
            with pytest.raises(memtopo.Unsuitable, match=re.escape(label)):
                layout.chunk(label)
        with pytest.raises(memtopo.Unsuitable):
            layout.chunk("c.1.signal", size=8 * KiB)
        del whole, data


def test_an_attached_layout_knows_the_parts_of_an_offer() -> None:
    offer = Offer("c", "chunk", "fd", 2, 4 * MiB, "gpu0", "00" * 16, parts=OFFSETS)
    spec = importing_spec("held", {"c": offer}, ["00" * 16], None, {"c": "rw"}, {})
    assert list(spec["imports"]["c"]["parts"].values()) == ["4KiB", "60KiB", "4032KiB"]


OFFER = {"name": "c", "kind": "chunk", "via": "fd", "count": 1, "size": 4096, "location": "gpu0", "properties": []}


def test_parts_of_an_offer_are_within_its_size() -> None:
    part = {"name": "signal", "offset": 4000, "size": 96}
    assert read(Offer, {**OFFER, "parts": [part]}, "an offer").parts == (NamedPart("signal", 4000, 96),)
    assert read(Offer, OFFER, "an offer").parts == ()
    for wrong in ({**part, "size": 97}, {**part, "offset": 4096}, {**part, "size": 0}, {"name": "signal"}, 7):
        with pytest.raises(BadPacket):
            read(Offer, {**OFFER, "parts": [wrong]}, "an offer")
    with pytest.raises(BadPacket):
        read(Offer, {**OFFER, "parts": [part] * (LARGEST_PARTS + 1)}, "an offer")
