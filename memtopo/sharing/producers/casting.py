"""From a spec to scripts: what each holder of another API's objects would have to be."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from memtopo.geometry import ExternalObject, Geometry, ImportedSemaphore
from memtopo.sharing.playing.script import Memory, Script, Semaphore


def scripts(members: Iterable[Geometry], machine: str, gpus: Sequence[str]) -> dict[str, Script]:
    """A script for each holder that goes by a name of its own. `gpus` are UUIDs by ordinal, as hex text.

    Of what is declared several times, the first counts; waits and signals are all of them.
    """
    memory: dict[str, dict[str, Memory]] = {}
    semaphores: dict[str, dict[str, Semaphore]] = {}
    for run in (run for member in members for run in member.foreign):
        (holder,), name, gpu = run.origin.holders, run.origin.export, gpus[run.place.id]
        made, signals = memory.setdefault(holder, {}), semaphores.setdefault(holder, {})
        match run:
            case ExternalObject():
                made.setdefault(name, Memory(name, run.size, gpu, run.dedicated))
            case ImportedSemaphore():
                before = signals.setdefault(name, Semaphore(name, run.timeline, gpu, run.wait, run.signal))
                highest = _highest(before.wait, run.wait), _highest(before.signal, run.signal)
                signals[name] = replace(before, wait=highest[0], signal=highest[1])
    return {
        holder: Script(machine, tuple(found.values()), tuple(semaphores[holder].values()))
        for holder, found in memory.items()
        if "/" not in holder
    }


def _highest(*values: int | None) -> int | None:
    """The highest of the values that there are: a timeline that is there has passed all others."""
    return max((value for value in values if value is not None), default=None)
