"""A `--machine` text is one machine, and the driver that belongs to it; nothing is loaded before it is used."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from memtopo.common.errors import Unavailable
from memtopo.drivers.sim import SimDriver
from memtopo.drivers.target import resolve
from memtopo.machine import dump
from tests.helpers.machines import invented

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def recorded(tmp_path: Path) -> str:
    """The path of a recorded machine."""
    file = tmp_path / "ours.json"
    file.write_text(dump(invented(2)))
    return str(file)


def run(program: str, *arguments: str, **environment: str) -> str:
    variables = os.environ | {"PYTHONPATH": str(ROOT)} | environment
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=True).stdout


def test_a_path_is_a_recorded_machine_on_the_simulator(recorded: str) -> None:
    """It has the file's facts, and is marked as simulated."""
    target = resolve(recorded)
    assert (target.name, target.simulated) == (recorded, True)
    assert target.machine == invented(2)


def test_a_recorded_machine_opens_as_a_simulator(recorded: str) -> None:
    """Each is a new one, initialised, with the machine's GPUs."""
    target = resolve(recorded)
    first, second = target.open(), target.open()
    assert isinstance(first, SimDriver)
    assert isinstance(second, SimDriver)
    assert first is not second
    assert first.device_get_count() == 2
    first.close()
    second.close()


def test_resolving_a_recorded_machine_loads_no_driver(recorded: str) -> None:
    """Neither CUDA, nor its driver, nor the simulator."""
    program = """
import sys
from memtopo.drivers.target import resolve
watched = ("cuda", "memtopo.drivers.cuda", "memtopo.drivers.sim")
loaded = lambda: [name for name in sys.modules if name in watched or name.startswith("cuda.")]
target = resolve(sys.argv[1])
print(loaded())
target.open()
print(loaded())
"""
    assert run(program, recorded).splitlines() == ["[]", "['memtopo.drivers.sim']"]


@pytest.mark.parametrize("name", ["h9000x1", "", "nowhere/at/all", "nothing.json", "LOCAL"])
def test_an_unknown_machine_is_unavailable(name: str) -> None:
    """And never another machine."""
    with pytest.raises(Unavailable) as caught:
        resolve(name)
    assert caught.value.exit_code == 3


def test_local_without_a_visible_gpu_is_unavailable() -> None:
    """The error suggests an alternative; the simulator is never used."""
    program = """
from memtopo.common.errors import Unavailable
from memtopo.drivers.target import resolve
try:
    print(resolve("local"))
except Unavailable as error:
    print(error.exit_code, error.hint)
"""
    assert run(program, CUDA_VISIBLE_DEVICES="").startswith("3 ")
    assert "--machine h200x2" in run(program, CUDA_VISIBLE_DEVICES="")
