"""A `--machine` text is one machine, and the driver that belongs to it; nothing is loaded before it is used."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from memtopo.common.errors import Unavailable, UsageError
from memtopo.driver.types import DriverError
from memtopo.drivers.sim import SimDriver
from memtopo.drivers.target import of_another_host, of_nodes, open_in_worker, ordinals, resolve, resolve_nodes, uuids
from memtopo.machine import dump, load
from memtopo.machine.queries import changed
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
    assert "h200x2" in run(program, CUDA_VISIBLE_DEVICES="")


def test_each_of_several_nodes_has_one_machine() -> None:
    with pytest.raises(UsageError, match="node 'a' has two machines"):
        resolve_nodes(["a=h100x1", "b=h100x1", "a=h200x2"])
    with pytest.raises(UsageError, match="machine 'h200x2' has no node"):
        resolve_nodes(["a=h100x1", "h200x2"])
    found = resolve_nodes(["b=h200x2", "a=h100x1"])
    assert [found.machines.of(node) for node in ("a", "b", None)] == [load("h100x1"), load("h200x2"), load("h200x2")]
    assert (found.name, found.simulated, len(found.line.devices)) == ("b=h200x2 a=h100x1", True, 3)


def test_nodes_are_simulated_if_all_of_them_are() -> None:
    one, other = resolve("h100x1"), of_another_host("remote", load("h200x2"), simulated=False)
    pairs = (one, one), (one, other), (other, one)
    assert [of_nodes({"a": a, "b": b}).simulated for a, b in pairs] == [True, False, False]


def test_a_worker_that_sees_some_gpus_calls_them_by_the_ordinals_of_all() -> None:
    machine = load("h200x4")
    sizes = [device.model_copy(update={"memory_bytes": n + 1 << 30}) for n, device in enumerate(machine.devices)]
    machine = changed(machine, devices=sizes)
    every = uuids(machine)
    driver = open_in_worker(machine, simulated=True, visible=[3, 1])
    assert driver.device_get_count() == 2
    assert [driver.device_total_mem(ordinal) >> 30 for ordinal in (3, 1)] == [4, 2]
    assert [driver.device_get_uuid(ordinal).hex() for ordinal in (3, 1)] == [every[3], every[1]]
    with pytest.raises(DriverError, match="this process does not see gpu0"):
        driver.device_get_uuid(0)
    assert ordinals([every[3], every[1]], every) == (3, 1)
    assert ordinals(every, every) == ()
    assert ordinals(every[::-1], every) == (3, 2, 1, 0)
    assert ordinals([every[2], "of another machine"], every) == (2,)
    with pytest.raises(UsageError, match="without a machine, specs are only validated"):
        resolve("none")
