"""Packets that are almost right, to a holder and to a client: no crash, no hang, nothing left, nothing imported."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec import to_builtins

from memtopo.common.errors import MemtopoError
from memtopo.plans.report import Tally
from memtopo.sharing import wire
from memtopo.sharing.client import Client, connect
from memtopo.sharing.endpoints import endpoint
from tests.helpers.holders import Holder, heard, raw, scripted, until
from tests.helpers.memfd_exports import OFFERS
from tests.helpers.processes import open_descriptors
from tests.sharing.packet_mutator import Mutator
from tests.sharing.test_dishonest_holders import BLOCKS, FRAME, NOBODY, PAGES, READY, RELEASING, STATUS, given
from tests.sharing.test_dishonest_holders import OFFERS as LISTED

FEW, MANY = 1_000, 50_000
"""Packets to each end."""

REQUESTS: list[dict[str, Any]] = [
    {"memtopo": 1, "request": "status"},
    {"memtopo": 1, "request": "offers", "first": 0},
    {"memtopo": 1, "request": "importers", "after": 0},
    {"memtopo": 1, "request": "handles", "export": "page", "first": 0, "count": 3},
    {"memtopo": 1, "request": "handles", "export": "block", "first": 1, "count": 1},
    {"memtopo": 1, "request": "handles", "export": "frame", "first": 0, "count": 1},
    {"memtopo": 1, "request": "handles", "export": "ready", "first": 0, "count": 1},
    {"memtopo": 1, "request": "check"},
    {"memtopo": 1, "request": "source", "first": 0},
    {"memtopo": 1, "request": "nodes", "first": 0},
    {"memtopo": 1, "request": "let_go", "exports": ["page", "ready"]},
    {"memtopo": 1, "request": "switch", "state": "asleep", "force": True, "check": "fast", "wait": 0.5},
]
CHECKED = {"ok": {"tallies": [to_builtins(Tally("access", 4, 4))], "differences": [], "different": 0}}
CHANGING = {"notice": "changing", "generation": 3, "exports": ["page", "ready"], "deadline": 5.0}
CHANGED = {"notice": "changed", "generation": 4, "exports": ["page"], "state": "asleep"}
LET_GO = {"ok": {"generation": 3, "exports": ["page"]}}
RELEASED = {"ok": {"name": "kv", "lost": [], "kept": []}}


def messages(default: int) -> int:
    """Number of packets that a test sends: half of MEMTOPO_FUZZ_WIRE for each end."""
    return int(os.environ.get("MEMTOPO_FUZZ_WIRE", 2 * default)) // 2


@pytest.mark.parametrize(
    "count", [messages(FEW), pytest.param(MANY, marks=[pytest.mark.exhaustive(seconds=12), pytest.mark.timeout(3600)])]
)
def test_a_holder_answers_or_ends_the_connection_and_serves_valid_requests_only(
    runtime: Path, holder: Holder, count: int
) -> None:
    mutator = Mutator(REQUESTS, seed=count)
    before, given_ = open_descriptors(), 0
    sent = 0
    with open(os.devnull) as file:  # noqa: PTH123
        while sent < count:
            with raw(runtime / "memtopo" / "kv.sock") as sock:
                alive = True
                while alive and sent < count:
                    sent += 1
                    alive, handles = exchanged(sock, *mutator.packet(), file.fileno())
                    given_ += handles
    assert open_descriptors() == before
    with connect(endpoint("kv")) as client:
        until(lambda: client.status().importers == ())
        assert client.status().offers[: len(OFFERS)] == OFFERS
    until(lambda: holder.open_descriptors() == holder.idle)
    report = holder.end()
    assert (report["held"]["handles"], report["fds"]) == (given_, 0)
    assert report["held"]["why"] == "signal"
    assert 0 < given_ < 100 * count


def exchanged(sock: Any, data: bytes, count: int, file: int) -> tuple[bool, int]:
    """Send one packet; whether the connection goes on, and how many handles came."""
    try:
        wire.send(sock, data, [file] * count)
    except OSError:  # larger than a socket takes, or the other end has gone
        return False, 0
    packet = heard(sock)
    if packet is None:
        return False, 0
    try:
        handles = len(packet.message["ok"].get("handles", ())) if "ok" in packet.message else 0
        assert len(packet.fds) in (0, handles)
        assert handles or "error" in packet.message or not packet.fds
    finally:
        packet.close()
    return True, handles


@pytest.mark.parametrize(
    "count", [messages(FEW), pytest.param(MANY, marks=[pytest.mark.exhaustive(seconds=25), pytest.mark.timeout(3600)])]
)
def test_a_client_accepts_an_answer_or_raises_a_named_error_and_leaks_no_descriptor(count: int) -> None:
    mutator = Mutator((), seed=count)
    file = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    believed: Counter[object] = Counter()
    before = open_descriptors()
    for turn in range(count):
        act, right = SCRIPTS[turn % len(SCRIPTS)]
        packets: list[tuple[Any, list[int]]] = [
            ({"memtopo": 1, **message}, [file] * carried) for message, carried in right
        ]
        at = turn % len(packets)
        data, carried = mutator.packet(packets[at][0])
        packets[at] = data, [file] * (carried or right[at][1])
        with suppress(MemtopoError), scripted(*packets) as client:
            act(client)
            believed[act] += 1
        assert open_descriptors() == before, data
    os.close(file)
    assert all(0 < believed[act] < count / len(SCRIPTS) for act, _ in SCRIPTS)


def pages(client: Client) -> None:
    """Take handles that are descriptors, and believe no others."""
    for handle in client.handles(PAGES.name):
        assert handle.fd is not None
        assert handle.secret is None
        handle.close()


def frames(client: Client) -> None:
    """Take memory and a semaphore of another API, each by a descriptor."""
    for name in (FRAME.name, READY.name):
        (handle,) = client.handles(name)
        assert handle.fd is not None
        handle.close()


def changes(client: Client) -> None:
    """Read notices of a change, and let go."""
    for _ in range(2):
        notice = client.notice()
        assert notice
        assert notice.generation >= 1
        assert {type(name) for name in notice.exports} <= {str}
    client.let_go(["page"])


def blocks(client: Client) -> None:
    """Take handles that are secrets, and believe no others."""
    for handle in client.handles(BLOCKS.name):
        assert handle.fd is None
        assert handle.secret is not None


SCRIPTS: list[tuple[Callable[[Client], object], list[tuple[Any, int]]]] = [
    (pages, [(LISTED, 0), (given(), 4)]),
    (blocks, [(LISTED, 0), (given(BLOCKS, 2), 0)]),
    (frames, [(LISTED, 0), (given(FRAME, 1), 1), (given(READY, 1), 1)]),
    (Client.status, [(STATUS, 0), (LISTED, 0), (NOBODY, 0)]),
    (Client.check, [(CHECKED, 0)]),
    (Client.release, [(RELEASED, 0)]),
    (Client.notice, [(RELEASING, 0)]),
    (changes, [(CHANGING, 0), (CHANGED, 0), (LET_GO, 0)]),
    (Client.offers, [(LISTED, 0)]),
]
"""Calls of a client, and valid answers with their numbers of descriptors; a test changes one answer."""
