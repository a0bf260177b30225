"""Liveness of agents, by the times at which the driver polls them and reads their answers."""

from __future__ import annotations

from concurrent.futures import Future

from memtopo.run.nodes.driver import Heartbeat


class Agent:
    """Futures of the polls."""

    def __init__(self) -> None:
        self.polls: list[Future[str]] = []

    def poll(self) -> Future[str]:
        self.polls.append(Future())
        return self.polls[-1]


def test_an_agent_is_polled_again_an_interval_after_its_answer() -> None:
    agent = Agent()
    heartbeat = Heartbeat(agent.poll, every=1, now=0)
    assert [*heartbeat.answers(0.5)] == []
    assert not agent.polls
    assert [*heartbeat.answers(1.5)] == []
    agent.polls[0].set_result("map")
    assert [*heartbeat.answers(2)] == ["map"]
    assert [*heartbeat.answers(2.9)] == []
    assert len(agent.polls) == 1
    assert [*heartbeat.answers(3.1)] == []
    assert len(agent.polls) == 2


def test_silence_is_the_time_for_which_a_poll_has_no_answer() -> None:
    agent = Agent()
    heartbeat = Heartbeat(agent.poll, every=1, now=0)
    assert heartbeat.silence(5) == 0
    assert [*heartbeat.answers(2)] == []
    assert heartbeat.silence(9) == 7


def test_a_poll_that_failed_is_repeated_and_counts_from_the_first_on() -> None:
    agent = Agent()
    heartbeat = Heartbeat(agent.poll, every=1, now=0)
    assert [*heartbeat.answers(2)] == []
    agent.polls[0].set_exception(OSError())
    assert [*heartbeat.answers(3)] == []
    assert len(agent.polls) == 2
    assert heartbeat.silence(6) == 4


def test_an_agent_is_not_silent_while_the_driver_reads_no_answers() -> None:
    """Neither one that was not polled, nor one that has answered meanwhile."""
    agent = Agent()
    heartbeat = Heartbeat(agent.poll, every=1, now=0)
    assert [*heartbeat.answers(30)] == []
    assert heartbeat.silence(30) == 0
    agent.polls[0].set_result("create")
    assert [*heartbeat.answers(90)] == ["create"]
    assert heartbeat.silence(90) == 0
