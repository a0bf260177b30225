"""Device names, lists of devices, and visible GPUs."""

from __future__ import annotations

import pytest

from memtopo.driver.types import Location, LocationKind, gpu
from memtopo.geometry.groups import ChunkGroup
from tests.helpers.machines import invented
from tests.helpers.specs import clean_geometry, codes, diagnose, geometry_of
from tests.helpers.strategies import machine as identified

HOST = Location(LocationKind.HOST)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("1", gpu(1)), ("gpu2", gpu(2)), ("GPU-00000000-0000-0000-0000-000000000003", gpu(3)),
        ("0000:1c:00.0", gpu(1)), ("1c:00.0", gpu(1)), ("1C:00", gpu(1)), ("00000000:1C:00.0", gpu(1)),
        ("host", HOST), ("host:0", Location(LocationKind.HOST_NUMA, 0)),
    ],
)  # fmt: skip
def test_devices_are_named_by_ordinal_uuid_bus_id_host_or_node(value: str, expected: Location) -> None:
    text = f"devices: {{d: {value}}}\nchunks: {{a: {{location: d, size: 2MiB}}}}"
    geometry = geometry_of(text, identified())
    assert geometry.devices == {"d": expected}
    assert geometry.of(ChunkGroup)["a"].distinct_locations == (expected,)


@pytest.mark.parametrize(
    ("value", "code"),
    [
        ("4", "MT401"), ("gpu4", "MT401"), ("host:1", "MT401"), ("GPU-1", "MT401"), ("99:00.0", "MT401"),
        ("-1", "MT201"), ("01", "MT201"), ("cuda:0", "MT201"), ("host:x", "MT201"), ("gpu", "MT201"),
    ],
)  # fmt: skip
def test_a_missing_device_is_reported_once_at_its_declaration(value: str, code: str) -> None:
    text = f"devices: {{d: {value}}}\nchunks: {{a: {{location: d, size: 2MiB}}, b: {{location: [d, d], size: 2MiB}}}}"
    (diagnostic,) = (diagnostic for diagnostic in diagnose(text, identified()) if diagnostic.severity == "error")
    assert (diagnostic.code, diagnostic.path) == (code, ("devices", "d"))


@pytest.mark.parametrize(
    ("value", "listed"),
    [
        ("gpu0-3", "gpu0, gpu1, gpu2, gpu3, "), ("gpu0-gpu1", "gpu0, gpu1, "), ("GPU[0-1]", "gpu0, gpu1, "),
        ("gpu2..3", "gpu2, gpu3, "), ("gpu0-63", ""), ("gpu3-1", ""),
    ],
)  # fmt: skip
def test_a_range_of_gpus_has_help_and_no_correction(value: str, listed: str) -> None:
    """The nearest name, gpu1, is not what was meant."""
    text = f"chunks: {{a: {{location: '{value}', size: 2MiB}}}}"
    (found,) = (each for each in diagnose(text, identified()) if each.code == "MT201")
    assert found.help == f"name each GPU by itself, {listed}or write gpus for every GPU"
    assert found.edit is None


def test_built_in_names_cannot_be_declared() -> None:
    assert codes("devices: {gpu0: 1}") == ["MT203"]
    assert codes("devices: {host: 1}") == ["MT203"]
    assert codes("devices: {gpu7: 1}") == ["MT203"]


@pytest.mark.parametrize("value", ["GPU-does-not-exist", "99:00.0"])
def test_an_unreadable_recorded_bus_id_matches_nothing(value: str) -> None:
    odd = invented(1)
    odd = odd.model_copy(update={"devices": [odd.devices[0].model_copy(update={"bus_id": "virtual"})]})
    assert codes(f"devices: {{d: {value}}}", odd)[:1] == ["MT401"]


def test_a_machine_without_gpus_is_reported_as_such() -> None:
    (diagnostic,) = (
        diagnostic
        for diagnostic in diagnose("chunks: {a: {location: gpu0, size: 2MiB}}", invented(0))
        if diagnostic.notes
    )
    assert diagnostic.notes == ("it has 0 GPUs",)


