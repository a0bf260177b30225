"""The machines that come with memtopo, and the host memory of recorded ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from memtopo import machine
from memtopo.common.errors import Unavailable
from memtopo.machine.queries import changed
from tests.helpers.machines import invented, with_nodes
from tests.helpers.specs import ROOT


@pytest.mark.parametrize("name", machine.shipped())
def test_a_shipped_machine_is_as_it_is_written(name: str) -> None:
    text = (ROOT / "memtopo" / "machines" / f"{name}.json").read_bytes()
    assert machine.dump(machine.load(name)).encode() == text


def test_a_record_has_the_memory_of_each_node(tmp_path: Path) -> None:
    written = with_nodes(invented(1), 64 << 30, 32 << 30, pinned=80 << 30)
    (tmp_path / "m.json").write_text(machine.dump(written))
    read = machine.load(str(tmp_path / "m.json"))
    assert read == written
    assert (read.host_room, read.pinned_bytes, [*read.node_bytes.values()]) == (
        96 << 30,
        80 << 30,
        [64 << 30, 32 << 30],
    )


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "4GiB"])
def test_a_record_with_a_wrong_amount_of_host_memory_is_damaged(wrong: object) -> None:
    record = json.loads(machine.dump(with_nodes(invented(1), 64 << 30)))
    record["host"]["host:0"]["memory_bytes"] = wrong
    with pytest.raises(Unavailable, match=r"damaged: host\.host:0\.memory_bytes"):
        machine.parse(json.dumps(record).encode(), "m.json")


def test_every_supported_kind_of_machine_is_shipped() -> None:
    assert {"h100x1", "h200x2", "h200x4", "h200x8"} == set(machine.shipped())


@pytest.mark.parametrize("free", [None, 0, 1 << 30])
def test_a_gpu_has_room_for_its_free_memory_if_that_is_known(free: int | None) -> None:
    device = invented(1).devices[0].model_copy(update={"free_bytes": free})
    assert device.room == (device.memory_bytes if free is None else free)


def test_no_name_in_a_record_is_a_command_to_a_runner_and_each_is_read_as_it_is() -> None:
    written = changed(invented(1), host_name="a##[error]b###")
    text = machine.dump(written)
    assert "##" not in text
    assert machine.parse(text.encode(), "m.json") == written
