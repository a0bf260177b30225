"""Signs of life of agents, by the time at which the driver asks and looks."""

from __future__ import annotations

from concurrent.futures import Future

from memtopo.run.nodes.heartbeat import Heartbeat


class Agent:
    """Futures of the questions that were asked."""

    def __init__(self) -> None:
        self.asked: list[Future[str]] = []

    def ask(self) -> Future[str]:
        self.asked.append(Future())
        return self.asked[-1]


def test_an_agent_is_asked_again_a_while_after_its_answer() -> None:
    agent = Agent()
    heartbeat = Heartbeat(agent.ask, every=1, now=0)
    assert [*heartbeat.answers(0.5)] == []
    assert not agent.asked
    assert [*heartbeat.answers(1.5)] == []
    agent.asked[0].set_result("map")
    assert [*heartbeat.answers(2)] == ["map"]
    assert [*heartbeat.answers(2.9)] == []
    assert len(agent.asked) == 1
    assert [*heartbeat.answers(3.1)] == []
    assert len(agent.asked) == 2


def test_silence_is_the_time_for_which_a_question_has_no_answer() -> None:
    agent = Agent()
    heartbeat = Heartbeat(agent.ask, every=1, now=0)
    assert heartbeat.silence(5) == 0
    assert [*heartbeat.answers(2)] == []
    assert heartbeat.silence(9) == 7


def test_a_question_that_failed_is_asked_again_and_counts_from_the_first_on() -> None:
    agent = Agent()
    heartbeat = Heartbeat(agent.ask, every=1, now=0)
    assert [*heartbeat.answers(2)] == []
    agent.asked[0].set_exception(OSError())
    assert [*heartbeat.answers(3)] == []
    assert len(agent.asked) == 2
    assert heartbeat.silence(6) == 4


def test_an_agent_is_not_silent_while_the_driver_looks_away() -> None:
    """Neither one that was not asked, nor one that has answered meanwhile."""
    agent = Agent()
    heartbeat = Heartbeat(agent.ask, every=1, now=0)
    assert [*heartbeat.answers(30)] == []
    assert heartbeat.silence(30) == 0
    agent.asked[0].set_result("create")
    assert [*heartbeat.answers(90)] == ["create"]
    assert heartbeat.silence(90) == 0
