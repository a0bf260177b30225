"""The processes of a layout while they come: who has a place, and who is of the same program."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from memtopo.common import __version__
from memtopo.common.errors import Exit, Unavailable
from memtopo.driver.handles import Handle
from memtopo.language import SpecText, read_text
from memtopo.run.processes.gathering import Gathering, Join, NotComplete, NotJoined
from memtopo.session.composition import Composition
from memtopo.sharing.channel import Channel
from tests.helpers.child_process import PATIENCE
from tests.helpers.holders import until
from tests.helpers.processes import open_descriptors

SPEC = b"""
memtopo: 1
name: team
processes:
  rank: {count: 2, chunks: {c: {location: gpu0, size: 2MiB}}}
  server: {chunks: {c: {location: gpu0, size: 2MiB}}}
"""


class Team:
    """A gathering that waits in a thread, and processes that come to it."""

    def __init__(self, path: Path, listener: socket.socket, pool: ThreadPoolExecutor, stack: ExitStack) -> None:
        self.stopped = threading.Event()
        self.gathering = Gathering(PATIENCE, self.stopped.is_set)
        self.waiting: Future[Composition] = pool.submit(self.gathering.wait, listener)
        self.listener, self._path, self._stack = listener, path, stack

    def connect(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._stack.callback(sock.close)
        sock.connect(str(self._path))
        return sock

    def come(
        self,
        process: str,
        world: int | None = None,
        machine: str = "h200x4",
        version: str = __version__,
        record: str | None = None,
        handles: Sequence[Handle] = (),
        text: bytes = SPEC,
    ) -> Channel[Any]:
        channel: Channel[Any] = Channel(self.connect(), (NotJoined,))
        spec = SpecText.of(read_text(text, "team.yaml"))
        channel.send(Join(version, process, spec, machine, record, (), "fast", PATIENCE, world), handles)
        return channel

    @property
    def joined(self) -> list[str]:
        return [*self.gathering.joined]


@pytest.fixture
def team(tmp_path: Path) -> Iterator[Team]:
    path = tmp_path / "team.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener, ThreadPoolExecutor() as pool:
        listener.bind(str(path))
        listener.listen()
        with ExitStack() as stack:
            found = Team(path, listener, pool, stack)
            stack.callback(found.stopped.set)
            yield found
        found.waiting.exception(PATIENCE)
        found.gathering.refuse(NotComplete("the test is over"))


def test_another_process_takes_the_place_of_one_that_ended_before_all_came(team: Team) -> None:
    first = team.come("rank.0")
    until(lambda: team.joined == ["rank.0"])
    first.close()
    until(lambda: team.joined == [])
    team.come("rank.0")
    until(lambda: team.joined == ["rank.0"])


def test_processes_of_a_corrected_spec_take_the_place_of_all_that_ended_before(team: Team) -> None:
    first = team.come("rank.0")
    until(lambda: team.joined == ["rank.0"])
    first.close()
    until(lambda: team.joined == [])
    team.come("rank.2", text=SPEC.replace(b"count: 2", b"count: 3"))
    until(lambda: team.joined or team.waiting.done())
    assert team.joined == ["rank.2"]


def test_a_connection_without_a_process_is_closed_and_no_reason_to_refuse_others(team: Team) -> None:
    stranger = team.connect()
    stranger.send(b"GET / HTTP/1.1")
    stranger.settimeout(PATIENCE)
    assert stranger.recv(1) == b""
    team.come("rank.0")
    until(lambda: team.joined or team.waiting.done())
    assert team.joined == ["rank.0"]


def test_the_processes_of_a_launcher_are_those_of_one_entry(team: Team) -> None:
    team.come("rank.0", world=2)
    until(lambda: team.joined or team.waiting.done())
    assert team.joined == ["rank.0"]
    team.come("rank.1", world=3)
    with pytest.raises(NotComplete, match="one of 3 processes of its launcher, but the spec has 2"):
        team.waiting.result(PATIENCE)


@pytest.mark.parametrize(
    ("process", "other", "message"),
    [
        ("rank.1", {"machine": "h100x1"}, "rank.1 .* is for another machine, h100x1, than rank.0"),
        ("rank.1", {"record": "{}"}, "rank.1 .* is for another machine, h200x4, than rank.0"),
        ("rank.1", {"version": "0.0"}, "rank.1 .* has memtopo 0.0, and the coordinator"),
        ("rank.0", {}, "rank.0 has joined twice"),
        ("rank.2", {}, "rank.2 .* is not a process of the layout"),
    ],
)
def test_a_process_that_does_not_fit_is_the_reason_for_which_all_that_came_are_refused(
    team: Team, process: str, other: dict[str, Any], message: str
) -> None:
    came = [team.come("rank.0")]
    until(lambda: team.joined == ["rank.0"])
    came.append(team.come(process, **other))
    with pytest.raises(NotComplete, match=message) as refused:
        team.waiting.result(PATIENCE)
    came += [team.come("rank.1"), team.come("server")]  # nobody has accepted their connections
    team.gathering.refuse(refused.value, team.listener)
    for each in came:
        assert each.wait(PATIENCE)
        answer = each.receive()
        assert answer
        assert answer.message == NotJoined(refused.value.message, refused.value.hint, 4)


def test_processes_are_refused_with_the_status_and_the_hint_of_the_error(team: Team) -> None:
    came = team.come("rank.0")
    until(lambda: team.joined == ["rank.0"])
    team.stopped.set()
    with pytest.raises(NotComplete, match="the coordinator of the layout was stopped"):
        team.waiting.result(PATIENCE)
    team.gathering.refuse(Unavailable("no GPU", hint="look for one"))
    assert came.wait(PATIENCE)
    answer = came.receive()
    assert answer
    assert answer.message == NotJoined("no GPU", "look for one", Exit.UNAVAILABLE)


def test_descriptors_that_come_with_a_process_are_closed(team: Team) -> None:
    before = open_descriptors()
    team.come("rank.0", handles=[Handle(fd=os.dup(0))])
    until(lambda: team.joined == ["rank.0"])
    assert open_descriptors() == before + 2  # both ends of the connection
