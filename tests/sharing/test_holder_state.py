"""Shutdown of a hold: its reason, its grace and its deadline, by a clock that the test sets."""

from __future__ import annotations

import signal

from memtopo.sharing.holder.state import Shutdown


def test_a_hold_without_deadline_goes_on() -> None:
    shutdown = Shutdown(None)
    assert (shutdown.why, shutdown.signal, shutdown.remaining(1e9)) == (None, 0, None)
    assert not shutdown.due(1e9)
    assert not shutdown.complete(1e9, bound=False)


def test_a_deadline_is_due_from_its_moment_on_until_the_shutdown_begins() -> None:
    shutdown = Shutdown(10.0)
    assert [shutdown.due(now) for now in (9.5, 10.0, 11.0)] == [False, True, True]
    assert [shutdown.remaining(now) for now in (7.0, 10.0, 11.0)] == [3.0, 0.0, 0.0]
    assert shutdown.begin("deadline", 12.0)
    assert (shutdown.why, shutdown.signal, shutdown.due(11.0), shutdown.remaining(11.0)) == ("deadline", 0, False, 1.0)


def test_serving_ends_without_bound_importers_or_after_the_grace() -> None:
    shutdown = Shutdown(None)
    assert shutdown.begin("signal", 5.0, signal.SIGTERM)
    assert shutdown.signal == signal.SIGTERM
    assert shutdown.complete(1.0, bound=False)
    assert [shutdown.complete(now, bound=True) for now in (4.5, 5.0, 6.0)] == [False, True, True]


def test_the_grace_of_a_shutdown_that_has_begun_can_only_shorten() -> None:
    shutdown = Shutdown(None)
    assert shutdown.begin("release", 5.0)
    assert not shutdown.begin("signal", 9.0, signal.SIGINT)
    assert (shutdown.why, shutdown.signal, shutdown.grace_until) == ("release", 0, 5.0)
    assert not shutdown.begin("signal", 3.0, signal.SIGINT)
    assert (shutdown.why, shutdown.signal, shutdown.remaining(1.0)) == ("release", 0, 2.0)
