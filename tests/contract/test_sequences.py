"""Facts by the shortest sequences that show them, in the notation of the differential test.

Each in `sequences.txt` was found by that test and minimised on a GPU; the answers are the hardware's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from memtopo.driver.ledger import Ledger
from tests.contract.memory import current
from tests.differential.calls import compiled
from tests.differential.resource_calls import needs_of
from tests.differential.resources import ResourceSession
from tests.differential.session import Session
from tests.differential.traces import parse


class Shown(NamedTuple):
    """A rule and the sequence that shows it."""

    rule: str
    sequence: str

    @property
    def gpus(self) -> int:
        """GPUs that the sequence names."""
        return 1 + ("gpu1" in self.sequence)


def sequences(text: str) -> Iterator[Shown]:
    """Rules, each followed by its sequence, whose lines are indented."""
    for part in re.split(r"\n(?=\S)", text.strip()):
        rule, _, sequence = part.partition("\n")
        yield Shown(rule, sequence)


SHOWN = tuple(sequences(Path(__file__).with_name("sequences.txt").read_text()))


@pytest.mark.parametrize("shown", SHOWN, ids=lambda shown: shown.rule)
def test_a_sequence_is_answered_as_on_hardware(shown: Shown, driver: Ledger) -> None:
    """Facts 20, 42, 47 and 62 to 71."""
    if driver.device_get_count() < shown.gpus:
        pytest.skip("needs two GPUs")
    (trace,) = parse(shown.sequence.splitlines())
    with ExitStack() as stack:
        contexts = [stack.enter_context(current(driver, device)) for device in range(driver.device_get_count())]
        for _ in contexts:
            driver.ctx_pop_current()
        resources = needs_of(step.call for step in trace.steps).resources
        session = ResourceSession(driver, contexts) if resources else Session(driver, contexts)
        answered = [compiled(step.call)(session) for step in trace.steps]
        assert session.close()
        for context in contexts:
            driver.ctx_push_current(context)
    assert answered == [step.answer for step in trace.steps]
