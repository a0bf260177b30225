"""Bindings of the holders of a spec: sockets, folders and commands, and what the report says of them."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from memtopo.common.errors import Unavailable, UsageError
from memtopo.drivers import target
from memtopo.plans.report import PlanSummary, Report
from memtopo.sharing.producers import Producers, in_folder, producer_specs, resolve, start_producers, unused
from tests.helpers.machines import invented
from tests.helpers.memfd_exports import MACHINE as MACHINE_LINE
from tests.helpers.specs import geometry_of

MACHINE = invented(1)
FRAME = "external: {frame: {from: %s, via: opaque_fd, device: gpu0, size: 4KiB}}"


def test_a_binding_is_a_socket_or_a_folder_of_sockets_or_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the path of a socket is short
    folder, path = f"{tmp_path}/", str(tmp_path / "camera.sock")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind("camera.sock")
        assert resolve("camera", path) == path
        assert in_folder(folder, ["camera", "lidar", "a/b"]) == {"camera": path}
    assert resolve("lidar", folder) == f"{tmp_path}/lidar.sock"
    assert resolve("camera", "true 'a b'") == ("true", "a b")
    for text in ("", "no-such-program x", "a\0b"):
        with pytest.raises(Unavailable, match="--with camera: there is neither a socket"):
            resolve("camera", text)
    with pytest.raises(UsageError, match="cannot be split into words"):
        resolve("camera", "true 'a b")


def test_a_name_from_which_a_spec_imports_nothing_is_named_with_those_that_it_uses() -> None:
    spec = geometry_of(FRAME % "camera", MACHINE)
    assert unused(["camera"], spec) is None
    assert unused(["camera", "xyz"], spec) == ("the spec imports nothing from 'xyz'", "known are camera")
    nothing = geometry_of("ranges: {kv: {size: 2MiB}}", MACHINE)
    assert unused(["xyz"], nothing) == ("the spec imports nothing from 'xyz'", "it imports nothing from outside")


def test_a_holder_that_a_spec_names_by_its_path_is_neither_simulated_nor_required_to_run() -> None:
    spec = geometry_of(FRAME % "/run/x.sock/frame", MACHINE)
    assert producer_specs([spec], "h", target.uuids(MACHINE)) == {}
    with start_producers(spec, {}, None) as started:
        assert (started.sockets, [*started.programs]) == ({}, [])
    with pytest.raises(UsageError, match="comes from 'camera', which is neither bound nor running"):
        start_producers(geometry_of(FRAME % "camera", MACHINE), {}, None).__enter__()


def test_notes_on_simulated_holders_stand_before_those_of_the_report() -> None:
    report = Report("kv", None, MACHINE_LINE, "ok", 0, PlanSummary("kv", (), {}, 0, 0, 0), notes=("first",))
    noted = Producers({}, (), ("camera",)).with_notes(report)
    assert noted.notes == ("camera is simulated by a built-in producer: this machine is simulated", "first")
    assert Producers({}).with_survivors(noted) is noted
