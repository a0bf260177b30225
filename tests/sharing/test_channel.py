"""Typed messages between a process and its children, over real sockets."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from memtopo import machine as machines
from memtopo.common.errors import BadPacket
from memtopo.driver.handles import Handle
from memtopo.language.limits import LARGEST_FILE
from memtopo.sharing import wire
from memtopo.sharing.channel import LARGEST, Channel, Received


@dataclass(frozen=True, slots=True)
class Text:
    """A text."""

    text: str


@dataclass(frozen=True, slots=True)
class Pair:
    """Two numbers, and texts."""

    numbers: tuple[int, int]
    texts: tuple[Text, ...] = ()


@dataclass(frozen=True, slots=True)
class Unknown:
    """A message of another conversation."""


@pytest.fixture
def ends() -> Iterator[tuple[Channel[Text | Pair], Channel[Text | Pair]]]:
    """Two ends of one channel."""
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    channels = Channel[Text | Pair](left, (Text, Pair)), Channel[Text | Pair](right, (Text, Pair))
    yield channels
    for channel in channels:
        channel.close()


Ends = tuple[Channel[Text | Pair], Channel[Text | Pair]]


def test_the_largest_spec_of_quotes_fits_into_a_message(ends: Ends) -> None:
    left, right = ends
    left.send(Text('"' * LARGEST_FILE))
    received = right.receive()
    assert received
    assert isinstance(received.message, Text)
    assert received.message.text == '"' * LARGEST_FILE
    assert 2 * LARGEST_FILE + 2 * machines.LARGEST_FILE < LARGEST


def pipe_content(fd: int) -> bytes:
    content = os.read(fd, 10)
    os.close(fd)
    return content


def filled_pipe(content: bytes) -> int:
    read, write = os.pipe()
    os.write(write, content)
    os.close(write)
    return read


@pytest.mark.parametrize(
    "message", [Text(""), Text('"\\\u00e9\U0001f600' * 3000), Text("x" * 300_000), Pair((1, 2), (Text("a"),))]
)
def test_a_message_arrives_as_it_was_sent(ends: Ends, message: Text | Pair) -> None:
    ends[0].send(message)
    received = ends[1].receive()
    assert received
    assert received.message == message
    assert received.handles == []


def test_a_message_without_handles_has_none_to_close() -> None:
    received = Received(Text("a"))
    received.close()
    assert received.handles == ()


@pytest.mark.parametrize("length", [1, 300_000])
def test_descriptors_arrive_in_their_order_and_are_closed_here(ends: Ends, length: int) -> None:
    before = len(os.listdir("/proc/self/fd"))
    ends[0].send(Text("x" * length), [Handle(fd=filled_pipe(b"a")), Handle(fd=filled_pipe(b"b"), offset=512)])
    received = ends[1].receive()
    assert received
    assert [pipe_content(handle.fd) for handle in received.handles if handle.fd is not None] == [b"a", b"b"]
    assert [handle.offset for handle in received.handles] == [0, 512]
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("length", [1, 300_000])
def test_secrets_arrive_in_their_order(ends: Ends, length: int) -> None:
    ends[0].send(Text("x" * length), [Handle.of(b"a" * 64), Handle.of(b"b" * 64)])
    received = ends[1].receive()
    assert received
    assert [handle.shared for handle in received.handles] == [b"a" * 64, b"b" * 64]


def test_what_does_not_fit_is_queued_and_keeps_its_order(ends: Ends) -> None:
    count = 0
    while not ends[0].pending:
        ends[0].send(Pair((count, 0), (Text("x" * 5000),)))
        count += 1
    ends[0].drain(0.01)
    assert ends[0].pending
    for index in range(count):
        ends[0].flush()
        received = ends[1].receive()
        assert received
        assert isinstance(received.message, Pair)
        assert received.message.numbers[0] == index
    assert not ends[0].pending


def test_receive_does_not_block(ends: Ends) -> None:
    assert not ends[1].wait(0.0)
    with pytest.raises(BlockingIOError):
        ends[1].receive()


def test_a_closed_end_takes_everything_and_gives_none(ends: Ends) -> None:
    before = len(os.listdir("/proc/self/fd"))
    ends[1].close()
    ends[0].send(Text("lost"), [Handle(fd=filled_pipe(b"a"))])
    assert not ends[0].pending
    assert len(os.listdir("/proc/self/fd")) == before - 1
    assert ends[0].wait(0.0)
    assert ends[0].receive() is None


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"message": "Unknown", "fields": "{}"},
        {"message": ["Text"], "fields": "{}"},
        {"message": "Text", "fields": "{}"},
        {"message": "Text", "fields": '{"text": 1}'},
        {"message": "Text", "fields": "no JSON"},
        {"message": "Text", "fields": {"text": "x"}},
        {"message": "Text"},
        {"message": "Text", "fields": '{"text": "x"}'},
        {"message": "Text", "fields": '{"text": "x"}', "handles": []},
        {"message": "Text", "fields": '{"text": "x"}', "handles": [{"offset": 0}, {"offset": 0}]},
        {"message": "Text", "fields": '{"text": "x"}', "handles": [{"offset": -1}]},
        {"message": "Text", "fields": '{"text": "x"}', "handles": [{"offset": 0, "secret": "eA=="}]},
    ],
)
def test_what_is_no_message_of_the_conversation_is_refused_and_its_descriptors_closed(
    message: dict[str, object],
) -> None:
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pipe = filled_pipe(b"")
    with left, right:
        before = len(os.listdir("/proc/self/fd"))
        wire.send(left, wire.encode(message), [pipe])
        with pytest.raises(BadPacket):
            Channel[Text](right, (Text,)).receive()
        assert len(os.listdir("/proc/self/fd")) == before
    os.close(pipe)


def test_a_message_of_another_conversation_is_refused(ends: Ends) -> None:
    ends[0].send(Unknown())
    with pytest.raises(BadPacket):
        ends[1].receive()


LIMITED = """
import os, resource, socket
from memtopo.driver.handles import Handle
from memtopo.run.messages import HandleAnswer
from memtopo.sharing.channel import Channel

