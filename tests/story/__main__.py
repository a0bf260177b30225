"""Simulates stories until the time is over: `python -m tests.story --seconds 60 --seed 1`."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator

from tests.story.coverage import Reached, lines
from tests.story.director import Situation
from tests.story.nodes import tell_run
from tests.story.notation import written
from tests.story.shrink import shrink
from tests.story.story import LENGTH, Told, apart, tell


def main() -> int:
    """Tell stories, and return 1 if one fails, whose shortest form is printed."""
    parser = argparse.ArgumentParser(prog="python -m tests.story", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="seconds after which no further story begins")
    parser.add_argument("--seed", type=int, default=1, help="seed of the first story")
    parser.add_argument("--stories", type=int, default=sys.maxsize, help="most stories")
    parser.add_argument("--events", type=int, default=LENGTH, help="events of each story")
    parser.add_argument("--trace", action="store_true", help="print all that happens")
    parser.add_argument("--nodes", action="store_true", help="tell runs of layouts on several nodes, not stories")
    given = parser.parse_args()
    return apart(lambda: _run_nodes(given) if given.nodes else _simulate(given))


def _run_nodes(given: argparse.Namespace) -> int:
    outcomes: Counter[str] = Counter()
    begun = time.monotonic()
    while time.monotonic() < begun + given.seconds and outcomes.total() < given.stories:
        told = tell_run(given.seed + outcomes.total())
        outcomes[told.outcome] += 1
        if given.trace or told.failure:
            print("\n".join((*told.trace, *(f"    {event!r}," for event in told.events), told.failure)))
        if told.failure:
            print(f"seed {told.seed} fails")
            return 1
    print(f"{outcomes.total()} runs from seed {given.seed} on: {dict(outcomes)}")
    return 0


def _simulate(given: argparse.Namespace) -> int:
    seen: Counter[Situation] = Counter()
    reached: Reached = Counter()
    begun, stories, events, reads = time.monotonic(), 0, 0, 0
    while time.monotonic() < begun + given.seconds and stories < given.stories:
        told = tell(given.seed + stories, length=given.events)
        stories, events, reads, seen = stories + 1, events + len(told.events), reads + told.reads, seen + told.seen
        reached += told.reached
        if given.trace:
            print("\n".join(told.trace))
        if told.failure:
            print(f"seed {told.seed} fails: {told.reason}\n\nshortest story:\n")
            shortest = shrink(told)
            print("\n".join(_listed(shortest)))
            return 1
    seconds = time.monotonic() - begun
    print("\n".join((*_covered(seen), "", "reached:", *lines(reached))))
    rate = f"{stories / seconds:.1f} stories and {events / seconds:.0f} events a second"
    print(f"\n{stories} stories from seed {given.seed} on, {events} events, {reads} reads compared: {rate}")
    return 0


def _listed(told: Told) -> Iterator[str]:
    """Lines of what happens, of the story as `found.txt` has it, and of the failure."""
    yield from told.trace
    yield f"\n{written('…', told.seed, told.events)}\n\n{told.failure}"


def _covered(seen: Counter[Situation]) -> Iterator[str]:
    """Lines of the situations in which each event happened, by the state of the holder."""
    holders = sorted({holder for holder, _, _ in seen})
    verbs = sorted({verb for _, _, verb in seen})
    yield f"{len(seen)} situations (holder, actor, event); events by the state of the holder:"
    yield f"{'':10}" + "".join(f"{holder:>10}" for holder in holders)
    for verb in verbs:
        counts = (
            sum(count for (one, _, what), count in seen.items() if (one, what) == (holder, verb)) for holder in holders
        )
        yield f"{verb:10}" + "".join(f"{count or '-':>10}" for count in counts)


sys.exit(main())
