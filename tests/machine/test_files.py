"""The machines that come with memtopo, and the host memory of recorded ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from memtopo import machine
from memtopo.common.errors import Unavailable
from memtopo.machine import ASSUMED_HOST_BYTES, LARGEST_FILE, Cluster, Trial
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
def test_a_record_with_a_wrong_amount_of_host_memory_is_refused_by_its_path(wrong: object) -> None:
    record = json.loads(machine.dump(with_nodes(invented(1), 64 << 30)))
    record["host"]["host:0"]["memory_bytes"] = wrong
    with pytest.raises(Unavailable, match=r"'m.json': host\.host:0\.memory_bytes"):
        machine.parse(json.dumps(record).encode(), "m.json")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"memtopo_machine": 2}, "has version 2; this memtopo reads version 1"),
        ({"memtopo_machine": 0}, "has version 0; this memtopo reads version 1"),
        ({"peers": [[None, None]]}, "peers has 1 entries, and there are 2 devices"),
        ({"peers": [[None, None], [None]]}, "peers.1 has 1 entries, and there are 2 devices"),
        ({"peers": [[None] * 3, [None] * 2]}, "peers.0 has 3 entries, and there are 2 devices"),
    ],
)
def test_a_record_of_another_version_or_without_all_pairs_of_gpus_is_refused(
    changes: dict[str, object], message: str
) -> None:
    record = json.loads(machine.dump(invented(2))) | changes
    with pytest.raises(Unavailable, match=message):
        machine.parse(json.dumps(record).encode(), "m.json")


def test_what_has_a_slash_or_ends_as_a_file_is_a_path_and_all_else_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("m.json", "h200x2"):
        Path(name).write_text(machine.dump(invented(3)))
    found = [len(machine.load(name).devices) for name in ("m.json", "./h200x2", "h200x2")]
    assert found == [3, 3, 2]


def test_a_file_that_is_larger_than_any_record_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "m.json").open("wb") as file:
        file.truncate(LARGEST_FILE + 1)
    with pytest.raises(Unavailable, match="has more than 8 MiB"):
        machine.load(str(tmp_path / "m.json"))


def test_a_host_of_unknown_memory_has_as_much_as_simulations_assume() -> None:
    assert invented(1).host_room == ASSUMED_HOST_BYTES


def test_a_cluster_has_a_machine_for_each_of_its_nodes_and_none_for_others() -> None:
    one, other = invented(1), invented(2)
    cluster = Cluster({"a": one, "b": other})
    assert [cluster.of(node) for node in ("a", "b", None)] == [one, other, one]
    with pytest.raises(KeyError):
        cluster.of("c")


@pytest.mark.parametrize(
    ("trial", "refused"),
    [
        (Trial(), False),
        (Trial(advertised=True), False),
        (Trial(advertised=False), True),
        (Trial(advertised=False, works=True), False),
        (Trial(advertised=True, works=False), True),
    ],
)
def test_an_attempt_counts_more_than_what_is_advertised(trial: Trial, refused: bool) -> None:
    assert trial.refused == refused


def test_a_failure_says_what_is_advertised_and_the_error_or_what_was_seen() -> None:
    failed = Trial(advertised=True, works=False, error="TIMEOUT")
    assert failed.failure("a trial", "gave nothing") == "it is advertised, but a trial failed with TIMEOUT"
    assert Trial(works=False).failure("a trial", "gave nothing") == "a trial gave nothing"


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
