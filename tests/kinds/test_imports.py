"""Imports: sources, declared properties, and the groups that they become."""

from __future__ import annotations

import pytest

from memtopo.common.units import MiB
from memtopo.driver.types import gpu
from memtopo.geometry import Geometry
from memtopo.geometry.groups import ChunkGroup
from memtopo.kinds import lay_out
from memtopo.kinds.exportable import ExportGroup
from memtopo.kinds.ipc import BufferGroup, EventGroup
from memtopo.kinds.pinned import PinnedGroup
from memtopo.kinds.step import HandleReference
from memtopo.kinds.views import Identity, Member, all_mapped_memory, recorded_events
from memtopo.machine import Trial
from memtopo.spec import read
from tests.helpers.machines import invented
from tests.helpers.sharing_specs import SERVER, VIEW, member, reader
from tests.helpers.specs import clean_geometry, codes, document, geometry_of, validate_text


def test_an_import_has_the_properties_of_its_export_and_creates_no_memory() -> None:
    """Fact 7."""
    chunk = member(reader("{from: server.w}"), "reader").of(ChunkGroup)["x"]
    assert (chunk.size, chunk.count, chunk.counted, chunk.distinct_locations) == (2 * MiB, 4, True, (gpu(0),))
    assert not chunk.handles
    assert chunk.origin
    assert [chunk.origin.of(index) for index in range(4)] == [("server", index) for index in range(4)]
    buffer = member(reader("{from: server.b}", ""), "reader").of(BufferGroup)["x"]
    assert (buffer.size, buffer.declared, buffer.count) == (2 * MiB, 64 << 10, 3)
    assert [buffer.location_of(index) for index in range(3)] == [gpu(0), gpu(1), gpu(0)]
    event = member(reader("{from: server.e}", ""), "reader").of(EventGroup)["x"]
    assert (event.count, event.counted, event.locations) == (1, False, (gpu(1),))
    assert not any(group.shares() for group in (chunk, buffer, event))


@pytest.mark.parametrize(
    ("slice_", "labels", "handles"),
    [
        ("w", ["w.0", "w.1", "w.2", "w.3"], ["x.0", "x.1", "x.2", "x.3"]),
        ("w.1:3", ["w.1", "w.2"], ["x.0", "x.1"]),
        ("w.2", ["w.2"], ["x"]),
    ],
)
def test_an_exported_slice_is_numbered_from_0(slice_: str, labels: list[str], handles: list[str]) -> None:
    text = SERVER.replace("{chunk: w, via", f"{{chunk: {slice_}, via")
    whole = clean_geometry(f"{text} reader: {{imports: {{x: {{from: server.w}}}}, {VIEW}}}\n")
    export = whole.processes["server"].of(ExportGroup)["w"]
    assert [export.label(index) for index in range(export.count)] == labels
    run = whole.processes["reader"].of(ChunkGroup)["x"]
    assert [run.label(index) for index in range(run.count)] == handles
    mapped_labels = [each.identity.label for each in all_mapped_memory(whole)["reader"]]
    assert mapped_labels == labels


def test_locations_of_a_slice_continue_the_round_robin_distribution() -> None:
    text = SERVER.replace("w: {location: gpu0", "w: {location: [gpu0, gpu1, gpu0]").replace(
        "chunk: w,", "chunk: w.1:4,"
    )
    run = member(f"{text} reader: {{imports: {{x: {{from: server.w}}}}, {VIEW}}}\n", "reader").of(ChunkGroup)["x"]
    assert [run.properties_of(index).location for index in range(run.count)] == [gpu(1), gpu(0), gpu(0)]


def test_an_export_with_different_sizes_cannot_be_imported() -> None:
    small, large = invented(1), invented(1, granule=4 << 20)
    machine = small.model_copy(update={"devices": [*small.devices, *large.devices], "peers": invented(2).peers})
    text = (
        "processes:\n pe: {count: 2, devices: {m: [gpu0, gpu1]}, chunks: {c: {location: m, size: SIZE, handles: fd}}, "
    )
    text += "exports: {c: {chunk: c, via: fd}}}\n all: {imports: {c: {from: pe.c}}, ranges: {v: {size: 8MiB}}, "
    text += "map: {v: c}, access: {v: {gpu0: r}}}\n"
    (diagnostic,) = validate_text(text.replace("SIZE", "1 granule"), machine).diagnostics
    assert (diagnostic.code, diagnostic.path) == ("MT604", ("processes", "all", "imports", "c", "from"))
    assert "2MiB in pe.0 and 4MiB in pe.1" in diagnostic.message
    found = validate_text(text.replace("SIZE", "4MiB"), machine)
    assert found.geometry
    assert found.geometry.processes["all"].of(ChunkGroup)["c"].granule == 4 * MiB


def test_events_of_a_counted_process_keep_their_gpus() -> None:
    text = "processes:\n pe: {count: 3, devices: {mine: [gpu0, gpu1]}, events: {done: {device: mine}}, "
    text += "exports: {done: {event: done, via: ipc}}}\n all: {imports: {done: {from: pe.done}}}\n"
    run = member(text, "all").of(EventGroup)["done"]
    assert [run.location_of(index) for index in range(run.count)] == [gpu(0), gpu(1), gpu(0)]
    assert [run.label(index) for index in range(run.count)] == ["done.0", "done.1", "done.2"]


def test_buffers_from_outside_have_whole_blocks() -> None:
    found = clean_geometry("imports: {b: {from: l/b, via: ipc, location: gpu0, size: 5MiB, count: 2}}\n").of(
        BufferGroup
    )["b"]
    assert (found.size, found.declared, found.count) == (6 * MiB, 5 * MiB, 2)
    assert found.origin
    assert (found.origin.text("l"), found.origin.via) == ("l/b", "ipc")
    assert codes("imports: {b: {from: l/b, via: ipc, location: gpu0, size: 200TiB}}\n") == ["MT310"]


