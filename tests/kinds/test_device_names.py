"""Device names, lists of devices, and visible GPUs."""

from __future__ import annotations

import pytest

from memtopo.driver.types import Location, LocationKind, gpu
from memtopo.geometry.groups import ChunkGroup
from tests.helpers.specs import clean_geometry, geometry_of
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


def test_visible_keeps_its_order_and_uses_device_names() -> None:
    text = "processes:\n w: {count: 2, devices: {mine: [gpu1, gpu0], other: [gpu0, gpu1]}, visible: [mine, other]}\n"
    assert [member.visible for member in clean_geometry(text).processes.values()] == [
        (gpu(1), gpu(0)),
        (gpu(0), gpu(1)),
    ]