ANSWER = HandleAnswer("reader")
left, right = (Channel(each, [HandleAnswer]) for each in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
left.send(ANSWER)
assert right.receive().message == ANSWER  # before the other user, who may not read what is imported for it
os.setresuid(65534, 65534, 65534)
unread = socket.socketpair()
socket.send_fds(unread[0], [b"0"], [0] * 200)
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
left.send(ANSWER, [Handle(fd=os.dup(0))])
assert left.pending
for each in unread:
    each.close()
left.flush()
received = right.receive()
assert (received.message, len(received.handles)) == (ANSWER, 1)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_a_message_waits_while_the_system_limits_descriptors_in_flight() -> None:
    done = subprocess.run([sys.executable, "-c", LIMITED], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def fill(channel: Channel[Text | Pair]) -> int:
    """Send messages until one is queued, and return their number."""
    count = 0
    while not channel.pending:
        channel.send(Pair((count, 0), (Text("x" * 5000),)))
        count += 1
    return count


def test_queued_messages_are_sent_by_the_channel_for_other_types_that_takes_their_place(ends: Ends) -> None:
    count = fill(ends[0])
    other = ends[0].expecting((Unknown,))
    for index in range(count):
        other.flush()
        received = ends[1].receive()
        assert received
        assert isinstance(received.message, Pair)
        assert received.message.numbers[0] == index
    assert not other.pending
    ends[1].send(Unknown())
    unknown = other.receive()
    assert unknown
    assert unknown.message == Unknown()


def test_the_descriptors_of_queued_messages_are_closed_with_the_channel(ends: Ends) -> None:
    before = len(os.listdir("/proc/self/fd"))
    fill(ends[0])
    ends[0].send(Text("queued"), [Handle(fd=filled_pipe(b"a"))])
    assert len(os.listdir("/proc/self/fd")) == before + 1
    ends[0].close()
    assert len(os.listdir("/proc/self/fd")) == before - 1


def test_a_channel_with_queued_messages_is_readable_only_if_one_has_arrived(ends: Ends) -> None:
    """And the wait sends what there is room for."""
    count = fill(ends[0])
    assert not ends[0].wait(0.0)
    ends[1].send(Text("arrived"))
    assert ends[0].wait(0.0)
    received = ends[0].receive()
    assert received
    assert received.message == Text("arrived")
    for _ in range(count - 1):
        assert ends[1].receive()
    assert ends[0].pending
    assert not ends[0].wait(0.0)
    assert not ends[0].pending
    assert ends[1].receive()


def test_the_last_messages_of_an_end_that_closed_without_reading_are_received(ends: Ends) -> None:
    ends[0].send(Text("unread"))
    ends[1].send(Text("last"))
    ends[1].close()
    received = ends[0].receive()
    assert received
    assert received.message == Text("last")
    assert ends[0].receive() is None