def test_a_process_can_import_its_own_chunks() -> None:
    """Fact 27."""
    text = (
        "processes:\n p: {chunks: {c: {location: gpu0, size: 2MiB, handles: fd}}, exports: {c: {chunk: c, via: fd}}, "
    )
    text += "imports: {again: {from: p.c}}, ranges: {v: {size: 4MiB}}, map: {v: [c, again]}, access: {v: {gpu0: r}}}\n"
    first, second = all_mapped_memory(clean_geometry(text))["p"]
    assert first.identity == second.identity


def test_support_is_checked_where_a_chunk_is_created_only() -> None:
    refused = {"compressible": Trial(advertised=True, works=False)}
    text = reader("{from: server.w}").replace("handles: fd}", "handles: fd, compressible: true}")
    assert [diagnostic.code for diagnostic in validate_text(text, invented(2, trials=refused)).diagnostics] == ["MT405"]


def test_outside_holders_are_distinct_from_processes() -> None:
    text = reader("{from: elsewhere/w, location: gpu0, size: 2MiB, count: 4}")
    owners = {each.identity.owner for each in all_mapped_memory(clean_geometry(text))["reader"]}
    assert owners == {"elsewhere/"}
    assert not any(each.ours for each in all_mapped_memory(clean_geometry(text))["reader"])
    assert all(each.ours for each in all_mapped_memory(clean_geometry(reader("{from: server.w}")))["reader"])


JOINED = """
processes:
  server:
    held: true
    count: 2
    chunks: {w: {location: gpu0, size: 2MiB, count: 3, handles: fd}}
    exports: {w: {chunk: "w.1:3", via: fd}}
    imports: {own: {from: server.w}}
  reader: {imports: {x: {from: server.w}}}
"""


def joining(text: str, *, joins: bool) -> Geometry:
    return lay_out(read(document(text).root)[0], invented(2), joining=joins).geometry


def references(geometry: Geometry, label: str, name: str) -> list[HandleReference]:
    group = geometry.processes[label].of(ChunkGroup)[name]
    return [HandleReference.of(group, index) for index in range(group.count)]


def test_a_process_that_joins_takes_handles_from_the_held_layout_and_others_from_each_process() -> None:
    together, alone = (joining(JOINED, joins=joins) for joins in (False, True))
    resources = [("chunk", "w.1"), ("chunk", "w.2")] * 2
    for geometry, label, name in ((together, "reader", "x"), (together, "server.0", "own"), (alone, "server.1", "own")):
        found = references(geometry, label, name)
        assert [each[:3] for each in found] == [(f"server.{n}", "w", at) for n in (0, 1) for at in (0, 1)]
        assert [each.imported for each in found] == [
            (f"server.{n // 2}", resource) for n, resource in enumerate(resources)
        ]
    found = references(alone, "reader", "x")
    assert [each[:3] for each in found] == [("test", f"server.{n}.w", at) for n in (0, 1) for at in (0, 1)]
    assert [each.text for each in found] == ["test/server.0.w"] * 2 + ["test/server.1.w"] * 2
    assert [(each.resource, each.imported) for each in found] == [(None, None)] * 4


LENT = """
processes:
  server:
    held: true
    COUNTchunks: {page: {location: gpu0, size: 2MiB, count: {max: 8}, handles: fd}}
    exports: {page: {chunk: page, via: fd}}
  reader:
    HELDimports: {page: {from: server.page}}
    ranges: {kv: {size: 16MiB, elastic: true}}
    access: {kv: {gpu0: rw}}
"""


@pytest.mark.parametrize(
    ("count", "held", "expected"),
    [("", "", []), ("count: 1\n    ", "", []), ("count: 2\n    ", "", ["MT804"]), ("", "held: true\n    ", ["MT804"])],
)
def test_one_held_process_lends_elastic_chunks_to_processes_that_join(
    count: str, held: str, expected: list[str]
) -> None:
    text = LENT.replace("COUNT", count).replace("HELD", held)
    assert [code for code in codes(text) if code != "MT501"] == expected
    if not expected:
        group = geometry_of(text).processes["reader"].of(ChunkGroup)["page"]
        assert (group.count, group.limit, group.growing, group.demand()) == (0, 8, True, {})
    unheld = text.replace("    held: true\n", "")
    assert [code for code in codes(unheld) if code != "MT501"] == ["MT804"]


def test_a_check_records_and_writes_nothing_of_other_programs() -> None:
    text = """
processes:
  server: {events: {e: {device: gpu1}}, exports: {e: {event: e, via: ipc}}}
  reader:
    events: {own: {device: gpu0}}
    imports: {e: {from: server.e}, o: {from: other/o, device: gpu0}, w: {from: other/w, location: gpu0, size: 2MiB}}
    pinned: {p: {size: 2MiB}, f: {size: 2MiB, file: /f}}
    external: {x: {from: camera, via: opaque_fd, device: gpu0, size: 8MiB}}
"""
    geometry = geometry_of(text)
    reader_ = Member(geometry.processes["reader"], "reader", geometry.processes)
    assert [(each.identity, each.event, each.device) for each in recorded_events(reader_)] == [
        (Identity("reader", "own"), "own", 0), (Identity("server", "e"), "e", 1)
    ]  # fmt: skip
    assert {each.name: each.ours for each in all_mapped_memory(geometry)["reader"]} == {"w": False, "p": True}
    assert geometry.processes["reader"].of(PinnedGroup)["f"].produced
