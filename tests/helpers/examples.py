"""Numbers of random examples, which `make test-full` has more of than `make test`."""

from __future__ import annotations

from hypothesis import settings

FULL = settings.get_profile("full").max_examples


def examples(number: int) -> int:
    """Return the number of examples of a test that has `number` of them in `make test-full`."""
    return number * settings().max_examples // FULL
