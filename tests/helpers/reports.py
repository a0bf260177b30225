"""Parts of reports that tests compare."""

from __future__ import annotations

from memtopo.api import Held, Live
from memtopo.plans.report import Checks, Tally


def tallies(checks: Checks | None) -> dict[str, Tally]:
    """Tallies of a report by their aspect."""
    assert checks
    return {tally.aspect: tally for tally in checks.tallies}


def require_taken_down(layout: Live | Held) -> None:
    """Require that a layout was as declared, and that nothing of it is left."""
    assert layout.report
    assert (layout.report.outcome, layout.report.leaks) == ("ok", ())
