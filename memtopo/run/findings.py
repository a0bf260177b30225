"""Findings counted: how much was looked at, how much of it was as declared, and what was not looked at and why."""

from __future__ import annotations

from collections.abc import Iterator

from memtopo.plans.report import Checks, Difference, Finding, Tally

SHOWN = 100
"""Differences that a report names; it counts all of them."""


class Counter:
    """Takes findings as they come, and keeps the first that differ."""

    def __init__(self) -> None:
        self._looked: dict[str, list[int]] = {}
        self._unlooked: dict[str, tuple[int, str]] = {}
        self._differences: list[Difference] = []
        self.different = 0

    def looked_at(self, aspect: str) -> int:
        """How many findings of an aspect there were."""
        return self._looked.get(aspect, [0])[0]

    def differs(self, aspect: str) -> bool:
        """Whether any finding of an aspect was not as declared."""
        looked, as_declared = self._looked.get(aspect, (0, 0))
        return looked != as_declared

    def missed(self, aspect: str) -> bool:
        """Whether anything of an aspect was not looked at."""
        return aspect in self._unlooked

    @property
    def empty(self) -> bool:
        """Whether nothing was looked at, nor missed."""
        return not self._looked

    def take(self, findings: Iterator[Finding]) -> None:
        """Count them all."""
        looked = self._looked
        for finding in findings:
            aspect, _, wanted, seen, _ = finding
            counts = looked.get(aspect) or looked.setdefault(aspect, [0, 0])
            counts[0] += 1
            if wanted == seen:
                counts[1] += 1
            else:
                self._differ(finding)

    def not_checked(self, aspect: str, count: int, why: str) -> None:
        """So many things of an aspect were not looked at."""
        before = self._unlooked.get(aspect)
        told = why if not before or why in before[1] else f"{before[1]}; {why}"
        self._unlooked[aspect] = (
            count + (before[0] if before else 0),
            before[1] if before and why in before[1] else told,
        )
        self._looked.setdefault(aspect, [0, 0])

    def checks(self) -> Checks:
        """What was counted, for a report."""
        tallies = [
            Tally(aspect, counts[0], counts[1], *self._unlooked.get(aspect, (0, None)))
            for aspect, counts in self._looked.items()
        ]
        return Checks(tuple(tallies), tuple(self._differences), self.different)

    def _differ(self, finding: Finding) -> None:
        self.different += 1
        if len(self._differences) < SHOWN:
            aspect, subject, wanted, seen, path = finding
            self._differences.append(Difference(aspect, subject, _words(wanted), _words(seen), path))


def _words(value: object) -> str:
    return value[:16].hex(" ", 4) if isinstance(value, bytes) else str(value)
