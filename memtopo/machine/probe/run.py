"""One probe: what is to be tried, the trials, and a machine that holds what came of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec

from memtopo.driver.types import Location, LocationKind, gpu
from memtopo.machine import Copies, Device, Machine, Memory, Peer, Rate, Surroundings, Trial, dump, queries
from memtopo.machine.probe import environment
from memtopo.machine.probe.supervisor import Findings, Lab, Limits, Outcome
from memtopo.machine.probe.trial_table import RATES, STORE, Ask, advertised, asks, recorded, way

_SHARING = ("share", "ipc", "ipc_event", "pool")


@dataclass(frozen=True, slots=True)
class Timing:
    """How long one trial took, in seconds, the making of contexts apart."""

    what: str
    by: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Probed:
    """A machine with its trials, and what belongs to this one probe alone.

    `seconds` is how long the trials took, `starting` how long the slowest child took for its driver, `contexts` the
    sum of what all contexts took. `left` are processes that could not be ended.
    """

    machine: Machine
    seconds: float
    starting: float = 0.0
    contexts: float = 0.0
    trials: tuple[Timing, ...] = ()
    left: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())


def probe(
    machine: Machine,
    *,
    simulated: bool,
    date: str | None = None,
    stop: Callable[[], int] = lambda: 0,
    limits: Limits | None = None,
    child: Sequence[str] = (),
    bandwidth: bool = False,
) -> Probed:
    """Try everything that a machine may be able to do, in children that may hang or die.

    Of a machine that is simulated only what its record has is told, so that probing it again gives the same: what
    works there is tried on the simulator, and what did not is the record's to say, as are rates. `date` is in UTC,
    `child` the command of another child than memtopo's own. Raises `Stopped`.
    """
    began = time.monotonic()
    around = machine.surroundings if simulated else environment.read()
    wanted = [ask for ask in asks(machine) if not simulated or recorded(machine, ask)]
    known = {n: trial for n, ask in enumerate(wanted) if (trial := _untried(machine, ask, around, simulated=simulated))}
    due = [(n, ask) for n, ask in enumerate(wanted) if n not in known]
    lab = Lab(dump(machine).encode() if simulated else None, stop, limits or Limits(), child)
    found = lab.run(_lanes(due, simulated=simulated), importing=any(_is_sharing(ask) for _, ask in due))
    told = {n: known.get(n) or _told(machine, ask, found.outcomes.get(n)) for n, ask in enumerate(wanted)}
    trials = _merged((ask, told[n]) for n, ask in enumerate(wanted))
    seen = _with(machine, trials, around, date)
    took = time.monotonic() - began
    if not simulated:
        seen = linked(seen)
        if bandwidth:
            seen, unmeasured = measured(seen, stop)
            found.notes += unmeasured
    return Probed(seen, took, *_times(due, found), left=tuple(found.left), notes=tuple(found.notes))


def _untried(machine: Machine, ask: Ask, around: Surroundings | None, *, simulated: bool) -> Trial | None:
    """What is told without a trial: what a record says does not work, or what is never tried."""
    if simulated:
        known = recorded(machine, ask)
        return None if known is None or known.works else known
    never = _never(ask, around)
    return Trial(advertised=advertised(machine, ask), note=never) if never else None


def _never(ask: Ask, around: Surroundings | None) -> str | None:
    """Why something is not tried on hardware."""
    if ask.name == STORE or around is None:
        return None
    if ask.name == "pool-fabric" and not around.imex_channels:
        return "no IMEX channel"  # cuda-bindings was seen to abort the process at the refusal
    if ask.name.startswith("external"):
        if not around.vulkan:
            return "no Vulkan driver"
        if find_spec("vulkan") is None:
            return "needs the package vulkan"
    return way(ask.place, ask.name).never


def _lanes(due: Sequence[tuple[int, Ask]], *, simulated: bool) -> list[list[tuple[int, Ask]]]:
    """Who tries what: on hardware one child for each GPU and one for the pairs; a simulator is slow to start."""
    if simulated:
        return [[*due]]
    lanes: dict[int, list[tuple[int, Ask]]] = {}
    for n, ask in due:
        lanes.setdefault(-1 if ask.name == STORE else ask.by, []).append((n, ask))
    return list(lanes.values())


def _is_sharing(ask: Ask) -> bool:
    return ask.name != STORE and way(ask.place, ask.name).how in _SHARING


def _told(machine: Machine, ask: Ask, outcome: Outcome | None) -> Trial:
    said = advertised(machine, ask)
    if outcome is None:
        return Trial(advertised=said, note="it was not reached")
    return Trial(
        advertised=said, works=outcome.works, error=outcome.error, call=outcome.call or None, note=outcome.note
    )


def _merged(trials: Iterable[tuple[Ask, Trial]]) -> dict[tuple[Location, str, int], Trial]:
    """One trial for each thing: of host memory that several GPUs use, the worst."""
    found: dict[tuple[Location, str, int], Trial] = {}
    for ask, trial in trials:
        key = ask.place, ask.name, ask.by if ask.name == STORE else 0
        if key not in found or _worse(trial, found[key]):
            found[key] = trial
    return found


def _worse(trial: Trial, other: Trial) -> bool:
    order = (False, None, True)
    return order.index(trial.works) < order.index(other.works)


def _with(
    machine: Machine, trials: Mapping[tuple[Location, str, int], Trial], around: Surroundings | None, date: str | None
) -> Machine:
    memories = {place: _memory(place, memory, trials) for place, memory in machine.locations.items()}
    gpus = [memory for place, memory in memories.items() if place.kind == LocationKind.GPU]
    devices = [_device(device, memory) for device, memory in zip(machine.devices, gpus, strict=True)]
    host = {str(place): memory for place, memory in memories.items() if place.kind != LocationKind.GPU}
    peers = [[_peer(peer, trials, a, b) for b, peer in enumerate(row)] for a, row in enumerate(machine.peers)]
    return queries.changed(machine, recorded=date, devices=devices, host=host, peers=peers, surroundings=around)


def _memory(place: Location, memory: Memory, trials: Mapping[tuple[Location, str, int], Trial]) -> Memory:
    own = {name: trial for (where, name, _), trial in trials.items() if where == place and name != STORE}
    # A record keeps its order, and what a later memtopo tried.
    return memory.model_copy(update={"trials": memory.trials | own})


def _device(device: Device, memory: Memory) -> Device:
    return device.model_copy(update={"memory": memory, "free_bytes": None})


def _peer(peer: Peer | None, trials: Mapping[tuple[Location, str, int], Trial], device: int, owner: int) -> Peer | None:
    key = Location(LocationKind.GPU, owner), STORE, device
    return peer.model_copy(update={"store": trials[key]}) if peer and key in trials else peer


def _times(due: Sequence[tuple[int, Ask]], found: Findings) -> tuple[float, float, tuple[Timing, ...]]:
    contexts = sum(outcome.contexts for outcome in found.outcomes.values())
    each = [
        Timing(f"{ask.place} {ask.name}", f"gpu{ask.by}", found.outcomes[n].seconds)
        for n, ask in due
        if n in found.outcomes
    ]
    return found.starting, contexts, tuple(each)


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
