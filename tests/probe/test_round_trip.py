"""A probe of the simulator of a recorded machine reproduces the record."""

from __future__ import annotations

from itertools import pairwise

import pytest

from memtopo import machine as machines
from memtopo.driver.types import gpu
from memtopo.machine import Copies, Machine, Rate, Trial, dump, load, parse
from memtopo.machine.queries import changed
from memtopo.probe import probe
from memtopo.probe.trial_table import planned_trials
from tests.helpers.machines import WORKS, complete, invented

REFUSED = Trial(advertised=True, works=False, error="CUDA_ERROR_NOT_SUPPORTED", call="cuMemMap")
HUNG = Trial(advertised=True, works=False, error="TIMEOUT")
SILENT = Trial(advertised=True, works=False)
RATE = Rate(bytes_per_second=390_000_000_000, latency_ns=1800)
INVENTED = {
    "none": invented(0),
    "one": invented(1),
    "two": invented(2),
    "sixteen": invented(16),
    "strangers": invented(2, peers=False),
    "small-granules": invented(1, granule=64 << 10, nodes=3),
    "fabric": invented(2, trials={"fabric": WORKS}),
    "refused": invented(
        2, trials={"fd": REFUSED, "ipc": HUNG, "compressible": SILENT, "managed": REFUSED, "pool-fd": REFUSED}
    ),
}


def again(machine: Machine) -> Machine:
    return probe(machine, simulated=True, date=machine.recorded).machine


@pytest.mark.parametrize("name", machines.shipped())
def test_a_shipped_machine_is_reproduced_to_the_byte(name: str) -> None:
    assert dump(again(load(name))) == dump(load(name))


@pytest.mark.parametrize("name", machines.shipped())
def test_a_shipped_machine_with_all_trials_is_reproduced(name: str) -> None:
    machine = complete(load(name))
    assert dump(again(machine)) == dump(machine)


@pytest.mark.parametrize("name", INVENTED)
def test_any_machine_is_reproduced_to_the_byte(name: str) -> None:
    machine = complete(INVENTED[name])
    assert dump(again(machine)) == dump(machine)


def test_a_record_without_trials_is_reproduced() -> None:
    machine = invented(2)
    bare = changed(machine, devices=[each.model_copy(update={"memory": each.memory.model_copy(update={"trials": {}})})
                                     for each in machine.devices])  # fmt: skip
    assert again(bare) == bare


def test_rates_and_links_are_copied_from_the_record() -> None:
    machine = complete(invented(2))
    peers = [[peer and peer.model_copy(update={"link": "NV", "links": 18, "copies": Copies(engine_write=RATE)})
              for peer in row] for row in machine.peers]  # fmt: skip
    machine = changed(machine, peers=peers)
    assert again(machine) == machine
    assert parse(dump(machine).encode(), "test") == machine


def test_every_method_is_planned_at_every_location() -> None:
    """And the trial of every pair of GPUs, in both directions"""
    planned = planned_trials(invented(3))
    of_gpu1 = {(each.location, each.name) for each in planned if each.location == gpu(1) and each.device == 1}
    assert len(of_gpu1) == 21
    pairs = [(each.device, each.location.id) for each in planned if each.name == "store"]
    assert sorted(pairs) == [(a, b) for a in range(3) for b in range(3) if a != b]
    assert all(a != b for a, b in pairwise(planned))
