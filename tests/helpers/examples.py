"""Numbers of random examples, which `make test-full` has more of than `make test`."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import HealthCheck, given, seed, settings
from hypothesis.strategies import SearchStrategy

FULL = settings.get_profile("full").max_examples


def examples(number: int) -> int:
    """Return the number of examples of a test that has `number` of them in `make test-full`."""
    return number * settings().max_examples // FULL


def check_block(block: int, number: int, check: Callable[..., None], *strategies: SearchStrategy[object]) -> None:
    """Check a number of random examples; where all runs draw the same ones, each block draws others."""
    tried = given(*strategies)(check)
    tried = settings(max_examples=number, deadline=None, suppress_health_check=list(HealthCheck))(tried)
    (seed(block)(tried) if settings().derandomize else tried)()
