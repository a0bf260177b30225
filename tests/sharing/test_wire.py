"""Packets: their limits in bytes, brackets and descriptors, and what is no packet."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from memtopo.common.errors import BadPacket, InternalError
from memtopo.language import read_text
from memtopo.machine import dump
from memtopo.sharing import wire
from tests.helpers.machines import invented

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with left, right:
        yield left, right


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_packet_has_at_most_64_kib() -> None:
    empty = len(wire.encode({"text": ""}))
    assert wire.encode({"text": ""}) == b'{"memtopo":1,"text":""}'
    largest = wire.encode({"text": "x" * (wire.LARGEST - empty)})
    assert len(largest) == 64 << 10
    assert wire.decode(largest)["text"] == "x" * (wire.LARGEST - empty)
    with pytest.raises(InternalError, match=r"a packet of 65,537 bytes; the limit is 65,536"):
        wire.encode({"text": "x" * (wire.LARGEST - empty + 1)})
    with pytest.raises(ValueError, match="JSON"):
        wire.encode({"number": float("nan")})


def nested(brackets: int) -> bytes:
    """A packet of some brackets within one another, the outermost included."""
    return b'{"memtopo":1,"x":' + b"[" * (brackets - 1) + b"]" * (brackets - 1) + b"}"


def test_brackets_are_at_most_eight_deep_and_those_in_texts_do_not_count() -> None:
    assert wire.decode(nested(8))["memtopo"] == 1
    with pytest.raises(BadPacket, match=r"^more than 8 brackets within one another$"):
        wire.decode(nested(9))
    text = '[{"' * 100 + "\\"
    assert wire.decode(json.dumps({"memtopo": 1, "x": text, "y": [[text], {}]}).encode())["x"] == text
    assert wire.decode(b'{"memtopo":1,"x":[[],[],[],[],[],[],[],[],[]]}')["x"] == [[]] * 9


@pytest.mark.parametrize(
    ("data", "message", "code"),
    [
        (b"[]", "not a JSON object", "packet"),
        (b"", "not JSON in UTF-8", "packet"),
        (b'{"memtopo":1', "not JSON in UTF-8", "packet"),
        (b'{"memtopo":1,"x":"\xff"}', "not JSON in UTF-8", "packet"),
        (b'{"memtopo":1,"x":"\\\n[[[[[[[[["}', "not JSON in UTF-8", "packet"),
        (b'{"memtopo":1,"x":NaN}', "a number that is not JSON", "packet"),
        (b'{"memtopo":1,"x":-Infinity}', "a number that is not JSON", "packet"),
        (b'{"memtopo":1,"memtopo":1}', "duplicate key", "packet"),
        (b'{"memtopo":1,"x":{"y":1,"y":1}}', "duplicate key", "packet"),
        (b'{"memtopo":2}', "protocol version 2; this end uses version 1", "version"),
        (b'{"memtopo":0}', "protocol version 0; this end uses version 1", "version"),
        (b'{"memtopo":999}', "protocol version 999; this end uses version 1", "version"),
        (b'{"memtopo":1000}', "protocol version unknown; this end uses version 1", "version"),
        (b'{"memtopo":-1}', "protocol version unknown; this end uses version 1", "version"),
        (b'{"memtopo":"1"}', "protocol version unknown; this end uses version 1", "version"),
        (b'{"memtopo":true}', "protocol version True; this end uses version 1", "version"),
        (b"{}", "protocol version unknown; this end uses version 1", "version"),
    ],
)
def test_what_is_no_packet_is_refused_and_its_descriptors_are_closed(
    pair: Pair, data: bytes, message: str, code: str
) -> None:
    with pytest.raises(BadPacket) as refused:
        wire.decode(data)
    assert (refused.value.message, refused.value.code) == (message, code)
    before = descriptors()
    if data:
        wire.send(pair[0], data, [0, 1])
        with pytest.raises(BadPacket, match=message):
            wire.receive(pair[1])
    assert descriptors() == before


def test_descriptors_arrive_in_order_and_belong_to_the_packet(pair: Pair) -> None:
    before = descriptors()
    pipes = [os.pipe() for _ in range(3)]
    wire.send(pair[0], wire.encode({"x": 1}), [read for read, _ in pipes])
    packet = wire.receive(pair[1])
    assert packet
    assert (packet.message, len(packet.fds)) == ({"memtopo": 1, "x": 1}, 3)
    assert not any(os.get_inheritable(fd) for fd in packet.fds)
    for index, (read, write) in enumerate(pipes):
        os.write(write, bytes([index]))
        os.close(read)
        os.close(write)
    assert [os.read(fd, 2) for fd in packet.fds] == [b"\0", b"\1", b"\2"]
    packet.close()
    assert packet.fds == []
    packet.close()
    assert descriptors() == before


def test_a_packet_carries_253_descriptors_and_one_over_64_kib_is_refused(pair: Pair) -> None:
    before = descriptors()
    wire.send(pair[0], wire.encode({}), [0] * 253)
    packet = wire.receive(pair[1])
    assert packet
    assert len(packet.fds) == 253
    packet.close()
    for data in (bytes((64 << 10) + 1), b" " * (70 << 10)):
        pair[0].sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, bytes(4))])
        with pytest.raises(BadPacket, match=r"^more than 65,536 bytes$"):
            wire.receive(pair[1])
    assert descriptors() == before


def test_receive_does_not_block_and_tells_the_end_from_silence(pair: Pair) -> None:
    with pytest.raises(BlockingIOError):
        wire.receive(pair[1])
    assert not wire.unread(pair[0])
    wire.send(pair[0], wire.encode({}))
    assert (wire.unread(pair[0]), wire.unread(pair[1])) == (True, False)
    assert wire.receive(pair[1])
    assert not wire.unread(pair[0])
    pair[0].close()
    assert wire.receive(pair[1]) is None


def filled(sock: socket.socket, data: bytes) -> int:
    """Send a packet as often as the queue of the other end takes it, and return how often."""
    for sent in range(10_000):
        try:
            wire.send(sock, data)
        except BlockingIOError:
            return sent
    raise AssertionError("the queue is never full")


def test_send_does_not_block_and_sends_a_whole_packet_or_nothing(pair: Pair) -> None:
    data = wire.encode({"text": "x" * 60_000})
    sent = filled(pair[0], data)
    assert sent > 1
    for _ in range(sent):
        packet = wire.receive(pair[1])
        assert packet
        assert len(packet.message["text"]) == 60_000
    with pytest.raises(BlockingIOError):
        wire.receive(pair[1])


def test_a_send_to_a_closed_end_is_an_error_and_no_signal(pair: Pair) -> None:
    pair[1].close()
    with pytest.raises(BrokenPipeError):
        wire.send(pair[0], wire.encode({}))


def test_closing_ignores_descriptors_that_are_closed() -> None:
    read, write = os.pipe()
    before = descriptors()
    os.close(read)
    wire.close_all([read, write])
    assert descriptors() == before - 2


def test_a_source_has_a_spec_with_its_file_its_machine_and_its_settings_if_there_are_any() -> None:
    spec = b"memtopo: 1\nname: kv\nparams: {pages: 2}\nranges: {kv: {size: $pages MiB}}\n"
    plain, changed = (read_text(spec, "kv.yaml", settings) for settings in ({}, {"pages": "3"}))
    text = wire.layout_source(changed, invented(1))
    found = wire.parsed_source(text)
    assert (found.name, found.settings, found.document.settings) == ("kv.yaml", {"pages": "3"}, {"pages": "3"})
    assert found.machine == dump(invented(1))
    assert "settings" not in json.loads(wire.layout_source(plain, invented(1)))
    assert wire.layout_source(replace(plain, text="x" * wire.LONGEST_SOURCE), invented(1)) == ""