@pytest.mark.parametrize(
    ("text", "expected", "path"),
    [
        ("devices: {m: [gpu0, gpu1]}", "MT103", ("devices", "m")),
        ("processes: {p: {devices: {m: [gpu0, gpu1]}}}", "MT103", ("processes", "p", "devices", "m")),
        ("processes: {p: {count: 2, devices: {m: []}}}", "MT103", ("processes", "p", "devices", "m")),
        ("processes: {p: {count: 1, devices: {m: [gpu0, gpu9]}}}", "MT401", ("processes", "p", "devices", "m", 1)),
        ("processes: {p: {count: 2, devices: {m: [gpu0, what]}}}", "MT201", ("processes", "p", "devices", "m", 1)),
        ("processes: {p: {count: 2, devices: {gpu0: [gpu0, gpu1]}}}", "MT203", ("processes", "p", "devices", "gpu0")),
    ],
)
def test_a_list_of_devices_needs_a_counted_process(text: str, expected: str, path: tuple[object, ...]) -> None:
    assert [(diagnostic.code, diagnostic.path) for diagnostic in diagnose(text) if diagnostic.code < "MT5"] == [
        (expected, path)
    ]


VISIBLE = (
    "processes:\n w: {visible: SEEN, chunks: {c: {location: PLACE, size: 2MiB, count: 2, handles: fd}}, "
    "exports: {c: {chunk: c, via: fd}}}\n"
)


@pytest.mark.parametrize(
    ("visible", "location", "expected"),
    [
        ("gpu0", "gpu0", []),
        ("[gpu1, gpu0]", "[gpu0, gpu1]", []),
        ("[gpu0, gpu0]", "gpu0", []),
        ("gpu0", "host:0", []),
        ("gpu1", "gpu0", ["MT606"]),
        ("gpu1", "[gpu1, gpu0]", ["MT606"]),
        ("[]", "gpu0", ["MT103"]),
        ("host", "gpu0", ["MT103"]),
        ("[gpu1, 'host:0']", "gpu0", ["MT103"]),
        ("gpu7", "gpu0", ["MT401"]),
        ("[gpu1, gpu7]", "gpu0", ["MT401"]),
        ("nothing", "gpu0", ["MT201"]),
        ("{gpu0: r}", "gpu0", ["MT103"]),
        ("", "gpu0", ["MT103"]),
    ],
)
def test_a_process_uses_visible_gpus_only(visible: str, location: str, expected: list[str]) -> None:
    text = VISIBLE.replace("SEEN", visible).replace("PLACE", location)
    assert codes(text) == expected


def test_a_name_is_used_by_what_is_near_it() -> None:
    text = "devices: {d: 1, e: 0}\nchunks: {c: {location: {near: d}, size: 2MiB}}"
    assert [each.path for each in diagnose(text) if each.code == "MT504"] == [("devices", "e")]


@pytest.mark.parametrize(("count", "expected"), [(1, ["MT506"]), (2, [])])
def test_a_count_uses_each_location_of_its_list(count: int, expected: list[str]) -> None:
    text = f"buffers: {{b: {{location: [gpu0, gpu1], size: 2MiB, count: {count}}}}}"
    assert codes(text) == expected


def test_visible_and_count_are_keys_of_processes_only() -> None:
    assert codes("visible: gpu0") == codes("count: 2") == ["MT101"]


def test_visible_keeps_its_order_and_uses_device_names() -> None:
    text = "processes:\n w: {count: 2, devices: {mine: [gpu1, gpu0], other: [gpu0, gpu1]}, visible: [mine, other]}\n"
    assert [member.visible for member in clean_geometry(text).processes.values()] == [
        (gpu(1), gpu(0)),
        (gpu(0), gpu(1)),
    ]


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("{from: s.c}", []),
        ("{from: s.c, location: gpu0}", []),
        ("{from: elsewhere/c, location: gpu0, size: 2MiB}", []),
        ("{from: s.b}", ["MT606"]),
        ("{from: s.e}", ["MT606"]),
        ("{from: elsewhere/c, location: gpu0, size: 2MiB, via: ipc}", ["MT606"]),
        ("{from: elsewhere/c, device: gpu0}", ["MT606"]),
    ],
)
def test_chunks_of_invisible_gpus_can_be_imported_buffers_and_events_cannot(entry: str, expected: list[str]) -> None:
    """Fact 43."""
    text = (
        "processes:\n s: {chunks: {c: {location: gpu0, size: 2MiB, handles: fd}}, buffers: {b: {location: gpu0, "
        "size: 2MiB}}, events: {e: {device: gpu0}}, exports: {c: {chunk: c, via: fd}, b: {buffer: b, via: ipc}, "
        f"e: {{event: e, via: ipc}}}}}}\n r: {{visible: gpu1, imports: {{x: {entry}}}, "
        "ranges: {v: {size: 2MiB}}, map: {v: x}, access: {v: {gpu1: r}}}\n"
    )
    assert codes(text) == expected
    if expected:
        (diagnostic,) = diagnose(text)
        assert diagnostic.labels[0].path == ("processes", "r", "visible")
