"""Choices among the alternatives of a spec (`fabric else fd`), which the trials of a machine decide."""

from __future__ import annotations

from dataclasses import dataclass

from memtopo.diagnostics.model import Path


@dataclass(frozen=True, slots=True)
class Refused:
    """Alternative that was not taken, and why."""

    alternative: str
    reason: str


@dataclass(frozen=True, slots=True)
class Choice:
    """Alternative that a field of an entry takes on a machine, and the ones before it, which do not work there.

    `subject` is the entry and the field: `chunk hot: handles`. `why` is what the trial of the taken one showed; it is
    empty if that needs no support.
    """

    subject: str
    taken: str
    why: str
    refused: tuple[Refused, ...]
    alternatives: tuple[str, ...]
    path: Path

    @property
    def text(self) -> str:
        """The choice in one line, with its reasons."""
        taken = f"{self.subject} {self.taken}" + (f" ({self.why})" if self.why else "")
        return "; ".join([taken, *(f"not {each.alternative} ({each.reason})" for each in self.refused)])
