"""Probe of a machine: what it advertises, and the result of one real trial of each feature (fact 4).

Trials are made in child processes, since a trial may hang, and some end the process that makes them (facts 24, 40).
`trial_table` has the list of trials, `trials` the code of each, and `supervisor` has the children make them. Here the
trials of a probe are selected, and their results recorded in the machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from importlib.util import find_spec

from msgspec import Struct

from memtopo.common.units import by_key
from memtopo.driver.types import WHOLE_HOST, Location, LocationKind, gpu
from memtopo.machine import Copies, Machine, Peer, Rate, Surroundings, Trial, dump, queries
from memtopo.plans.progress import Progress
from memtopo.probe import diagnosis
from memtopo.probe.supervisor import Findings, Limits, ProbeStopped, Supervisor, TrialEnded
from memtopo.probe.trial_table import RATES, STORE, PlannedTrial, advertised, planned_trials, recorded

__all__ = ["Limits", "ProbeStopped", "Probed", "probe"]


_SHARING = ("share", "ipc", "ipc_event", "pool")
_WORST_FIRST = (False, None, True)
"""Results of trials."""


class Timing(Struct, frozen=True):
    """Seconds that one trial took, without those for creating contexts."""

    what: str
    by: str
    seconds: float


class Times(Struct, frozen=True):
    """Seconds: `total` for all trials, of the slowest child's start, for all contexts, and for each trial.

    Trials of several GPUs are concurrent; those of each trial do not include contexts.
    """

    total: float
    starting: float
    contexts: float
    trials: tuple[Timing, ...]


class Probed(Struct, frozen=True):
    """A machine with its trials, and data of this one run; `left` are processes that could not be ended."""

    machine: Machine
    seconds: Times
    left: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def probe(
    machine: Machine,
    *,
    simulated: bool,
    date: str | None = None,
    stop: Callable[[], int] = lambda: 0,
    limits: Limits | None = None,
    child: Sequence[str] = (),
    bandwidth: bool = False,
    progress: Progress | None = None,
) -> Probed:
    """Try every feature that a machine may support, in child processes that may hang or die.

    For a simulated machine, the trials in its record that worked are made on the simulator, and all others, and rates,
    are copied, so that the result equals the record. `date` is in UTC; the command `child` replaces memtopo's own child
    process. Raises `ProbeStopped`.
    """
    began = time.monotonic()
    around = machine.surroundings if simulated else diagnosis.read()
    planned = [each for each in planned_trials(machine) if not simulated or recorded(machine, each)]
    settled = {n: _without_trial(machine, each, around, simulated=simulated) for n, each in enumerate(planned)}
    known = {n: trial for n, trial in settled.items() if trial}
    due = [(n, each) for n, each in enumerate(planned) if n not in known]
    shown = progress or Progress()
    supervisor = Supervisor(dump(machine) if simulated else None, stop, limits or Limits(), child, shown)
    findings = supervisor.run(_lanes(due, simulated=simulated), importing=any(_shares(each) for _, each in due))
    trials = [known.get(n) or _trial(machine, each, findings.outcomes.get(n)) for n, each in enumerate(planned)]
    tested = _with_trials(machine, _worst(zip(planned, trials, strict=True)), around, date)
    times = _times(time.monotonic() - began, due, findings)
    if not simulated:
        tested = with_pinned(with_links(tested))
        if bandwidth:
            tested, unmeasured = with_rates(tested, stop, shown)
            findings.notes += unmeasured
    return Probed(tested, times, tuple(findings.left), tuple(findings.notes))


def tried(machine: Machine, names: Collection[str], *, simulated: bool) -> Machine:
    """Return a machine with the trials of some names, which are made unless it has them; all else is as before.

    On a simulated machine they are made on the simulator.
    """
    due = [
        *enumerate(each for each in planned_trials(machine) if each.name in names and recorded(machine, each) is None)
    ]
    if not due:
        return machine
    supervisor = Supervisor(dump(machine) if simulated else None, lambda: 0, Limits(), ())
    findings = supervisor.run(_lanes(due, simulated=simulated), importing=any(_shares(each) for _, each in due))
    trials = [(each, _trial(machine, each, findings.outcomes.get(n))) for n, each in due]
    found = _with_trials(machine, _worst(trials), machine.surroundings, machine.recorded)
    pairs = zip(found.devices, machine.devices, strict=True)
    return queries.changed(
        found, devices=[device.model_copy(update={"free_bytes": before.free_bytes}) for device, before in pairs]
    )


def _without_trial(
    machine: Machine, planned: PlannedTrial, around: Surroundings | None, *, simulated: bool
) -> Trial | None:
    """Result that needs no trial: of a simulated machine one that did not work, of a real one what is never tried."""
    if simulated:
        known = recorded(machine, planned)
        return None if known is None or known.works else known
    never = _never(planned, around)
    return Trial(advertised=advertised(machine, planned), note=never) if never else None


def _never(planned: PlannedTrial, around: Surroundings | None) -> str | None:
    """Reason why something is not tried on hardware."""
    if planned.name == STORE or around is None:
        return None
    if planned.name == "pool-fabric" and not around.imex_channels:
        return "no IMEX channel"  # cuda-bindings has been observed to abort the process at the error
    if planned.name.startswith("external"):
        if not around.vulkan:
            return "no Vulkan driver"
        if find_spec("vulkan") is None:
            return "needs the package vulkan"
    return planned.method.never


def _times(total: float, due: Sequence[tuple[int, PlannedTrial]], findings: Findings) -> Times:
    """Times of a probe: in all, and of those trials that have ended."""
    ended = [(each, findings.outcomes[n]) for n, each in due if n in findings.outcomes]
    timings = (Timing(f"{each.location} {each.name}", f"gpu{each.device}", end.seconds) for each, end in ended)
    return Times(total, findings.starting, sum(end.contexts for _, end in ended), tuple(timings))


def _lanes(due: Sequence[tuple[int, PlannedTrial]], *, simulated: bool) -> list[list[tuple[int, PlannedTrial]]]:
    """Trials of each child: on hardware one child for each GPU and one for pairs; one only for the slow simulator."""
    if simulated:
        return [[*due]]
    return [*by_key((-1 if each.name == STORE else each.device, (n, each)) for n, each in due).values()]


def _shares(planned: PlannedTrial) -> bool:
    return planned.name != STORE and planned.how in _SHARING


def _trial(machine: Machine, planned: PlannedTrial, ended: TrialEnded | None) -> Trial:
    announced = advertised(machine, planned)
    if ended is None:
        return Trial(advertised=announced, note="it was not reached")
    return Trial(advertised=announced, works=ended.works, error=ended.error, call=ended.call or None, note=ended.reason)


def _worst(trials: Iterable[tuple[PlannedTrial, Trial]]) -> dict[tuple[Location, str, int], Trial]:
    """One result for each feature: of host memory used by several GPUs, the worst."""
    found: dict[tuple[Location, str, int], Trial] = {}
    for planned, trial in trials:
        key = planned.location, planned.name, planned.device if planned.name == STORE else 0
        if key not in found or _WORST_FIRST.index(trial.works) < _WORST_FIRST.index(found[key].works):
            found[key] = trial
    return found


def _with_trials(
    machine: Machine, trials: Mapping[tuple[Location, str, int], Trial], around: Surroundings | None, date: str | None
) -> Machine:
    memories = {}
    for location, memory in machine.locations.items():
        own = {name: trial for (where, name, _), trial in trials.items() if where == location and name != STORE}
        # The order of a record is kept, and so are trials of a later memtopo.
        memories[location] = memory.model_copy(update={"trials": memory.trials | own})
    gpus = [memory for location, memory in memories.items() if location.kind == LocationKind.GPU]
    pairs = zip(machine.devices, gpus, strict=True)
    devices = [device.model_copy(update={"memory": memory, "free_bytes": None}) for device, memory in pairs]
    host = {str(location): memory for location, memory in memories.items() if location.kind != LocationKind.GPU}

    def with_store(peer: Peer, device: int, owner: int) -> Peer:
        trial = trials.get((gpu(owner), STORE, device))
        return peer.model_copy(update={"store": trial}) if trial else peer

    changed = queries.changed(machine, recorded=date, devices=devices, host=host, surroundings=around)
    return _with_peers(changed, with_store)


_LIMIT = 120.0


def with_links(machine: Machine) -> Machine:
    """Add the links of all pairs, as reported by NVML, to a real machine."""
    from memtopo.drivers.cuda.nvml import links  # noqa: PLC0415 not needed for a simulated machine

    found = links([device.uuid for device in machine.devices])

    def linked(peer: Peer, a: int, b: int) -> Peer:
        link, count = found[a][b]
        return peer.model_copy(update={"link": link, "links": count})

    return _with_peers(machine, linked)


def with_pinned(machine: Machine) -> Machine:
    """Add the bytes that may be page-locked to a real machine: all of the host's, but in WSL not known (fact 77)."""
    wsl = machine.surroundings is None or machine.surroundings.wsl
    return queries.changed(machine, pinned_bytes=None if wsl else machine.host_bytes)


