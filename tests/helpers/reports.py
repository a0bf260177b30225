"""Parts of reports that tests compare."""

from __future__ import annotations

from memtopo.plans.report import Checks, Tally


def tallies(checks: Checks | None) -> dict[str, Tally]:
    """Tallies of a report by their aspect."""
    assert checks
    return {tally.aspect: tally for tally in checks.tallies}
