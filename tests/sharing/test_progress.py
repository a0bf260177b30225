"""A client that waits for a switch or a check is notified of its progress."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from memtopo.common.errors import ExchangeError
from memtopo.common.processes import RunningClock
from memtopo.plans.progress import CountedProgress, PhasePart
from memtopo.plans.report import Checks
from memtopo.sharing.client import Client, connect
from memtopo.sharing.endpoints import endpoint
from memtopo.sharing.holder.clients import ClientConnection
from memtopo.sharing.holder.state import ProgressNotices, Supervision
from memtopo.sharing.sockets import peer
from tests.helpers.holders import holding, next_message, scripted
from tests.helpers.memfd_exports import OneState, PlannedState

ANSWER: dict[str, Any] = {
    "name": "kv", "state": "asleep", "kept": [], "checks": {"tallies": [], "differences": [], "different": 0},
}  # fmt: skip


@dataclass
class Recorded(CountedProgress):
    """Keeps the phases with their counts."""

    found: list[tuple[str, PhasePart]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def advance(self, steps: int, process: str = "") -> None:
        super().advance(steps, process)
        if state := self.state:
            self.found.append((state.name, state.whole))


class Slow(OneState):
    """A layout whose work takes seconds by the clock of its notices."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.notices = ProgressNotices(lambda: self.now)

    def work(self, phase: str, seconds: Sequence[float]) -> None:
        self.notices.phase(phase, 100)
        for each in seconds:
            self.now += each
            self.notices.advance(10)
        self.notices.end()

    def check(self) -> Checks:
        self.work("check", [0.5] * 10)
        return super().check()

    def switch(self, state: str) -> PlannedState:
        return SlowState(self, state)


class SlowState(PlannedState):
    """A switch of such a layout."""

    def make(self, *, full: bool, in_use: frozenset[str] = frozenset()) -> Checks:
        assert isinstance(self.layout, Slow)
        self.layout.work("change", [0.4] * 10)
        del full, in_use
        self.layout.state = self.state
        return OneState.check(self.layout)


@pytest.fixture
def layout() -> Iterator[Slow]:
    found = Slow()
    yield found
    os.close(found.memory)


@contextmanager
def client(layout: Slow) -> Iterator[Client]:
    with holding(layout, supervision=Supervision(progress=layout.notices)), connect(endpoint("kv")) as found:
        yield found


def test_the_requester_of_a_switch_or_a_check_is_notified_each_second(runtime: Path, layout: Slow) -> None:
    del runtime
    hooks = Recorded()
    with client(layout) as found, found.followed(hooks):
        assert found.switch("asleep").state == "asleep"
        assert hooks.found == [("change", PhasePart(done, 100)) for done in (30, 60, 90)]
        hooks.found.clear()
        found.check()
        assert hooks.found == [("check", PhasePart(done, 100)) for done in (20, 40, 60, 80, 100)]


def test_a_client_whose_request_is_answered_gets_no_notice_of_later_work(runtime: Path, layout: Slow) -> None:
    del runtime
    hooks = Recorded()
    with client(layout) as found, found.followed(hooks):
        assert found.switch("asleep").state == "asleep"
        hooks.found.clear()
        layout.work("renew", [2.0] * 3)
        assert found.status().layout_state == "asleep"
        assert hooks.found == []


def test_short_work_sends_no_notice_and_other_clients_get_none(runtime: Path, layout: Slow) -> None:
    del runtime
    hooks = Recorded()
    with client(layout) as found, connect(endpoint("kv")) as other, other.followed(hooks):
        found.switch("asleep")
        found.check()
        layout.notices.phase("change", 3)
        layout.now += 100
        layout.notices.advance(3)  # of no request
        assert other.status().layout_state == "asleep"
    assert hooks.found == []


@pytest.mark.parametrize(
    "wrong", [{"phase": "p" * 65}, {"phase": 1}, {"done": -1}, {"done": 1 << 80}, {"total": None}, {"total": True}]
)
def test_a_malformed_notice_of_progress_ends_the_connection(wrong: dict[str, Any]) -> None:
    notice = {"notice": "progress", "phase": "change", "done": 1, "total": 2} | wrong
    packets = (notice, ()), ({"ok": ANSWER}, ())
    with scripted(*packets) as client, pytest.raises(ExchangeError, match="cannot be trusted"):
        client.switch("asleep")


def test_counts_that_shrink_begin_the_phase_again() -> None:
    packets = [
        {"notice": "progress", "phase": "change", "done": done, "total": of} for done, of in ((4, 9), (8, 9), (2, 5))
    ]
    hooks = Recorded()
    with scripted(*((each, ()) for each in (*packets, {"ok": ANSWER}))) as found:
        with found.followed(hooks):
            found.switch("asleep")
        assert [part for _, part in hooks.found] == [PhasePart(4, 9), PhasePart(8, 9), PhasePart(2, 5)]


def test_a_total_that_shrinks_is_that_of_the_phase_before() -> None:
    packets = [{"notice": "progress", "phase": "change", "done": done, "total": 9 - done} for done in (1, 2)]
    hooks = Recorded()
    with scripted(*((each, ()) for each in (*packets, {"ok": ANSWER}))) as found:
        with found.followed(hooks):
            found.switch("asleep")
        assert [part for _, part in hooks.found] == [PhasePart(1, 8), PhasePart(2, 8)]


def test_a_client_that_follows_nothing_any_more_ignores_the_progress(runtime: Path, layout: Slow) -> None:
    del runtime
    hooks = Recorded()
    with client(layout) as found:
        with found.followed(hooks):
            pass
        assert found.switch("asleep").state == "asleep"
        assert found.notice() is None
    assert hooks.found == []


def test_a_client_that_has_gone_stops_neither_the_work_nor_the_notices_of_another(layout: Slow) -> None:
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]
    (gone, first), (other, second) = pairs
    with first, other, second:
        gone.close()
        receivers = (ClientConnection(id, each, peer(each), RunningClock()) for id, each in enumerate((first, second)))
        with layout.notices.to(*receivers):
            layout.notices.volume("zero", 9)
            layout.now += 2
            layout.notices.advance(3)  # bytes, of which no notice has a count
            layout.work("check", [1.0, 1.0])
        assert [next_message(other)["done"] for _ in range(2)] == [10, 20]