def with_rates(machine: Machine, stop: Callable[[], int], progress: Progress) -> tuple[Machine, list[str]]:
    """Add the rates of all pairs and of the host to a real machine, and return notes on those not measured."""
    count = range(len(machine.devices))
    planned = [PlannedTrial(WHOLE_HOST, RATES, a) for a in count]
    planned += [PlannedTrial(gpu(b), RATES, a) for a in count for b in count if a != b and machine.can_access(a, b)]
    supervisor = Supervisor(None, stop, Limits(trial=_LIMIT), progress=progress, phase="measure")
    findings = supervisor.run([[*enumerate(planned)]], importing=False)
    outcomes = {each: findings.outcomes[n] for n, each in enumerate(planned) if n in findings.outcomes}
    notes = [
        f"gpu{each.device} and {each.location} could not be measured: {outcome.error or outcome.reason}"
        for each, outcome in outcomes.items()
        if not outcome.data
    ]

    def copies(location: Location, device: int) -> dict[str, Copies | None]:
        outcome = outcomes.get(PlannedTrial(location, RATES, device))
        if outcome is None or not outcome.data:
            return {"copies": None}
        return {"copies": Copies(**{name: Rate(**rate) for name, rate in outcome.data.items()})}

    devices = [device.model_copy(update=copies(WHOLE_HOST, a)) for a, device in enumerate(machine.devices)]
    measured = queries.changed(machine, devices=devices)
    return _with_peers(measured, lambda peer, a, b: peer.model_copy(update=copies(gpu(b), a))), notes


def _with_peers(machine: Machine, change: Callable[[Peer, int, int], Peer]) -> Machine:
    rows = [[peer and change(peer, a, b) for b, peer in enumerate(row)] for a, row in enumerate(machine.peers)]
    return queries.changed(machine, peers=rows)
