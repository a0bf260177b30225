"""`memtopo.attach` to a producer of external memory and semaphores."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import numpy as np
import pytest

import memtopo
from memtopo.drivers.target import Target, uuids
from memtopo.sharing.programs import ProducerProgram
from tests.helpers.child_process import PATIENCE
from tests.helpers.command_line import ROOT, environment
from tests.helpers.machines import invented
from tests.helpers.python_process import shell_command

GPU = uuids(invented(2))[1]


@pytest.fixture
def camera(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The socket of a program that has memory on gpu1 and a semaphore."""
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
    monkeypatch.chdir(ROOT)
    command = shlex.split(shell_command("tests.sharing.children.misbehaving_producer"))
    with ProducerProgram("camera", [*command, "serve", str(1 << 20), GPU]) as program:
        program.wait_until_serving(lambda: 0, PATIENCE)
        yield program.socket


def test_external_memory_is_attached_on_its_gpu_and_read_as_written(camera: str, machine: Target) -> None:
    with pytest.raises(memtopo.Unsuitable, match="memory of other APIs is not imported again"):
        memtopo.attach(camera, "frame", machine=machine, reattach=True).__enter__()
    with memtopo.attach(camera, "frame", machine=machine) as layout:
        view = layout.export("frame")
        assert (view.device, bytes(view.memory[:6])) == ("gpu1", b"memory")
        del view


def test_attaching_a_semaphore_is_refused(camera: str, machine: Target) -> None:
    """Its use would be undefined."""
    with pytest.raises(memtopo.Unsuitable, match="'ready' is a semaphore"):
        memtopo.attach(camera, machine=machine).__enter__()


def test_a_semaphore_of_a_layout_is_waited_for_and_signalled() -> None:
    """In the default stream, with values that the program chooses."""
    spec = {
        "memtopo": 1,
        "name": "viewer",
        "external": {"frame": {"from": "camera", "via": "opaque_fd", "device": "gpu0", "size": "1MiB"}},
        "semaphores": {"ready": {"from": "camera", "via": "timeline_fd", "device": "gpu0", "wait": 1}},
    }
    with memtopo.applied(spec, machine="h200x2") as layout:
        ready = layout.semaphore("ready")
        ready.signal(5)
        ready.wait(np.uint64(5))
        with pytest.raises(memtopo.Unsuitable, match="whole number"):
            ready.signal("x")  # type: ignore[arg-type]
        with pytest.raises(memtopo.Unsuitable, match="redy"):
            layout.semaphore("redy")
    with pytest.raises(memtopo.Unsuitable, match="no longer exists"):
        ready.wait(5)
