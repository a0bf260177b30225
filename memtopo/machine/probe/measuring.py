"""What is asked of NVML and measured beside the trials: the links of the pairs, and how fast copies are."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from memtopo.driver.types import Location, LocationKind, gpu
from memtopo.machine import Copies, Machine, Rate, queries
from memtopo.machine.probe.supervisor import Lab, Limits, Outcome
from memtopo.machine.probe.trial_table import RATES, Ask

_LIMIT = 120.0
_HOST = Location(LocationKind.HOST)


def linked(machine: Machine) -> Machine:
    """A real machine with what NVML tells of its pairs."""
    from memtopo.driver.cuda import links  # noqa: PLC0415 a simulated machine needs none of it

    told = links([device.uuid for device in machine.devices])
    peers = [
        [peer and peer.model_copy(update={"link": told[a][b][0], "links": told[a][b][1]}) for b, peer in enumerate(row)]
        for a, row in enumerate(machine.peers)
    ]
    return queries.changed(machine, peers=peers)


def measured(machine: Machine, stop: Callable[[], int]) -> tuple[Machine, list[str]]:
    """A real machine with the rates of all pairs and of the host, one after another; and what could not be measured."""
    count = range(len(machine.devices))
    asks = [Ask(_HOST, RATES, a) for a in count]
    asks += [Ask(gpu(b), RATES, a) for a in count for b in count if a != b and machine.can_access(a, b)]
    numbered = [*enumerate(asks)]
    found = Lab(None, stop, Limits(trial=_LIMIT)).run([numbered], importing=False)
    told = {ask: outcome for n, ask in numbered if (outcome := found.outcomes.get(n))}
    notes = [
        f"{_pair(ask)} could not be measured: {each.error or each.note}" for ask, each in told.items() if not each.data
    ]
    devices = [
        device.model_copy(update={"copies": _copies(told, Ask(_HOST, RATES, a))})
        for a, device in enumerate(machine.devices)
    ]
    peers = [
        [
            peer and peer.model_copy(update={"copies": _copies(told, Ask(gpu(b), RATES, a))})
            for b, peer in enumerate(row)
        ]
        for a, row in enumerate(machine.peers)
    ]
    return queries.changed(machine, devices=devices, peers=peers), notes


def _copies(told: Mapping[Ask, Outcome], ask: Ask) -> Copies | None:
    outcome = told.get(ask)
    if outcome is None or not outcome.data:
        return None
    return Copies(**{name: Rate(**rate) for name, rate in outcome.data.items()})


def _pair(ask: Ask) -> str:
    return f"gpu{ask.by} and {ask.place}"
